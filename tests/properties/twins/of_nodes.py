"""Twins of the plugins that look at the node alone: cordons, names, taints, affinity, features, images."""

from __future__ import annotations

import math
from typing import Any

from twins.selectors import (
    MistakeError,
    any_node_term_holds,
    check_node_term,
    has_untolerated,
    is_tolerated,
    is_wanted_node,
    labels_of,
    node_affinity,
    node_term_holds,
)
from twins.world import SKIP, CycleError, Refusal, Twin, in_proportion, name_of, unresolvable

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MIB = 1024 * 1024


class NodeUnschedulable(Twin):
    scores = False

    def filter(self, node: Json) -> Refusal | None:
        taint = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
        cordoned = node.get("spec", {}).get("unschedulable", False)
        if cordoned and not is_tolerated(taint, self.pod["spec"].get("tolerations", [])):
            return unresolvable("node(s) were unschedulable")
        return None


class NodeName(Twin):
    scores = False

    def filter(self, node: Json) -> Refusal | None:
        wanted = self.pod["spec"].get("nodeName", "")
        if wanted not in ("", name_of(node)):
            return unresolvable("node(s) didn't match the requested node name")
        return None


class TaintToleration(Twin):
    def filter(self, node: Json) -> Refusal | None:
        if has_untolerated(self.pod, node):
            return unresolvable("node(s) had untolerated taint(s)")
        return None

    def score(self, node: Json) -> int:
        soft = [
            each
            for each in self.pod["spec"].get("tolerations", [])
            if each.get("effect", "") in ("", "PreferNoSchedule")
        ]
        taints = node.get("spec", {}).get("taints", [])
        return sum(each["effect"] == "PreferNoSchedule" and not is_tolerated(each, soft) for each in taints)

    def normalize(self, scores: dict[str, int]) -> dict[str, int]:
        return in_proportion(scores, reverse=True)


class NodeAffinity(Twin):
    def pre_filter(self) -> Refusal | set[str] | str | None:
        required = node_affinity(self.pod).get(REQUIRED)
        if (
            required is None
            and self.added_required() is None
            and self.pod["spec"].get("nodeSelector") is None
        ):
            return SKIP
        terms = (required or {}).get("nodeSelectorTerms", [])
        names: set[str] = set()
        for term in terms:
            named = [
                set(each["values"])
                for each in term.get("matchFields", [])
                if each["key"] == "metadata.name" and each["operator"] == "In"
            ]
            if not named:
                return None
            names |= set.intersection(*named)
        if not terms:
            return None
        return names or unresolvable("pod affinity terms conflict")

    def filter(self, node: Json) -> Refusal | None:
        added = self.added_required()
        if added is not None and not any_node_term_holds(
            added.get("nodeSelectorTerms", []), labels_of(node), name_of(node)
        ):
            return unresolvable("node(s) didn't match scheduler-enforced node affinity")
        if not is_wanted_node(self.pod, node):
            return unresolvable("node(s) didn't match Pod's node affinity/selector")
        return None

    def pre_score(self, nodes: list[Json]) -> str | None:
        own = node_affinity(self.pod).get(PREFERRED)
        for each in own or []:
            if each["weight"] != 0:
                try:
                    check_node_term(each["preference"])
                except MistakeError:
                    raise CycleError("preferred node affinity") from None
        return SKIP if own is None and not self.added_preferred() else None

    def score(self, node: Json) -> int:
        total = 0
        for each in (*self.added_preferred(), *(node_affinity(self.pod).get(PREFERRED) or [])):
            if each["weight"] != 0 and node_term_holds(each["preference"], labels_of(node), name_of(node)):
                total += each["weight"]
        return total

    def normalize(self, scores: dict[str, int]) -> dict[str, int]:
        return in_proportion(scores, reverse=False)

    def added_required(self) -> Json | None:
        return self.args.get("addedAffinity", {}).get(REQUIRED)

    def added_preferred(self) -> list[Json]:
        return self.args.get("addedAffinity", {}).get(PREFERRED) or []


class NodeDeclaredFeatures(Twin):
    scores = False

    def pre_filter(self) -> str | None:
        return None if self.needed() else SKIP

    def filter(self, node: Json) -> Refusal | None:
        if not self.needed() <= set(node["status"].get("declaredFeatures", [])):
            return unresolvable("node(s) didn't match Pod's required features")
        return None

    def needed(self) -> set[str]:
        spec, needed = self.pod["spec"], set()
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            for rule in container.get("restartPolicyRules", []):
                if rule["action"] == "RestartAllContainers":
                    needed.add("RestartAllContainersOnContainerExits")
        if spec.get("hostNetwork") and spec.get("hostUsers") is False:
            needed.add("UserNamespacesHostNetworkSupport")
        return needed


class ImageLocality(Twin):
    filters = False

    def score(self, node: Json) -> int:
        spec = self.pod["spec"]
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        names = [each["image"] for each in containers]
        names += [each["image"]["reference"] for each in spec.get("volumes", []) if "image" in each]
        total = 0
        for name in map(self.with_tag, names):
            if name in self.images_of(node):
                holders = [each for each in self.world.nodes if name in self.images_of(each)]
                spread = float(len(holders)) / float(len(self.world.nodes))
                total += math.trunc(float(self.images_of(holders[0])[name]) * spread)
        most = 1000 * MIB * len(containers)
        total = min(max(total, 23 * MIB), most)
        return 100 * (total - 23 * MIB) // (most - 23 * MIB)

    @staticmethod
    def with_tag(name: str) -> str:
        return name if ":" in name.rpartition("/")[2] else name + ":latest"

    @staticmethod
    def images_of(node: Json) -> dict[str, int]:
        return {
            name: image["sizeBytes"] for image in node["status"].get("images", []) for name in image["names"]
        }
