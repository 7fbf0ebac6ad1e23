"""`stowplan bind` against an API server of the test's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from stowplan.cli import main, stowplan

POD = {
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
}
NODES = [
    {"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "9"}}}
    for name, cpu in (("large", "4"), ("small", "1"))
]


class Served:
    def __init__(self) -> None:
        self.objects: dict[str, Any] = {"/api/v1/namespaces/default/pods/p": POD, "/api/v1/nodes": NODES}
        self.bound: list[dict[str, Any]] = []
        self.refusal: tuple[int, str] | None = None


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    found = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = found.objects.get(self.path.partition("?")[0])
            if known is None and self.path.startswith("/api/v1/namespaces/"):
                self.say(404, {"message": f'pods "{self.path.rpartition("/")[2]}" not found'})
            else:
                listed = {"metadata": {}, "items": known or []}
                self.say(200, known if isinstance(known, dict) else listed)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if found.refusal is not None:
                self.say(found.refusal[0], {"message": found.refusal[1]})
                return
            found.bound.append(body)
            self.say(201, {})

        def say(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    kubeconfig = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": ""}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_pod_that_fits_is_bound(served):
    ran = CliRunner().invoke(stowplan, ["bind", "p", "large"])
    assert (ran.exit_code, ran.output) == (0, "pod default/p bound to large\n")
    assert served.bound == [
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "target": {"kind": "Node", "name": "large"},
        }
    ]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        pytest.param("small", "NodeResourcesFit: Insufficient cpu", id="it does not fit"),
        pytest.param("smal", "node smal not found", id="no such node"),
    ],
)
def test_one_that_does_not_is_bound_by_force_alone(served, node, why):
    ran = CliRunner().invoke(stowplan, ["bind", "default/p", node])
    assert ran.exit_code == 1
    assert ran.stderr.startswith(f"pod default/p does not fit {node}: {why}")
    assert ran.stderr.endswith("not bound; use --force to bind it anyway\n")
    assert served.bound == []
    forced = CliRunner().invoke(stowplan, ["bind", "default/p", node, "--force"])
    assert (forced.exit_code, forced.stdout) == (0, f"pod default/p bound to {node}\n")
    assert why in forced.stderr
    assert [each["target"]["name"] for each in served.bound] == [node]


def test_pods_that_run_count(served):
    running = {**POD, "metadata": {"name": "q", "uid": "v"}, "spec": {**POD["spec"], "nodeName": "large"}}
    served.objects["/api/v1/pods"] = [running, {**running, "metadata": {"name": "r", "uid": "w"}}]
    ran = CliRunner().invoke(stowplan, ["bind", "p", "large"])
    assert ran.exit_code == 1
    assert "Insufficient cpu" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "refusal", "said"),
    [
        pytest.param(["ghost", "large"], None, 'pods "ghost" not found', id="no such pod"),
        pytest.param(
            ["p", "large"], (409, 'pod p is already assigned to node "large"'), "already", id="twice"
        ),
    ],
)
def test_what_the_api_server_refuses_is_said(served, monkeypatch, capsys, arguments, refusal, said):
    served.refusal = refusal
    monkeypatch.setattr("sys.argv", ["stowplan", "bind", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert said in capsys.readouterr().err
