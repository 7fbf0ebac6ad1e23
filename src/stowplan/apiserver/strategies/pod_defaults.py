"""The API server's defaults for a pod's spec, in a pod or in a template."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.api.meta import Json
from stowplan.api.quantity import milli_units, parse
from stowplan.apiserver.amounts import canonical

CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_FILE_MODE = 420
_SOURCES_WITH_MODE = ("secret", "configMap", "downwardAPI", "projected")


def default_template(template: Json) -> None:
    """Set defaults in the pod template of a workload."""
    template.setdefault("metadata", {})
    default_spec(template.setdefault("spec", {"containers": None}))


def default_pod(data: Json) -> None:
    """Set defaults in a pod: those of a template, and those that only pods have."""
    spec = data.setdefault("spec", {"containers": None})
    default_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or []:
            requests_from_limits(container.setdefault("resources", {}))
    if spec.get("resources"):
        _pod_requests(spec)


def default_spec(spec: Json) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    for kind in CONTAINERS:
        for container in spec.get(kind) or []:
            _default_container(container, on_host=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or []:
        default_volume(volume)


def _default_container(container: Json, on_host: bool) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    for part in ("requests", "limits"):
        round_amounts(resources.get(part))
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = (
            "Always" if _tag(container.get("image", "")) == "latest" else "IfNotPresent"
        )
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
        if on_host and not port.get("hostPort") and port.get("containerPort"):
            port["hostPort"] = port["containerPort"]
    for variable in container.get("env") or []:
        _default_field_ref((variable.get("valueFrom") or {}).get("fieldRef"))
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(kind) is not None:
            _default_probe(container[kind])
    for handler in (container.get("lifecycle") or {}).values():
        if isinstance(handler, dict):
            _default_http(handler)


def round_amounts(amounts: Json | None) -> None:
    """Round up to thousandths."""
    for name, amount in (amounts or {}).items():
        if amount.endswith(("n", "u")) and amounts is not None:
            amounts[name] = canonical(f"{milli_units(parse(amount))}m")


def _tag(image: str) -> str:
    name, _, digest = image.partition("@")
    _, colon, tag = name.rpartition("/")[2].partition(":")
    return tag if colon else "" if digest else "latest"


def _default_probe(probe: Json) -> None:
    for field, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        if not probe.get(field):
            probe[field] = value
    _default_http(probe)
    if probe.get("grpc") is not None:
        probe["grpc"].setdefault("service", "")


def _default_http(handler: Json) -> None:
    if (http := handler.get("httpGet")) is not None:
        if not http.get("path"):
            http["path"] = "/"
        if not http.get("scheme"):
            http["scheme"] = "HTTP"


def _default_field_ref(reference: Json | None) -> None:
    if reference is not None and not reference.get("apiVersion"):
        reference["apiVersion"] = "v1"


def default_volume(volume: Json) -> None:
    if not any(source != "name" for source in volume):
        volume["emptyDir"] = {}
    for kind in _SOURCES_WITH_MODE:
        if volume.get(kind) is not None:
            volume[kind].setdefault("defaultMode", _FILE_MODE)
    if volume.get("hostPath") is not None:
        volume["hostPath"].setdefault("type", "")
    for item in (volume.get("downwardAPI") or {}).get("items") or []:
        _default_field_ref(item.get("fieldRef"))
    for source in (volume.get("projected") or {}).get("sources") or []:
        for item in (source.get("downwardAPI") or {}).get("items") or []:
            _default_field_ref(item.get("fieldRef"))
        if source.get("serviceAccountToken") is not None:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    if (claim := (volume.get("ephemeral") or {}).get("volumeClaimTemplate")) is not None:
        claim.get("spec", {}).setdefault("volumeMode", "Filesystem")


def requests_from_limits(resources: Json) -> None:
    """Default requests to limits."""
    limits = resources.get("limits")
    if limits:
        requests = resources.get("requests") or {}
        resources["requests"] = {
            **requests,
            **{name: limits[name] for name in limits if name not in requests},
        }


def _pod_requests(spec: Json) -> None:
    resources = spec["resources"]
    limits = resources.get("limits") or {}
    asked = {
        name for each in _resources(spec) for part in ("requests", "limits") for name in each.get(part) or {}
    }
    requests = dict(resources.get("requests") or {})
    for name, limit in limits.items():
        if name not in requests and name not in asked:
            requests[name] = limit
    if requests:
        resources["requests"] = requests


def _resources(spec: Json) -> Iterator[Json]:
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or []:
            yield container.get("resources") or {}
