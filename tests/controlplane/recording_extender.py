"""An extender that changes nothing and writes down what kube-scheduler asks it.

`python tests/controlplane/recording_extender.py` runs the real kube-scheduler with it and writes one request
of each kind into `tests/extender/recorded`, which the tests replay.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import PODS, add_nodes, create, placed
from controlplane.process import wait_until

Json = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "extender" / "recorded"
BIG = {"cpu": "3"}


class RecordingExtender:
    """Answers filter, prioritize, preempt and bind so that all goes on; `bind` does the binding."""

    def __init__(self, bind: Callable[[Json], None] = lambda args: None) -> None:
        self.requests: dict[str, bytes] = {}
        """The first one of each verb, as it came."""
        recorder = self

        class Page(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                verb = self.path.rpartition("/")[2]
                head = f"{self.requestline}\r\n{self.headers.as_string(policy=HTTP)}"
                recorder.requests.setdefault(verb, head.encode() + body)
                answer = json.dumps(_answer(verb, json.loads(body), bind)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.url = f"http://127.0.0.1:{self._server.server_port}/recorded"

    def __enter__(self) -> RecordingExtender:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(verb: str, args: Json, bind: Callable[[Json], None]) -> Any:
    if verb == "filter":
        return {"Nodes": args["Nodes"], "NodeNames": args["NodeNames"]}
    if verb == "prioritize":
        nodes = args["NodeNames"] or [item["metadata"]["name"] for item in args["Nodes"]["items"]]
        return [{"Host": name, "Score": 0} for name in nodes]
    if verb == "preempt":
        named = args["NodeNameToMetaVictims"] or {
            name: {
                "Pods": [{"UID": each["metadata"]["uid"]} for each in victims["Pods"]],
                "NumPDBViolations": victims["NumPDBViolations"],
            }
            for name, victims in args["NodeNameToVictims"].items()
        }
        return {"NodeNameToMetaVictims": named}
    bind(args)
    return {"Error": ""}


def record(control_plane: ControlPlane, *, by_name: bool) -> dict[str, bytes]:
    """Two nodes that are as good as full: a pod that fits, then one for which others must go."""
    control_plane.wipe()
    add_nodes(control_plane, node("n1", labels={"disk": "ssd"}), node("n2"))

    def bind(args: Json) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": args["Node"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": args["PodName"]}}
        control_plane.request("POST", f"{PODS}/{args['PodName']}/binding", binding | {"target": target})

    with RecordingExtender(bind) as extender:
        verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "preempt", "bind")}
        entry = {"urlPrefix": extender.url, "weight": 1, "nodeCacheCapable": by_name, **verbs}
        with control_plane.kube_scheduler(extenders=[entry]):
            for name in ("a", "b"):
                create(control_plane, pod(name, requests=BIG, labels={"app": "web"}))
                wait_until(lambda name=name: bool(placed(control_plane)[name]), lambda: "not bound", 30)
            create(control_plane, pod("urgent", requests=BIG, priorityClassName="system-node-critical"))
            wait_until(lambda: "preempt" in extender.requests, lambda: "no preemption", 30)
    return extender.requests


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        control_plane = ControlPlane(Path(folder))
        try:
            control_plane.start()
            for by_name, form in ((True, "names"), (False, "nodes")):
                for verb, request in record(control_plane, by_name=by_name).items():
                    (FOLDER / f"{verb}-{form}.http").write_bytes(request)
        finally:
            control_plane.stop()


if __name__ == "__main__":
    main()
