"""Twins of the plugins that look at what the pods on a node take: ports and resources."""

from __future__ import annotations

import math
from typing import Any

from twins.quantities import counted
from twins.requests import allocatable, asked, is_extended, is_scalar, scored, taken, taken_nonzero
from twins.world import SKIP, Refusal, Twin, World, name_of, unresolvable, unschedulable

Json = dict[str, Any]
Port = tuple[str, str, int]
CPU_AND_MEMORY = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]


class NodePorts(Twin):
    scores = False

    def pre_filter(self) -> str | None:
        self.taken = {
            name_of(node): {port for pod in self.world.pods_on(node) for port in host_ports(pod)}
            for node in self.world.nodes
        }
        return None if host_ports(self.pod) else SKIP

    def filter(self, node: Json) -> Refusal | None:
        for ip, protocol, port in host_ports(self.pod):
            for other_ip, other_protocol, other_port in self.taken[name_of(node)]:
                same_address = ip == "0.0.0.0" or other_ip == "0.0.0.0" or ip == other_ip
                if same_address and (protocol, port) == (other_protocol, other_port):
                    return unschedulable("node(s) didn't have free ports for the requested pod ports")
        return None

    def added(self, other: Json, node: Json) -> None:
        self.taken[name_of(node)] |= host_ports(other)

    def removed(self, other: Json, node: Json) -> None:
        """A set: who leaves frees a port even if someone else has it too."""
        self.taken[name_of(node)] -= host_ports(other)


def host_ports(pod: Json) -> set[Port]:
    spec = pod["spec"]
    sidecars = [each for each in spec.get("initContainers", []) if each.get("restartPolicy") == "Always"]
    return {
        (port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port["hostPort"])
        for container in (*sidecars, *spec["containers"])
        for port in container.get("ports", [])
        if port.get("hostPort", 0) > 0
    }


def used(world: World, node: Json, resource: str) -> int:
    return sum(taken(pod).get(resource, 0) for pod in world.pods_on(node))


def used_nonzero(world: World, node: Json, resource: str) -> int:
    return sum(taken_nonzero(pod)[resource] for pod in world.pods_on(node))


class NodeResourcesFit(Twin):
    def filter(self, node: Json) -> Refusal | None:
        has, reasons, hopeless = allocatable(node), set(), False
        if len(self.world.pods_on(node)) + 1 > has.get("pods", 0):
            reasons.add("Too many pods")
        for resource, wanted in asked(self.pod).items():
            if wanted == 0 or self.is_ignored(resource) or self.is_left_to_devices(resource, node):
                continue
            if wanted > has.get(resource, 0) - used(self.world, node, resource):
                reasons.add(f"Insufficient {resource}")
                hopeless = hopeless or wanted > has.get(resource, 0)
        if not reasons:
            return None
        return unresolvable(*reasons) if hopeless else unschedulable(*reasons)

    def is_ignored(self, resource: str) -> bool:
        group = resource.split("/")[0]
        return is_extended(resource) and (
            resource in self.args.get("ignoredResources", [])
            or group in self.args.get("ignoredResourceGroups", [])
        )

    def is_left_to_devices(self, resource: str, node: Json) -> bool:
        """A DeviceClass stands behind the resource, and the node does not count it."""
        if allocatable(node).get(resource, 0) > 0:
            return False
        return any(
            resource == f"deviceclass.resource.kubernetes.io/{each['metadata']['name']}"
            or (is_extended(resource) and resource == each["spec"].get("extendedResourceName"))
            for each in self.world.all("DeviceClass")
        )

    def score(self, node: Json) -> int:
        strategy = self.args.get("scoringStrategy", {})
        kind = strategy.get("type", "LeastAllocated")
        wanted, has = scored(self.pod), allocatable(node)
        points, weights = 0, 0
        for resource in strategy.get("resources") or CPU_AND_MEMORY:
            name, weight = resource["name"], resource.get("weight") or 1
            mine, capacity = counted(name, wanted.get(name, 0)), has.get(name, 0)
            if (mine == 0 and is_scalar(name)) or capacity == 0:
                continue
            others = used_nonzero if name in ("cpu", "memory") else used
            need = others(self.world, node, name) + mine
            if kind == "LeastAllocated":
                score = 0 if need > capacity else (capacity - need) * 100 // capacity
            elif kind == "MostAllocated":
                score = min(need, capacity) * 100 // capacity
            else:
                shape = strategy["requestedToCapacityRatio"]["shape"]
                score = on_line(shape, 100 if need > capacity else need * 100 // capacity)
                if score == 0:
                    continue
            points += score * weight
            weights += weight
        if weights == 0:
            return 0
        return half_up(points / weights) if kind == "RequestedToCapacityRatio" else points // weights


def on_line(shape: list[Json], use: int) -> int:
    for index, point in enumerate(shape):
        if use <= point["utilization"]:
            if index == 0:
                return point["score"] * 10
            left = shape[index - 1]
            rise = (point["score"] - left["score"]) * 10 * (use - left["utilization"])
            run = point["utilization"] - left["utilization"]
            return left["score"] * 10 + math.trunc(rise / run)
    return shape[-1]["score"] * 10


def half_up(number: float) -> int:
    return math.floor(number + 0.5)


class NodeResourcesBalancedAllocation(Twin):
    filters = False

    def pre_score(self, nodes: list[Json]) -> str | None:
        return None if any(taken(self.pod).get(each["name"], 0) for each in self.resources()) else SKIP

    def score(self, node: Json) -> int:
        has, before, after = allocatable(node), [], []
        for resource in self.resources():
            name = resource["name"]
            mine, capacity = taken(self.pod).get(name, 0), has.get(name, 0)
            if (mine == 0 and is_scalar(name)) or capacity == 0:
                continue
            others = used(self.world, node, name)
            before.append(min(float(others) / float(capacity), 1.0))
            after.append(min(float(others + mine) / float(capacity), 1.0))
        return 50 + (50 + self.evenness(after) - self.evenness(before)) // 2

    def resources(self) -> list[Json]:
        return self.args.get("resources") or CPU_AND_MEMORY

    @staticmethod
    def evenness(shares: list[float]) -> int:
        if len(shares) < 2:
            apart = 0.0
        elif len(shares) == 2:
            apart = abs((shares[0] - shares[1]) / 2)
        else:
            total = 0.0
            for share in shares:
                total += share
            mean, squares = total / len(shares), 0.0
            for share in shares:
                squares += (share - mean) * (share - mean)
            apart = math.sqrt(squares / len(shares))
        return math.trunc((1 - apart) * 100)
