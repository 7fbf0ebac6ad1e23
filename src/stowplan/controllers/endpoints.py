"""Endpoints and EndpointSlices: the addresses of the pods behind each Service."""

from __future__ import annotations

from collections.abc import Iterable

from stowplan.api.meta import Json
from stowplan.api.selectors import selector_of_map
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import (
    ENDPOINTS,
    NODES,
    PODS,
    SERVICES,
    SLICES,
    EndpointsView,
    Plain,
    PodView,
    Slice,
)
from stowplan.controllers.owned_pods import owner_of
from stowplan.controllers.stores import Stores, by_namespace

SERVICE_NAME = "kubernetes.io/service-name"
HEADLESS = "service.kubernetes.io/headless"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
SKIP_MIRROR = "endpointslice.kubernetes.io/skip-mirror"
SLICER, MIRROR = "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"
ZONE = "topology.kubernetes.io/zone"
LEADER = "control-plane.alpha.kubernetes.io/leader"
MAX_IN_SLICE, MAX_IN_ENDPOINTS = 100, 1000

Ports = tuple[tuple[str, str, int, str], ...]
"""Name, protocol, number and application protocol of each."""


def by_service(item: Slice) -> Iterable[str]:
    return (f"{item.namespace}/{item.labels.get(SERVICE_NAME, '')}",)


class EndpointSlices(Controller):
    """Slices of services with a selector; those of others mirror their Endpoints."""

    component = "endpoint-slice-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._services, self._pod_store = self.store(SERVICES), self.store(PODS)
        self._endpoints, self._slices, self._nodes = (
            self.store(ENDPOINTS),
            self.store(SLICES),
            self.store(NODES),
        )
        self._pods = self._pod_store.index(by_namespace)
        self._of_service = self._slices.index(by_service)
        self._of_namespace = self._services.index(by_namespace)
        self._deleted: set[str] = set()
        """Services whose Endpoints are to go, too."""
        self._services.listen(self._on_service)
        self._endpoints.listen_keys(self.queue.add)
        self._slices.listen(self._on_slice)
        self._pod_store.listen(self._on_pod)

    def _on_service(self, old: Plain | None, new: Plain | None) -> None:
        item = new or old
        if item is not None:
            (self._deleted.add if new is None else self._deleted.discard)(item.key)
            self.queue.add(item.key)

    def _on_slice(self, old: Slice | None, new: Slice | None) -> None:
        item = new or old
        if item is not None:
            self.queue.add(f"{item.namespace}/{item.labels.get(SERVICE_NAME, '')}")

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        pod = new or old
        for service in self._of_namespace.of(pod.namespace) if pod is not None else ():
            chosen = service.spec.get("selector")
            if chosen and any(
                each is not None and chosen.items() <= each.labels.items() for each in (old, new)
            ):
                self.queue.add(service.key)

    async def reconcile(self, key: str) -> None:
        service = self._services.get(key)
        ours = [each for each in self._of_service.of(key) if each.labels.get(MANAGED_BY) in (SLICER, MIRROR)]
        if service is None and key in self._deleted:
            endpoints = self._endpoints.get(key)
            if endpoints is not None and LEADER not in endpoints.metadata.annotations:
                await self._endpoints.delete(endpoints)
            self._deleted.discard(key)
        if service is None or service.is_terminating:
            return  # its slices go with it
        if service.spec.get("type") == "ExternalName":
            wanted: list[Json] = []
        elif service.spec.get("selector"):
            wanted = self._slices_of(service)
            await self._sync_endpoints(service)
        else:
            endpoints = self._endpoints.get(key)
            wanted = mirror_endpoints(endpoints, service) if endpoints is not None else []
        await self._sync_slices(service, ours, wanted)

    def _groups(self, service: Plain) -> dict[Ports, list[PodView]]:
        """The pods of a service by the ports that they have for it."""
        selector = selector_of_map(service.spec["selector"])
        groups: dict[Ports, list[PodView]] = {}
        pods = [pod for pod in self._pods.of(service.namespace) if selector.matches(pod.labels)]
        for pod in sorted(pods, key=lambda each: each.name):
            if pod.status.pod_ip and not pod.is_finished:
                groups.setdefault(ports_of(service, pod), []).append(pod)
        return groups

    def _slices_of(self, service: Plain) -> list[Json]:
        found: list[Json] = []
        for ports, pods in self._groups(service).items():
            endpoints = [self._endpoint(service, pod) for pod in pods]
            for start in range(0, len(endpoints), MAX_IN_SLICE):
                part = endpoints[start : start + MAX_IN_SLICE]
                found.append(_slice(service, SLICER, part, _slice_ports(ports)))
        return found or [_slice(service, SLICER, [], [])]

    def _endpoint(self, service: Plain, pod: PodView) -> Json:
        is_ready = bool(service.spec.get("publishNotReadyAddresses")) or (
            pod.is_ready and not pod.is_terminating
        )
        found: Json = {
            "addresses": [pod.status.pod_ip],
            "conditions": {"ready": is_ready, "serving": pod.is_ready, "terminating": pod.is_terminating},
            "nodeName": pod.node,
            "targetRef": _target(pod),
        }
        if has_hostname(service, pod):
            found["hostname"] = pod.spec.hostname
        node = self._nodes.get(pod.node)
        if node is not None and (zone := node.labels.get(ZONE)):
            found["zone"] = zone
        return found

    async def _sync_slices(self, service: Plain, known: list[Slice], wanted: list[Json]) -> None:
        """Change as few slices as possible: those that are right already stay."""
        left = list(known)
        missing = []
        for body in wanted:
            same = next((each for each in left if _is_same(each, body)), None)
            if same is None:
                missing.append(body)
            else:
                left.remove(same)
        for body in missing:
            like = next((each for each in left if each.address_type == body["addressType"]), None)
            if like is None:
                await self._slices.create(service.namespace, body)
                continue
            left.remove(like)
            gone = dict.fromkeys(name for name in like.labels if name not in body["metadata"]["labels"])
            labels = {**gone, **body["metadata"]["labels"]}
            change = {name: body[name] for name in ("endpoints", "ports")}
            await self._slices.patch(like, {"metadata": {"labels": labels}, **change})
        for item in left:
            await self._slices.delete(item)

    async def _sync_endpoints(self, service: Plain) -> None:
        """The older form of the same, which has no room for more than a thousand addresses."""
        subsets: list[Json] = []
        for ports, pods in self._groups(service).items():
            publishes = bool(service.spec.get("publishNotReadyAddresses"))
            there = [pod for pod in pods if publishes or not pod.is_terminating][:MAX_IN_ENDPOINTS]
            ready = [_address(service, pod) for pod in there if publishes or pod.is_ready]
            others = [_address(service, pod) for pod in there if not publishes and not pod.is_ready]
            subset: Json = {"addresses": ready, "notReadyAddresses": others, "ports": _slice_ports(ports)}
            if ready or others:
                subsets.append({name: value for name, value in subset.items() if value})
        labels = {**service.labels, ENDPOINTS_MANAGED_BY: "endpoint-controller"}
        if service.spec.get("clusterIP") == "None":
            labels[HEADLESS] = ""
        known = self._endpoints.get(service.key)
        meta: Json = {"name": service.name, "labels": labels}
        if known is None:
            await self._endpoints.create(service.namespace, {"metadata": meta, "subsets": subsets})
        elif list(known.subsets) != subsets or known.labels != labels:
            gone = dict.fromkeys(name for name in known.labels if name not in labels)
            change = {"metadata": {"labels": {**gone, **labels}}, "subsets": subsets}
            await self._endpoints.patch(known, change)


def ports_of(service: Plain, pod: PodView) -> Ports:
    found = []
    for port in service.spec.get("ports") or ():
        protocol, target = port.get("protocol", "TCP"), port.get("targetPort") or port["port"]
        if isinstance(target, str):
            containers = (
                *pod.spec.containers,
                *(each for each in pod.spec.init_containers if each.restart_policy == "Always"),
            )
            numbers = (
                each.container_port
                for container in containers
                for each in container.ports
                if each.name == target and each.protocol == protocol
            )
            target = next(numbers, 0)
        if target:
            found.append((port.get("name", ""), protocol, target, port.get("appProtocol", "")))
    return tuple(found)


def has_hostname(service: Plain, pod: PodView) -> bool:
    return bool(pod.spec.hostname) and pod.spec.subdomain == service.name


def _target(pod: PodView) -> Json:
    return {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def _address(service: Plain, pod: PodView) -> Json:
    found: Json = {"ip": pod.status.pod_ip, "nodeName": pod.node, "targetRef": _target(pod)}
    if has_hostname(service, pod):
        found["hostname"] = pod.spec.hostname
    return found


def _slice_ports(ports: Ports) -> list[Json]:
    found: list[Json] = []
    for name, protocol, number, application in ports:
        port: Json = {"name": name, "port": number, "protocol": protocol}
        if application:
            port["appProtocol"] = application
        found.append({field: value for field, value in port.items() if value != ""})
    return found


def _slice(service: Plain, manager: str, endpoints: list[Json], ports: list[Json]) -> Json:
    labels = {**service.labels, SERVICE_NAME: service.name, MANAGED_BY: manager}
    if service.spec.get("clusterIP") == "None":
        labels[HEADLESS] = ""
    family = (service.spec.get("ipFamilies") or ["IPv4"])[0]
    return {
        "metadata": {
            "generateName": f"{service.name}-",
            "labels": labels,
            "ownerReferences": [owner_of(SERVICES, service)],
        },
        "addressType": family,
        "endpoints": endpoints,
        "ports": [{"name": "", **each} for each in ports],
    }


def mirror_endpoints(endpoints: EndpointsView, service: Plain) -> list[Json]:
    """Slices with the addresses of Endpoints that were not written by this controller."""
    if endpoints.labels.get(SKIP_MIRROR) == "true" or LEADER in endpoints.metadata.annotations:
        return []
    found = []
    for subset in endpoints.subsets:
        for family in ("IPv4", "IPv6"):
            parts = [
                {
                    "addresses": [address["ip"]],
                    "conditions": {"ready": is_ready},
                    **{
                        name: address[name]
                        for name in ("hostname", "nodeName", "targetRef")
                        if name in address
                    },
                }
                for field, is_ready in (("addresses", True), ("notReadyAddresses", False))
                for address in subset.get(field) or ()
                if (":" in address["ip"]) == (family == "IPv6")
            ]
            if not parts:
                continue
            body = _slice(service, MIRROR, parts, list(subset.get("ports") or ()))
            body["metadata"]["labels"] = {
                **endpoints.labels,
                SERVICE_NAME: endpoints.name,
                MANAGED_BY: MIRROR,
            }
            body["metadata"]["ownerReferences"] = [owner_of(ENDPOINTS, endpoints)]
            found.append({**body, "addressType": family})
    return found


def _is_same(known: Slice, body: Json) -> bool:
    return bool(
        list(known.endpoints or ()) == body["endpoints"]
        and [{"name": "", **each} for each in known.ports or ()] == body["ports"]
        and known.labels == body["metadata"]["labels"]
        and known.address_type == body["addressType"]
    )
