"""Nodes, namespaces, services, claims, volumes and the other kinds of the core group."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from stowplan.api.meta import Json
from stowplan.apiserver import times
from stowplan.apiserver.failures import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    required,
    too_long,
    unsupported,
)
from stowplan.apiserver.names import (
    config_key_errors,
    label_errors,
    label_key_errors,
    label_value_errors,
    subdomain_errors,
)
from stowplan.apiserver.security import label_errors as security_label_errors
from stowplan.apiserver.strategies.pod_defaults import default_template, round_amounts
from stowplan.apiserver.strategies.pod_validation import EFFECTS, pod_spec_errors
from stowplan.apiserver.strategies.strategy import Lookup, Strategy

NAME_LABEL = "kubernetes.io/metadata.name"
STORAGE_CLASSES = "storageclasses.storage.k8s.io"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
ACCOUNT_NAME = "kubernetes.io/service-account.name"
MAX_CONTENT = 1024 * 1024
"""Bytes in a config map or a secret."""
_SECRET_KEYS = {
    "dockercfg": (".dockercfg",),
    "dockerconfigjson": (".dockerconfigjson",),
    "ssh-auth": ("ssh-privatekey",),
    "tls": ("tls.crt", "tls.key"),
}
"""What secrets of these types must contain."""
_CLUSTER_IPS = 10 * 2**24 + 96 * 2**16
"""10.96.0.0, where cluster IPs are taken from."""


class NodeStrategy(Strategy):
    has_status = True
    fields = {"spec.unschedulable": "spec.unschedulable"}

    def default(self, data: Json) -> None:
        status = data.setdefault("status", {})
        for part in ("capacity", "allocatable"):
            round_amounts(status.get(part))
        if status.get("capacity") and not status.get("allocatable"):
            status["allocatable"] = dict(status["capacity"])

    def prepare_create(self, data: Json) -> None:
        """A new node brings its status along: kubelets register so."""

    def errors(self, data: Json) -> Iterator[FieldError]:
        seen: set[tuple[str, str]] = set()
        for index, taint in enumerate(data.get("spec", {}).get("taints") or []):
            at, key, effect = f"metadata.taints[{index}]", taint.get("key", ""), taint.get("effect", "")
            for said in label_key_errors(key):
                yield invalid(f"{at}.key", key, said)
            for said in label_value_errors(taint.get("value", "")):
                yield invalid(f"{at}.value", taint["value"], said)
            if not effect:
                yield required(f"{at}.effect")
            elif effect not in EFFECTS:
                yield unsupported(f"{at}.effect", effect, EFFECTS)
            if (key, effect) in seen:
                yield duplicate(f"{at}", f"{key}:{effect}")
            seen.add((key, effect))

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        yield from self.errors(data)  # the API checks taints twice
        was, now = old.get("spec", {}).get("providerID"), data.get("spec", {}).get("providerID")
        if was and was != now:
            yield forbidden(
                "spec.providerID", 'node updates may not change providerID except from "" to valid'
            )


class NamespaceStrategy(Strategy):
    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return label_errors(name)

    has_status = True
    returns_deleted = True
    fields = {"status.phase": "status.phase", "name": "metadata.name"}

    def default(self, data: Json) -> None:
        meta = data["metadata"]
        if meta.get("name"):
            meta["labels"] = {**(meta.get("labels") or {}), NAME_LABEL: meta["name"]}

    def admit(self, data: Json, lookup: Lookup) -> None:
        self.default(data)  # the name may have been generated since

    def prepare_create(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        if "kubernetes" not in (spec.get("finalizers") or []):
            spec["finalizers"] = [*(spec.get("finalizers") or []), "kubernetes"]
        data["status"] = {"phase": "Active"}

    def errors(self, data: Json) -> Iterator[FieldError]:
        yield from security_label_errors(data["metadata"].get("labels") or {})

    def is_held(self, data: Json) -> bool:
        return bool(data.get("spec", {}).get("finalizers"))

    def prepare_update(self, data: Json, old: Json) -> None:
        super().prepare_update(data, old)
        data["spec"] = old.get("spec", {})


class ServiceStrategy(Strategy):
    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return label_errors(name)

    has_status = True
    returns_deleted = True
    creates_on_update = True
    fields = {"spec.clusterIP": "spec.clusterIP", "spec.type": "spec.type"}

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        spec.setdefault("sessionAffinity", "None")
        spec.setdefault("type", "ClusterIP")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            if port.get("targetPort") in (None, 0, ""):
                port["targetPort"] = port["port"]
        if spec["type"] in ("NodePort", "LoadBalancer"):
            spec.setdefault("externalTrafficPolicy", "Cluster")
        if spec["type"] == "LoadBalancer":
            spec.setdefault("allocateLoadBalancerNodePorts", True)
        if spec["type"] != "ExternalName":
            spec.setdefault("internalTrafficPolicy", "Cluster")

    def admit(self, data: Json, lookup: Lookup) -> None:
        spec = data["spec"]
        if spec["type"] == "ExternalName":
            return
        if not spec.get("clusterIP"):
            spec["clusterIP"] = _free_address(
                {record.fields.get("spec.clusterIP") for record in lookup.all("services")}
            )
        spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if spec["type"] in ("NodePort", "LoadBalancer"):
            _take_node_ports(spec, lookup)

    def admit_update(self, data: Json, old: Json, lookup: Lookup) -> None:
        for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if not data["spec"].get(field) and old["spec"].get(field):
                data["spec"][field] = old["spec"][field]

    def prepare_create(self, data: Json) -> None:
        data["status"] = {"loadBalancer": {}}

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        ports = spec.get("ports") or []
        headless = spec.get("clusterIP") == "None"
        if not ports and not headless and spec["type"] != "ExternalName":
            yield required("spec.ports")
        names: set[str] = set()
        for index, port in enumerate(ports):
            at, name = f"spec.ports[{index}]", port.get("name", "")
            if len(ports) > 1 and not name:
                yield required(f"{at}.name")
            if name:
                for said in label_errors(name):
                    yield invalid(f"{at}.name", name, said)
                if name in names:
                    yield duplicate(f"{at}.name", name)
                names.add(name)
            if not 1 <= port.get("port", 0) <= 65535:
                yield invalid(f"{at}.port", port.get("port", 0), "must be between 1 and 65535, inclusive")
        for key, value in (spec.get("selector") or {}).items():
            for said in label_key_errors(key):
                yield invalid("spec.selector", key, said)
            for said in label_value_errors(value):
                yield invalid("spec.selector", value, said)
        kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
        if spec["type"] not in kinds:
            yield unsupported("spec.type", spec["type"], kinds)

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        was, now = old["spec"].get("clusterIP"), data["spec"].get("clusterIP")
        if was and was != now and data["spec"]["type"] == old["spec"]["type"] != "ExternalName":
            yield invalid("spec.clusterIPs[0]", now or "", "may not change once set")


def _free_address(taken: set[str | None]) -> str:
    number = _CLUSTER_IPS + 1
    while (address := ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))) in taken:
        number += 1
    return address


def _take_node_ports(spec: Json, lookup: Lookup) -> None:
    taken = {
        port.get("nodePort")
        for record in lookup.all("services")
        if b'"nodePort"' in record.body
        for port in record.data()["spec"].get("ports") or []
    }
    for port in spec.get("ports") or []:
        if not port.get("nodePort"):
            port["nodePort"] = next(number for number in range(30000, 32768) if number not in taken)
            taken.add(port["nodePort"])


class ClaimStrategy(Strategy):
    has_status = True
    returns_deleted = True

    def default(self, data: Json) -> None:
        data.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")

    def admit(self, data: Json, lookup: Lookup) -> None:
        spec, notes = data["spec"], data["metadata"].get("annotations") or {}
        if spec.get("storageClassName") is None and "volume.beta.kubernetes.io/storage-class" not in notes:
            marked = [
                found["metadata"]
                for record in lookup.all(STORAGE_CLASSES)
                if DEFAULT_CLASS.encode() in record.body
                and ((found := record.data())["metadata"].get("annotations") or {}).get(DEFAULT_CLASS)
                == "true"
            ]
            if marked:
                marked.sort(key=lambda each: each["name"])
                marked.sort(key=lambda each: each["creationTimestamp"], reverse=True)
                spec["storageClassName"] = marked[0]["name"]

    def prepare_create(self, data: Json) -> None:
        data["status"] = {"phase": "Pending"}

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        modes = spec.get("accessModes") or []
        if not modes:
            yield required("spec.accessModes", "at least 1 access mode is required")
        yield from _mode_errors(modes, "spec.accessModes")
        if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
            yield required("spec.resources[storage]")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        new, was = dict(data["spec"]), dict(old["spec"])
        for field in ("resources", "volumeAttributesClassName"):
            new.pop(field, None)
            was.pop(field, None)
        if not was.get("volumeName"):
            new.pop("volumeName", None)
            was.pop("volumeName", None)
        if not was.get("storageClassName"):
            new.pop("storageClassName", None)
            was.pop("storageClassName", None)
        if new != was:
            yield forbidden(
                "spec",
                "spec is immutable after creation except resources.requests and volumeAttributesClassName "
                "for bound claims",
            )


class VolumeStrategy(Strategy):
    checks_metadata_twice = False
    has_status = True
    returns_deleted = True

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
        spec.setdefault("volumeMode", "Filesystem")
        if spec.get("hostPath") is not None:
            spec["hostPath"].setdefault("type", "")

    def prepare_create(self, data: Json) -> None:
        data["status"] = {"phase": "Pending", "lastPhaseTransitionTime": times.now()}

    def errors(self, data: Json) -> Iterator[FieldError]:
        spec = data["spec"]
        if not spec.get("accessModes"):
            yield required("spec.accessModes")
        yield from _mode_errors(spec.get("accessModes") or [], "spec.accessModes")
        if not spec.get("capacity"):
            yield required("spec.capacity")
        known = {
            *("accessModes", "capacity", "claimRef", "mountOptions", "nodeAffinity", "storageClassName"),
            *("persistentVolumeReclaimPolicy", "volumeAttributesClassName", "volumeMode"),
        }
        if not set(spec) - known:
            yield required("spec", "must specify a volume type")


def _mode_errors(modes: list[str], at: str) -> Iterator[FieldError]:
    known = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
    for mode in modes:
        if mode not in known:
            yield unsupported(at, mode, known)


REFERENCE_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


class EventStrategy(Strategy):
    checks_metadata_twice = False
    creates_on_update = True

    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return ()

    fields = {
        **{f"involvedObject.{part}": f"involvedObject.{part}" for part in REFERENCE_FIELDS},
        "reason": "reason",
        "reportingComponent": "reportingComponent",
        "source": "source.component",
        "type": "type",
    }

    def errors(self, data: Json) -> Iterator[FieldError]:
        about = data.get("involvedObject") or {}
        namespace = data["metadata"].get("namespace", "")
        given = about.get("namespace", "")
        if given != namespace and not (not given and namespace in ("default", "kube-system")):
            yield invalid("involvedObject.namespace", given, "does not match event.namespace")


class NewEventStrategy(EventStrategy):
    """Events as events.k8s.io has them; kept as those of the core group."""

    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return subdomain_errors(name)

    checks_metadata_twice = True
    fields = {
        **{f"regarding.{part}": f"involvedObject.{part}" for part in REFERENCE_FIELDS},
        "reason": "reason",
        "reportingController": "reportingComponent",
        "type": "type",
    }


class ReplicationControllerStrategy(Strategy):
    has_status = True
    orphans_by_default = True
    has_generation = True
    fields = {"status.replicas": "status.replicas"}

    def default(self, data: Json) -> None:
        spec = data.setdefault("spec", {})
        spec.setdefault("replicas", 1)
        if spec.get("template") is not None:
            default_template(spec["template"])
            labels = spec["template"]["metadata"].get("labels")
            if labels:
                if not spec.get("selector"):
                    spec["selector"] = dict(labels)
                data["metadata"].setdefault("labels", dict(labels))

    def prepare_create(self, data: Json) -> None:
        data["status"] = {"replicas": 0}

    def errors(self, data: Json) -> Iterable[FieldError]:
        spec = data["spec"]
        if not spec.get("selector"):
            yield required("spec.selector")
        if spec.get("template") is None:
            yield required("spec.template")
        else:
            yield from pod_spec_errors(
                spec["template"]["spec"], "spec.template.spec", spec["template"]["metadata"]
            )


class ReturnsDeleted(Strategy):
    returns_deleted = True


class CreatedOnUpdate(Strategy):
    creates_on_update = True


class ConfigMapStrategy(Strategy):
    checks_updates_whole = True

    def errors(self, data: Json) -> Iterator[FieldError]:
        texts, binaries = data.get("data") or {}, data.get("binaryData") or {}
        for key in sorted(texts):
            yield from _key_errors(f"data[{key}]", key)
            if key in binaries:
                yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
        for key in sorted(binaries):
            yield from _key_errors(f"binaryData[{key}]", key)
        size = sum(len(each.encode()) for each in texts.values()) + _decoded_size(binaries)
        if size > MAX_CONTENT:
            yield too_long("[]", MAX_CONTENT)

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        yield from _immutable_errors(data, old, "data", "binaryData")
        yield from self.errors(data)


class SecretStrategy(Strategy):
    fields = {"type": "type"}
    checks_updates_whole = True

    def default(self, data: Json) -> None:
        data.setdefault("type", "Opaque")
        given = data.pop("stringData", None)
        if given:
            encoded = {key: base64.b64encode(value.encode()).decode() for key, value in given.items()}
            data["data"] = {**(data.get("data") or {}), **encoded}

    def errors(self, data: Json) -> Iterator[FieldError]:
        content = data.get("data") or {}
        for key in sorted(content):
            yield from _key_errors(f"data[{key}]", key)
        if _decoded_size(content) > MAX_CONTENT:
            yield too_long("data", MAX_CONTENT)
        kind = data["type"].removeprefix("kubernetes.io/")
        if data["type"] == "kubernetes.io/service-account-token":
            if not (data["metadata"].get("annotations") or {}).get(ACCOUNT_NAME):
                yield required(f"metadata.annotations[{ACCOUNT_NAME}]")
        elif kind == "basic-auth" and kind != data["type"]:
            if not {"username", "password"} & set(content):
                yield required("data[username]")
                yield required("data[password]")
        elif kind != data["type"]:
            for key in _SECRET_KEYS.get(kind, ()):
                if key not in content or (kind == "ssh-auth" and not content[key]):
                    yield required(f"data[{key}]")

    def update_errors(self, data: Json, old: Json) -> Iterator[FieldError]:
        if data["type"] != old["type"]:
            yield invalid("type", data["type"], "field is immutable")
        yield from _immutable_errors(data, old, "data")
        yield from self.errors(data)


def _key_errors(at: str, key: str) -> Iterator[FieldError]:
    for said in config_key_errors(key):
        yield invalid(at, key, said)


def _immutable_errors(data: Json, old: Json, *fields: str) -> Iterator[FieldError]:
    if not old.get("immutable"):
        return
    said = "field is immutable when `immutable` is set"
    if not data.get("immutable"):
        yield forbidden("immutable", said)
    for field in fields:
        if (data.get(field) or {}) != (old.get(field) or {}):
            yield forbidden(field, said)


def _decoded_size(content: dict[str, str]) -> int:
    """The decoded size of base64 values in bytes."""
    return sum(len(each) // 4 * 3 - each[-2:].count("=") for each in content.values())
