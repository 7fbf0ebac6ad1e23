"""Read manifests and the output of `kubectl get`: YAML or JSON, from files, directories or standard input.

Errors in files are collected instead of raised, so that a user sees all of them at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec
import yaml

from stowplan.api.amounts import reject_negative_amounts, reject_unserved_values
from stowplan.api.custom import CustomResource
from stowplan.api.defaults import Plain, default_storage_class, with_defaults, with_namespace
from stowplan.api.kinds import KINDS, describe, object_of
from stowplan.api.meta import Object, decode
from stowplan.api.names import POD
from stowplan.api.nesting import cut_deep_values
from stowplan.api.pod import Pod
from stowplan.api.storage import StorageClass
from stowplan.api.workloads import PriorityClass
from stowplan.errors import InputError
from stowplan.yaml_nesting import find_alias_fault, is_too_deep

STDIN = "-"
SUFFIXES = (".json", ".yaml", ".yml")
WORKLOADS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController")
"""Kinds that create pods from a template."""
JOB_SET_NAME, MAX_JOBS = "jobset.sigs.k8s.io/jobset-name", 10_000
CLASSES = ("PriorityClass", "StorageClass")
READ = frozenset((POD, *KINDS))
NAMES: dict[type, str] = {Pod: POD, **{kind: name for name, kind in KINDS.items()}}
GROUP_OF = {
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), "apps"),
    "Job": "batch",
    "PodDisruptionBudget": "policy",
    "PriorityClass": "scheduling.k8s.io",
    **dict.fromkeys(
        ("StorageClass", "CSINode", "CSIDriver", "CSIStorageCapacity", "VolumeAttachment"), "storage.k8s.io"
    ),
    **dict.fromkeys(
        ("ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceClass"), "resource.k8s.io"
    ),
}
"""API groups by kind, to tell a Service from another group's kind of that name; without the core group."""


class Found(NamedTuple):
    """A document or a list item, with its file and its place in the file."""

    file: str
    place: str
    data: Any


class Follower(Protocol):
    """Follows the objects of manifests as they are added: a Cluster."""

    def apply(self, item: Pod | Object) -> object: ...


class Manifests:
    """The objects of the files. Of an object given twice, the last one counts.

    `kinds` are the kinds that plugins watch, read besides those that every scheduler uses.
    """

    def __init__(self, namespace: str = "default", kinds: Iterable[type[CustomResource]] = ()) -> None:
        self.namespace = namespace
        self._kinds: dict[str, list[type[CustomResource]]] = {}
        for kind in kinds:
            self._kinds.setdefault(kind.definition.api_version, []).append(kind)
        self.objects: dict[tuple[str, str], Pod | Object] = {}
        self.workloads: dict[tuple[str, str], Plain] = {}
        """Objects with a pod template as plain data, by kind and key."""
        self.ignored: Counter[str] = Counter()
        """How many objects of each kind were ignored because they do not affect scheduling."""
        self.faults: list[InputError] = []
        self.unserved: tuple[type[CustomResource], ...] = ()
        """Kinds that plugins watch but the API server does not serve."""
        self.server_minor: int | None = None
        """The minor version of the API server that the objects were read from, if known."""
        self.follower: Follower | None = None
        """Was built from the objects given to `take`, and gets those added later."""
        self.priority_classes: dict[str, PriorityClass] = {}
        self.storage_class: str | None = None
        self._numbers = count(1)
        self._job_count = 0
        """Jobs of JobSets so far."""

    @property
    def pods(self) -> dict[str, Pod]:
        return {key: item for (_, key), item in self.objects.items() if isinstance(item, Pod)}

    def pod(self, key: str) -> Pod | None:
        found = self.objects.get((POD, key))
        return found if isinstance(found, Pod) else None

    def add(self, found: Iterable[Found]) -> None:
        """Add objects, classes first: the defaults of pods and claims depend on them."""
        concerning = [each for one in found for each in self._jobs_of(one) if self._concerns_scheduling(each)]
        for each in concerning:
            if each.data["kind"] in CLASSES:
                self._put(each)
        self._note_classes()
        for each in concerning:
            if each.data["kind"] not in CLASSES:
                self._put(each)

    def take(
        self,
        objects: Iterable[Pod | Object],
        unserved: Iterable[type[CustomResource]] = (),
        follower: Follower | None = None,
    ) -> None:
        """Add objects that an API server has completed, such as those of a `client.reading.Reading`.

        `follower` may be a cluster that was built from them while they arrived.
        """
        for item in objects:
            self.objects[_name_of_kind(type(item)), item.key] = item
        self.unserved += tuple(unserved)
        self.follower = follower
        self._note_classes()

    def _note_classes(self) -> None:
        known = self.objects.values()
        self.priority_classes = {each.name: each for each in known if isinstance(each, PriorityClass)}
        self.storage_class = default_storage_class(each for each in known if isinstance(each, StorageClass))

    def _jobs_of(self, found: Found) -> Iterator[Found]:
        """The Jobs of a JobSet; any other object as it is."""
        data = found.data
        if not isinstance(data, dict) or data.get("kind") != "JobSet" or not _is_job_set(data):
            yield found
            return
        meta = data["metadata"]
        for part in data["spec"]["replicatedJobs"]:
            template = part["template"]
            for number in range(part.get("replicas", 1)):
                self._job_count += 1
                if self._job_count > MAX_JOBS:
                    text = f"more than {MAX_JOBS} Jobs of JobSets; lower spec.replicatedJobs[].replicas"
                    self.faults.append(InputError(text, where=found.file, what=f"JobSet {meta['name']}"))
                    return
                own = {**(template.get("metadata") or {}), "name": f"{meta['name']}-{part['name']}-{number}"}
                own |= {"namespace": meta["namespace"]} if "namespace" in meta else {}
                own["labels"] = {**(own.get("labels") or {}), JOB_SET_NAME: meta["name"]}
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": template["spec"]}
                yield Found(found.file, found.place, job)

    def decode_object(self, data: Plain) -> Pod | Object:
        """Decode an object as a scheduler sees it; for a kind it does not use, only the metadata."""
        try:
            reject_unserved_values(data)
            item = object_of(with_defaults(data, self.priority_classes, self.storage_class))
            item = item or decode(Object, data)
            if not item.name:
                raise InputError("is required", field="metadata.name")
            reject_negative_amounts(item)
            return item
        except InputError as error:
            raise InputError(error.message, what=error.what or describe(data), field=error.field) from None

    def _concerns_scheduling(self, found: Found) -> bool:
        data = found.data
        if not isinstance(data, dict) or not all(
            isinstance(data.get(each), str) for each in ("apiVersion", "kind")
        ):
            message = "is not a Kubernetes object: it needs at least apiVersion, kind and metadata"
            self.faults.append(InputError(message, where=found.file, what=found.place))
            return False
        if not self._custom_kinds(data) and not _is_known(data):
            self.ignored[data["kind"]] += 1
            return False
        return True

    def _custom_kinds(self, data: Plain) -> list[type[CustomResource]]:
        """The kinds that plugins declared for such an object.

        An API server identifies a kind by its plural, so a CRD whose kind equals the plural, apart from
        case, means the same kind.
        """
        return [
            kind
            for kind in self._kinds.get(data["apiVersion"], ())
            if data["kind"] == kind.definition.kind or data["kind"].lower() == kind.definition.plural
        ]

    def _put(self, found: Found) -> None:
        try:
            data = self._fill_name(found.data)
            for kind in self._custom_kinds(data):
                self._put_custom(kind, data)
            if _is_known(data):  # a plugin may also watch such a kind, for fields that schedulers do not read
                self._put_known(with_namespace(data, self.namespace))
        except InputError as error:
            fault = InputError(error.message, where=found.file, what=error.what, field=error.field)
            self.faults.append(fault)
        except RecursionError:
            fault = InputError("is nested too deeply", where=found.file)
            self.faults.append(fault)

    def _put_custom(self, kind: type[CustomResource], data: Plain) -> None:
        try:
            item = decode(kind, data)
        except InputError as error:
            raise InputError(error.message, what=describe(data), field=error.field) from None
        if not item.name:
            raise InputError("is required", what=describe(data), field="metadata.name")
        namespace = (item.namespace or self.namespace) if kind.definition.namespaced else ""
        meta = msgspec.structs.replace(item.metadata, namespace=namespace)
        item = msgspec.structs.replace(item, metadata=meta)
        self.objects[_name_of_kind(kind), item.key] = item

    def _put_known(self, data: Plain) -> None:
        item = self.decode_object(data)
        if data["kind"] in READ:
            self.objects[data["kind"], item.key] = item
            if self.follower is not None:
                self.follower.apply(item)
        if data["kind"] in WORKLOADS:
            self.workloads[data["kind"], item.key] = data

    def _fill_name(self, data: Plain) -> Plain:
        """Complete a generateName with a number, where the API server would use a random suffix."""
        meta = data.get("metadata")
        if not isinstance(meta, dict) or meta.get("name") or not isinstance(meta.get("generateName"), str):
            return data
        return data | {"metadata": meta | {"name": f"{meta['generateName']}{next(self._numbers)}"}}


def _is_job_set(data: dict[str, object]) -> bool:
    """Whether it has all that is needed to know its Jobs."""
    meta, spec = data.get("metadata"), data.get("spec")
    parts = spec.get("replicatedJobs") if isinstance(spec, dict) else None
    return (
        str(data.get("apiVersion")).startswith("jobset.x-k8s.io/")
        and isinstance(meta, dict)
        and isinstance(meta.get("name"), str)
        and isinstance(parts, list)
        and all(
            isinstance(part, dict)
            and isinstance(part.get("name"), str)
            and isinstance(part.get("replicas", 1), int)
            and isinstance(part.get("template"), dict)
            and isinstance(part["template"].get("spec"), dict)
            and isinstance(part["template"].get("metadata") or {}, dict)
            and isinstance((part["template"].get("metadata") or {}).get("labels") or {}, dict)
            for part in parts
        )
    )


def _name_of_kind(kind: type) -> str:
    return NAMES.get(kind) or f"{kind.__module__}:{kind.__qualname__}"


def _is_known(data: Plain) -> bool:
    """Whether it is of a kind that every scheduler uses."""
    group, slash, _ = data["apiVersion"].partition("/")
    is_ours = data["kind"] in READ or data["kind"] in WORKLOADS
    return is_ours and (group if slash else "") == GROUP_OF.get(data["kind"], "")


def read(
    sources: Iterable[str],
    stdin: BinaryIO,
    namespace: str = "default",
    kinds: Iterable[type[CustomResource]] = (),
) -> Manifests:
    """Read files, directories (not their subdirectories) and `-` for `stdin`."""
    manifests = Manifests(namespace, kinds)
    read_into(manifests, sources, stdin)
    return manifests


def read_into(manifests: Manifests, sources: Iterable[str], stdin: BinaryIO) -> None:
    manifests.add(objects_in(sources, stdin, manifests.faults))


def read_text(manifests: Manifests, name: str, text: str) -> None:
    """Add the objects of a text that came from no file; errors begin with `name`."""
    manifests.add(list(_objects(name, text.encode(), manifests.faults)))


def objects_in(sources: Iterable[str], stdin: BinaryIO, faults: list[InputError]) -> list[Found]:
    """All objects in the files; errors are added to `faults`."""
    found: list[Found] = []
    for source in sources:
        try:
            for name, text in _texts(source, stdin):
                found += _objects(name, text, faults)
        except OSError as error:
            where = error.filename or source
            faults.append(InputError(f"cannot be read: {error.strerror}", where=where))
        except InputError as error:
            faults.append(error)
    return found


def _texts(source: str, stdin: BinaryIO) -> Iterator[tuple[str, bytes]]:
    path = Path(source)
    if source == STDIN:
        yield "standard input", stdin.read()
    elif path.is_dir():
        files = [each for each in sorted(path.iterdir()) if each.suffix in SUFFIXES]
        if not files:
            raise InputError(f"contains no file that ends in {', '.join(SUFFIXES)}", where=source)
        for each in files:
            yield str(each), each.read_bytes()
    else:
        yield source, path.read_bytes()


def _objects(file: str, text: bytes, faults: list[InputError]) -> Iterator[Found]:
    empty = True
    try:
        for number, document in enumerate(_documents(text), start=1):
            if document is not None:
                empty = False
                yield from _split_list(Found(file, f"document {number}", document))
    except InputError as error:
        faults.append(InputError(error.message, where=file))
    else:
        if empty:
            faults.append(InputError("contains no Kubernetes object", where=file))


def _documents(text: bytes) -> Iterator[object]:
    try:
        if text.lstrip()[:1] in (b"{", b"["):
            yield _parse_json(text)
        elif is_too_deep(text):
            raise RecursionError
        elif fault := find_alias_fault(text):
            raise InputError(fault)
        else:
            yield from yaml.load_all(text, _Loader)
    except msgspec.DecodeError as error:
        raise InputError(_encoding_fault(text) or f"is not JSON: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"is not YAML: {place}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        said = f"is neither YAML nor JSON: {' '.join(str(error).split())}"
        raise InputError(_encoding_fault(text) or said) from None
    except RecursionError:
        raise InputError("is nested too deeply") from None


def _encoding_fault(text: bytes) -> str:
    """Where the text is not UTF-8; empty if it is."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        return f"is not UTF-8: line {line} has the byte 0x{text[error.start]:02x}; save the file as UTF-8"
    return ""


def _parse_json(text: bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except RecursionError:  # a cluster may hold such objects; nothing that matters is nested that deep
        return msgspec.json.decode(cut_deep_values(text))


def _split_list(found: Found) -> Iterator[Found]:
    """Split a list into its items, which need not repeat their kind."""
    data = found.data
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(data.get("items"), list):
        yield found
        return
    implied = (
        {"apiVersion": data.get("apiVersion"), "kind": kind.removesuffix("List")} if kind != "List" else {}
    )
    for index, item in enumerate(data["items"]):
        whole = implied | item if isinstance(item, dict) else item
        yield from _split_list(Found(found.file, f"{found.place}: items[{index}]", whole))


class _Loader(yaml.CSafeLoader):
    """YAML as kubectl reads it: dates and keys are strings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if all(isinstance(key, str) for key in found):
            return found
        return {key if isinstance(key, str) else json.dumps(key): value for key, value in found.items()}


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
