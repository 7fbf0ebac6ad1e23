"""Nodes by the dozen: a few words about one kind of node, in YAML, and how many of them there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml

from stowplan.api import quantity
from stowplan.api.meta import Json
from stowplan.errors import InputError, QuantityError
from stowplan.kubelet.statuses import node_of

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class NodeTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`name` has `{}` where the number goes, from 1 on; zones take turns."""

    count: int = 1
    name: str = "node-{}"
    cpu: str | int = "8"
    memory: str = "32Gi"
    pods: int = 110
    storage: str = "100Gi"
    labels: dict[str, str] = {}
    region: str = ""
    zones: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    """Each as `key=value:Effect` or `key:Effect`."""
    resources: dict[str, str | int] = {}
    """Extended ones, such as nvidia.com/gpu."""

    def nodes(self, now: float) -> Iterator[Json]:
        """Whole manifests, ready at this time."""
        for number in range(1, self.count + 1):
            name = self.name.replace("{}", str(number))
            yield node_of({"metadata": {"labels": self._labels(number)}, **self._rest()}, name, now)

    def _labels(self, number: int) -> dict[str, str]:
        found = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **self.labels}
        if self.region:
            found[REGION] = self.region
        if self.zones:
            found[ZONE] = self.zones[(number - 1) % len(self.zones)]
        return found

    def _rest(self) -> Json:
        capacity = {
            "cpu": str(self.cpu),
            "memory": self.memory,
            "pods": str(self.pods),
            "ephemeral-storage": self.storage,
            **{name: str(amount) for name, amount in self.resources.items()},
        }
        info = {"kubeletVersion": "v1.36.0", "operatingSystem": "linux", "architecture": "amd64"}
        spec = {"taints": [_taint(text) for text in self.taints]} if self.taints else {}
        return {"spec": spec, "status": {"capacity": capacity, "nodeInfo": _whole(info)}}


def read_templates(source: str) -> list[NodeTemplate]:
    """Read a number of nodes, YAML with one or more templates, or the name of a file with such YAML.

    `10`, `{count: 3, cpu: 16, zones: [a, b, c]}`, `nodes.yaml`.
    """
    text, where = source, "nodes"
    if not source.strip().isdecimal() and not source.lstrip().startswith(("{", "[", "-")):
        where = source
        try:
            text = Path(source).read_text()
        except OSError as error:
            takes = "--nodes takes a number, a template or a file of templates"
            raise InputError(f"cannot be read: {error.strerror}; {takes}", where=where) from None
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML: {error}", where=where) from None
    entries = found if isinstance(found, list) else [{"count": found} if isinstance(found, int) else found]
    return [_check(entry, f"{where}[{index}]") for index, entry in enumerate(entries)]


def _check(entry: object, where: str) -> NodeTemplate:
    try:
        template = msgspec.convert(entry, NodeTemplate)
    except msgspec.ValidationError as error:
        known = ", ".join(NodeTemplate.__struct_fields__)
        raise InputError(f"{error}; a template has {known}", where=where) from None
    if template.count > 1 and "{}" not in template.name:
        raise InputError(
            f"{template.count} nodes named {template.name!r}: write {{}} where their numbers go", where=where
        )
    named = ("count", "cpu", "memory", "pods", "storage")
    for name, amount in ({each: getattr(template, each) for each in named} | template.resources).items():
        try:
            is_negative = quantity.parse(amount) < 0
        except QuantityError as error:
            raise InputError(str(error), where=where, field=name) from None
        if is_negative:
            raise InputError(f"{amount} is negative; must be 0 or greater", where=where, field=name)
    for text in template.taints:
        _taint(text)
    return template


def _taint(text: str) -> Json:
    name, _, effect = text.rpartition(":")
    key, _, value = name.partition("=")
    if effect not in EFFECTS or not key:
        raise InputError(
            f"{text!r} is not a taint: write key=value:Effect or key:Effect with {', '.join(EFFECTS)}"
        )
    return {"key": key, "effect": effect, **({"value": value} if value else {})}


def _whole(info: Json) -> Json:
    """The API wants all fields of a node's info."""
    names = (
        "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion",
        "kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture",
    )  # fmt: skip
    return {name: info.get(name, "") for name in names}
