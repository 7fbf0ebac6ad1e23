"""What nodes report about containers: logs, commands that are run in them, and usage (metrics.k8s.io).

The server has no containers. Who simulates them sets `ApiServer.containers`; without that, and for what only
real containers can do, clients get a plain answer.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Protocol

import msgspec

from stowplan.api.meta import Json
from stowplan.apiserver import schemas, times
from stowplan.apiserver.context import RequestContext
from stowplan.apiserver.failures import Failure, bad_request, method_not_allowed, not_found
from stowplan.apiserver.options import list_options
from stowplan.apiserver.reading import selection_of
from stowplan.apiserver.resources import Column, Resource, Resources
from stowplan.apiserver.strategies import strategy_of
from stowplan.http11.messages import TEXT, Response

METRICS = "metrics.k8s.io"
WINDOW = "30s"
_WEBSOCKET_KEY = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_OUTPUT, _ERROR_OUTPUT, _STATUS = 1, 2, 3


_AMOUNTS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
_MEASURED: Json = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"$ref": schemas.REF + "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
    "timestamp": {"type": "string", "format": "date-time"},
    "window": {"type": "string"},
}


class Containers(Protocol):
    """Pods are given as they are stored."""

    def log(self, pod: Json, container: str) -> str:
        """What the container has written."""

    def exec(self, pod: Json, container: str, command: list[str]) -> tuple[str, str, int] | None:
        """Output, error output and exit code of a command; None if its behaviour is not set."""

    def usage(self, pod: Json) -> dict[str, tuple[int, int]]:
        """Thousandths of a CPU and bytes of memory that each running container uses."""

    def usage_of_node(self, name: str) -> tuple[int, int]:
        """The same of a node by itself."""


def answer(containers: Containers | None, context: RequestContext) -> Response:
    """The response for pods/log, pods/exec and the like."""
    pod = context.objects.published(context.resource, context.namespace, context.name).data()
    match context.subresource:
        case "log":
            return _log(containers, context, pod)
        case "exec" | "attach":
            return _exec(containers, context, pod)
        case "portforward" | "proxy":
            raise _simulated_failure("nothing listens on their ports")
    raise _simulated_failure("there is nothing to connect to")


def _simulated_failure(what: str) -> Failure:
    return bad_request(f"containers are simulated: {what}")


def _log(containers: Containers | None, context: RequestContext, pod: Json) -> Response:
    query, name = context.query, _container(context, pod)
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    states = [each for kind in kinds for each in _statuses(pod, kind)]
    status = next((each for each in states if each["name"] == name), {})
    waiting = status.get("state", {}).get("waiting", {}) if status else {"reason": "ContainerCreating"}
    if waiting and not status.get("lastState"):
        why = f'container "{name}" in pod "{context.name}" is waiting to start: {waiting["reason"]}'
        raise bad_request(why)
    if query.flag("previous") and not status.get("lastState"):
        raise bad_request(f'previous terminated container "{name}" in pod "{context.name}" not found')
    text = containers.log(pod, name) if containers is not None else ""
    lines = text.splitlines(keepends=True)
    if query.flag("timestamps"):
        state = status.get("state", {})
        started = (state.get("running") or state.get("terminated") or {}).get("startedAt") or times.now()
        lines = [f"{started} {line}" for line in lines]
    if query("tailLines").isdecimal():
        lines = lines[max(len(lines) - int(query("tailLines")), 0) :]
    data = "".join(lines).encode()
    if query("limitBytes").isdecimal():
        data = data[: int(query("limitBytes"))]
    return Response(200, data, TEXT)


def _statuses(pod: Json, field: str) -> list[Json]:
    return (pod.get("status") or {}).get(field) or []


def _container(context: RequestContext, pod: Json) -> str:
    """The name of the container that is meant."""
    spec, asked = pod["spec"], context.query("container")
    names = [each["name"] for each in spec["containers"]]
    others = [
        each["name"] for field in ("initContainers", "ephemeralContainers") for each in spec.get(field) or ()
    ]
    if asked:
        if asked not in names + others:
            raise bad_request(f"container {asked} is not valid for pod {context.name}")
        return asked
    default = (pod["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/default-container")
    if default in names:
        return str(default)
    if len(names) > 1:
        choice = (
            f"a container name must be specified for pod {context.name}, choose one of: [{' '.join(names)}]"
        )
        raise bad_request(choice)
    return str(names[0])


def _exec(containers: Containers | None, context: RequestContext, pod: Json) -> Response:
    name, command = _container(context, pod), context.query.all("command")
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        phase = pod["status"]["phase"]
        raise bad_request(f"cannot exec into a container in a completed pod; current phase is {phase}")
    result = None
    if containers is not None and context.subresource == "attach":
        result = (containers.log(pod, name), "", 0)
    elif containers is not None:
        result = containers.exec(pod, name, command)
    if result is None:
        said = "annotate the pod with kubelet.stowplan/exec to set the output of commands"
        raise _simulated_failure(f"no command can be run in them; {said}")
    return _websocket(context, *result)


def _websocket(context: RequestContext, output: str, errors: str, code: int) -> Response:
    """All of an answer at once, in the frames of a WebSocket."""
    headers = context.request.headers
    key = headers.get("sec-websocket-key", "")
    offered = [each.strip() for each in headers.get("sec-websocket-protocol", "").split(",")]
    protocol = next((each for each in _PROTOCOLS if each in offered), "")
    if not key or not protocol:
        raise _simulated_failure(f"commands are answered over WebSockets with {' or '.join(_PROTOCOLS)}")
    status: Json = {"metadata": {}, "status": "Success"}
    if code:
        text = f"command terminated with non-zero exit code: exit status {code}"
        causes = [{"reason": "ExitCode", "message": str(code)}]
        details = {"causes": causes}
        status = {
            "metadata": {},
            "status": "Failure",
            "message": text,
            "reason": "NonZeroExitCode",
            "details": details,
        }
    parts = [
        (_OUTPUT, output.encode()),
        (_ERROR_OUTPUT, errors.encode()),
        (_STATUS, msgspec.json.encode(status)),
    ]
    frames = b"".join(_frame(bytes([channel]) + data) for channel, data in parts if data)
    accept = base64.b64encode(hashlib.sha1((key + _WEBSOCKET_KEY).encode()).digest()).decode()
    switched = (
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept),
        ("Sec-WebSocket-Protocol", protocol),
    )
    close = b"\x88\x02\x03\xe8"  # 1000: all is said
    return Response(101, frames + close, TEXT, switched)


def _frame(data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        head = bytes([0x82, size])
    elif size < 2**16:
        head = bytes([0x82, 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x82, 127]) + size.to_bytes(8, "big")
    return head + data


# Usage, as `kubectl top` and autoscalers read it.


def serve_metrics(resources: Resources) -> None:
    """Serve nodes and pods of the metrics API, which are made at every read."""
    for plural, kind, namespaced in (("nodes", "NodeMetrics", False), ("pods", "PodMetrics", True)):
        own = {"usage": _AMOUNTS}
        if namespaced:
            part = {"type": "object", "properties": {"name": {"type": "string"}, **own}}
            own = {"containers": {"type": "array", "items": part}}
        schema = {"type": "object", "properties": {**_MEASURED, **own}}
        resource = Resource(
            group=METRICS,
            version="v1beta1",
            plural=plural,
            singular="",
            kind=kind,
            namespaced=namespaced,
            verbs=("get", "list"),
            columns=(Column("Name", format="name"),),
            schema=schema,
            codec=_NoCodec(),
            strategy=strategy_of(METRICS, plural),
            is_custom=True,
        )
        resources.replace(METRICS, plural, [resource])


class _NoCodec(msgspec.Struct, frozen=True):
    """Nothing is ever written."""

    def decode(self, body: bytes) -> Json | None:
        return None

    def normalize(self, value: Json) -> tuple[Json, list[str]]:
        return value, []

    def problems(self, value: object, unknown: list[str]) -> list[str]:
        return []


def metrics(containers: Containers | None, context: RequestContext) -> Response:
    if context.verb not in ("get", "list"):
        raise method_not_allowed()
    resource = context.resource
    pods = context.objects.resources.kept_in("pods")
    if containers is None:
        raise not_found(context.name, resource.plural, METRICS)
    if context.verb == "get":
        if resource.plural == "nodes":
            record = context.objects.published(context.objects.resources.kept_in("nodes"), "", context.name)
            return Response.of(200, _of_node(containers, context, record.data()))
        pod = context.objects.published(pods, context.namespace, context.name).data()
        if not (usage := containers.usage(pod)):
            raise not_found(f"{context.namespace}/{context.name}", "pods", METRICS)
        return Response.of(200, _of_pod(pod, usage))
    options = list_options(context.query)
    kept = context.objects.resources.kept_in(resource.plural)
    selection = selection_of(kept, context.namespace, options)
    found = [
        record.data()
        for record in context.objects.collection(kept).records.values()
        if selection.takes(record)
    ]
    if resource.plural == "nodes":
        items = [_of_node(containers, context, item) for item in found]
    else:
        items = [_of_pod(item, usage) for item in found if (usage := containers.usage(item))]
    document = {
        "kind": resource.list_kind,
        "apiVersion": resource.group_version,
        "metadata": {},
        "items": items,
    }
    return Response.of(200, document)


def _of_pod(pod: Json, usage: dict[str, tuple[int, int]]) -> Json:
    parts = [{"name": name, "usage": _usage(*each)} for name, each in usage.items()]
    return {**_metrics_head("PodMetrics", pod), "containers": parts}


def _of_node(containers: Containers, context: RequestContext, node: Json) -> Json:
    name = node["metadata"]["name"]
    cpu, memory = containers.usage_of_node(name)
    return {**_metrics_head("NodeMetrics", node), "usage": _usage(cpu, memory)}


def _metrics_head(kind: str, item: Json) -> Json:
    meta = {
        name: item["metadata"][name] for name in ("name", "namespace", "labels") if name in item["metadata"]
    }
    meta["creationTimestamp"] = times.now()
    head = {"kind": kind, "apiVersion": f"{METRICS}/v1beta1", "metadata": meta}
    return {**head, "timestamp": times.now(), "window": WINDOW}


def _usage(cpu: int, memory: int) -> Json:
    return {"cpu": f"{cpu}m", "memory": f"{-(-memory // 1024)}Ki"}
