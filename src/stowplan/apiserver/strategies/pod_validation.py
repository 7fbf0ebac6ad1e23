"""Validation of a pod's spec, with the API server's messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stowplan.api.meta import Json
from stowplan.api.quantity import parse
from stowplan.apiserver.failures import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_found_value,
    required,
    unsupported,
)
from stowplan.apiserver.metadata import label_errors_of
from stowplan.apiserver.names import (
    group_name_errors,
    label_errors,
    label_key_errors,
    label_value_errors,
    subdomain_errors,
)

_PULL = ("Always", "IfNotPresent", "Never")
_MESSAGES = ("FallbackToLogsOnError", "File")
_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PROTOCOLS = ("SCTP", "TCP", "UDP")
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_SEGMENT = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = re.compile(rf"({_SEGMENT}[\./])*{_SEGMENT}")
_NOT_EPHEMERAL = (
    *("ports", "resources", "resizePolicy", "restartPolicy", "restartPolicyRules", "livenessProbe"),
    *("readinessProbe", "startupProbe", "lifecycle"),
)
_WHOLE = "must be an integer"


def pod_spec_errors(spec: Json, at: str, meta: Json) -> Iterator[FieldError]:
    volumes: Json = {}
    for index, volume in enumerate(spec.get("volumes") or []):
        yield from _volume_errors(volume, f"{at}.volumes[{index}]", volumes)
        volumes[volume.get("name", "")] = volume
    seen: set[str] = set()
    if not spec.get("containers"):
        yield required(f"{at}.containers")
    for index, container in enumerate(spec.get("containers") or []):
        yield from _container_errors(container, f"{at}.containers[{index}]", volumes, seen)
    for index, container in enumerate(spec.get("initContainers") or []):
        yield from _container_errors(container, f"{at}.initContainers[{index}]", volumes, seen)
    others = frozenset(seen)
    for index, container in enumerate(spec.get("ephemeralContainers") or []):
        here, name = f"{at}.ephemeralContainers[{index}]", container.get("name", "")
        yield from _container_errors(container, here, volumes, set())
        if name in seen:
            yield duplicate(f"{here}.name", name)
        seen.add(name)
        target = container.get("targetContainerName")
        if target and target not in others:
            yield not_found_value(f"{here}.targetContainerName", target)
        for field in _NOT_EPHEMERAL:
            if container.get(field):
                yield forbidden(f"{here}.{field}", "cannot be set for an Ephemeral Container")
    yield from _host_port_errors(spec, at)
    if spec.get("restartPolicy") not in _RESTART:
        yield unsupported(f"{at}.restartPolicy", spec.get("restartPolicy", ""), _RESTART)
    if spec.get("dnsPolicy") not in _DNS:
        yield unsupported(f"{at}.dnsPolicy", spec.get("dnsPolicy", ""), _DNS)
    if labels := spec.get("nodeSelector"):
        yield from node_selector_errors(labels, f"{at}.nodeSelector")
    if affinity := spec.get("affinity"):
        yield from affinity_errors(affinity, f"{at}.affinity")
    for said in subdomain_errors(spec["nodeName"]) if spec.get("nodeName") else ():
        yield invalid(f"{at}.nodeName", spec["nodeName"], said)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        yield invalid(f"{at}.activeDeadlineSeconds", deadline, "must be between 1 and 2147483647, inclusive")
    if sysctls := (spec.get("securityContext") or {}).get("sysctls"):
        yield from _sysctl_errors(sysctls, f"{at}.securityContext.sysctls")
    for field in ("hostname", "subdomain"):
        for said in label_errors(spec[field]) if spec.get(field) else ():
            yield invalid(f"{at}.{field}", spec[field], said)
    for index, toleration in enumerate(spec.get("tolerations") or []):
        yield from toleration_errors(toleration, f"{at}.tolerations[{index}]")
    for said in subdomain_errors(spec["priorityClassName"]) if spec.get("priorityClassName") else ():
        yield invalid(f"{at}.priorityClassName", spec["priorityClassName"], said)
    if constraints := spec.get("topologySpreadConstraints"):
        yield from spread_errors(constraints, f"{at}.topologySpreadConstraints")
    if gates := spec.get("schedulingGates"):
        yield from _gates_errors(gates, f"{at}.schedulingGates")
        if spec.get("nodeName"):
            yield forbidden(f"{at}.nodeName", "cannot be set until all schedulingGates have been cleared")
    if (group := spec.get("schedulingGroup")) is not None:
        yield from _membership_errors(group, f"{at}.schedulingGroup")
    for said in (
        label_key_errors(spec["schedulerName"])
        if spec.get("schedulerName") and "/" in spec["schedulerName"]
        else ()
    ):
        yield invalid(f"{at}.schedulerName", spec["schedulerName"], said)


def _sysctl_errors(sysctls: list[Json], at: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        here, name = f"{at}[{index}].name", sysctl.get("name", "")
        if not name:
            yield required(here)
        elif len(name) > 253 or not _SYSCTL.fullmatch(name):
            yield invalid(here, name, f"must have at most 253 characters and match regex ^{_SYSCTL.pattern}$")
        elif name in seen:
            yield duplicate(here, name)
        seen.add(name)


def _membership_errors(group: Json, at: str) -> Iterator[FieldError]:
    name, where = group.get("podGroupName"), f"{at}.podGroupName"
    if name is None:
        yield invalid(where, None, "must specify one of: `podGroupName`")
    else:
        yield from (invalid(where, name, why) for why in group_name_errors(name))


def _container_errors(container: Json, at: str, volumes: Json, seen: set[str]) -> Iterator[FieldError]:
    name = container.get("name", "")
    if not name:
        yield required(f"{at}.name")
    else:
        for said in label_errors(name):
            yield invalid(f"{at}.name", name, said)
    if name in seen:
        yield duplicate(f"{at}.name", name)
    elif name:
        seen.add(name)
    image = container.get("image", "")
    if not image:
        yield required(f"{at}.image")
    elif image != image.strip():
        yield invalid(f"{at}.image", image, "must not have leading or trailing whitespace")
    if container.get("terminationMessagePolicy") not in _MESSAGES:
        yield unsupported(
            f"{at}.terminationMessagePolicy", container.get("terminationMessagePolicy", ""), _MESSAGES
        )
    if ports := container.get("ports"):
        yield from _port_errors(ports, f"{at}.ports")
    if env := container.get("env"):
        yield from _env_errors(env, f"{at}.env")
    if mounts := container.get("volumeMounts"):
        yield from _mount_errors(mounts, f"{at}.volumeMounts", volumes)
    if container.get("imagePullPolicy") not in _PULL:
        yield unsupported(f"{at}.imagePullPolicy", container.get("imagePullPolicy", ""), _PULL)
    if resources := container.get("resources"):
        yield from resource_errors(resources, f"{at}.resources")


def _port_errors(ports: list[Json], at: str) -> Iterator[FieldError]:
    names: set[str] = set()
    for index, port in enumerate(ports):
        here, name = f"{at}[{index}]", port.get("name", "")
        if name:
            for said in port_name_errors(name):
                yield invalid(f"{here}.name", name, said)
            if name in names:
                yield duplicate(f"{here}.name", name)
            names.add(name)
        if not port.get("containerPort"):
            yield required(f"{here}.containerPort")
        elif not 1 <= port["containerPort"] <= 65535:
            yield invalid(
                f"{here}.containerPort", port["containerPort"], "must be between 1 and 65535, inclusive"
            )
        if port.get("hostPort") and not 1 <= port["hostPort"] <= 65535:
            yield invalid(f"{here}.hostPort", port["hostPort"], "must be between 1 and 65535, inclusive")
        if port.get("protocol") not in _PROTOCOLS:
            yield unsupported(f"{here}.protocol", port.get("protocol", ""), _PROTOCOLS)


def port_name_errors(name: str) -> Iterator[str]:
    if len(name) > 15:
        yield "must be no more than 15 characters"
    if not all(char.isascii() and (char.isdigit() or char.islower() or char == "-") for char in name):
        yield "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    if not any(char.islower() for char in name):
        yield "must contain at least one letter (a-z)"
    if "--" in name:
        yield "must not contain consecutive hyphens"
    if name.startswith("-") or name.endswith("-"):
        yield "must not begin or end with a hyphen"


def _host_port_errors(spec: Json, at: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, container in enumerate(spec.get("containers") or []):
        for number, port in enumerate(container.get("ports") or []):
            where = f"{at}.containers[{index}].ports[{number}].hostPort"
            host = port.get("hostPort")
            if not host:
                continue
            if spec.get("hostNetwork") and host != port.get("containerPort"):
                field = f"{at}.containers[{index}].ports[{number}].containerPort"
                yield invalid(
                    field, port.get("containerPort", 0), "must match `hostPort` when `hostNetwork` is true"
                )
            key = f"{port.get('protocol')}/{port.get('hostIP', '')}/{host}"
            if key in seen:
                yield duplicate(where, key)
            seen.add(key)


def _env_errors(env: list[Json], at: str) -> Iterator[FieldError]:
    for index, variable in enumerate(env):
        if not variable.get("name"):
            yield required(f"{at}[{index}].name")
        if variable.get("value") and variable.get("valueFrom") is not None:
            yield invalid(f"{at}[{index}].valueFrom", "", "may not be specified when `value` is not empty")


def _mount_errors(mounts: list[Json], at: str, volumes: Json) -> Iterator[FieldError]:
    paths: set[str] = set()
    for index, mount in enumerate(mounts):
        name, path = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            yield required(f"{at}[{index}].name")
        elif name not in volumes:
            yield not_found_value(f"{at}[{index}].name", name)
        if not path:
            yield required(f"{at}[{index}].mountPath")
        elif path in paths:
            yield invalid(f"{at}[{index}].mountPath", path, "must be unique")
        paths.add(path)


def _volume_errors(volume: Json, at: str, seen: Json) -> Iterator[FieldError]:
    name = volume.get("name", "")
    sources = [field for field in volume if field != "name"]
    if len(sources) > 1:
        yield forbidden(f"{at}.{sources[1]}", "may not specify more than 1 volume type")
    for source in sources[:1]:
        yield from _source_errors(source, volume[source], f"{at}.{source}")
    if not name:
        yield required(f"{at}.name")
    else:
        for said in label_errors(name):
            yield invalid(f"{at}.name", name, said)
    if name and name in seen:
        yield duplicate(f"{at}.name", name)


def _source_errors(kind: str, source: Json, at: str) -> Iterator[FieldError]:
    needed = {
        "secret": "secretName",
        "configMap": "name",
        "persistentVolumeClaim": "claimName",
        "hostPath": "path",
        "csi": "driver",
        "nfs": "server",
        "gcePersistentDisk": "pdName",
        "awsElasticBlockStore": "volumeID",
    }
    if kind in needed and not source.get(needed[kind]):
        yield required(f"{at}.{needed[kind]}")


def resource_errors(resources: Json, at: str) -> Iterator[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if name not in _STANDARD:
                yield from _resource_name_errors(name, f"{at}.{part}[{name}]")
            yield from quantity_errors(name, amount, f"{at}.{part}[{name}]")
    for name, amount in requests.items():
        if name in limits:
            if parse(amount) > parse(limits[name]):
                said = f"must be less than or equal to {name} limit of {limits[name]}"
                yield invalid(f"{at}.requests", amount, said)
            elif not _may_overcommit(name) and parse(amount) != parse(limits[name]):
                said = f"must be equal to {name} limit of {limits[name]}"
                yield invalid(f"{at}.requests", amount, said)
        elif not _may_overcommit(name):
            yield required(f"{at}.limits", "Limit must be set for non overcommitable resources")


def _may_overcommit(name: str) -> bool:
    return name in _STANDARD or ("/" not in name and not name.startswith("hugepages-"))


def _resource_name_errors(name: str, at: str) -> Iterator[FieldError]:
    for said in label_key_errors(name):
        yield invalid(at, name, said)
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        yield invalid(at, name, "must be a standard resource type or fully qualified")
        yield invalid(at, name, "must be a standard resource for containers")


def quantity_errors(name: str, amount: str, at: str) -> Iterator[FieldError]:
    nanos = parse(amount)
    if nanos < 0:
        yield invalid(at, amount, "must be greater than or equal to 0")
    is_counted = "/" in name and "kubernetes.io/" not in name
    if is_counted and nanos % 1_000_000_000:
        yield invalid(at, amount, _WHOLE)


def _gates_errors(gates: list[Json], at: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name", "")
        for said in label_key_errors(name):
            yield invalid(f"{at}[{index}]", name, said)
        if name in seen:
            yield duplicate(f"{at}[{index}]", name)
        seen.add(name)


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_WEIGHT = "must be in the range 1-100"
_OPERATORS = ("DoesNotExist", "Equal", "Exists", "Gt", "Lt")


def node_selector_errors(labels: Json, at: str) -> Iterator[FieldError]:
    yield from label_errors_of(labels, at)


def label_selector_errors(
    selector: Json | None, at: str, *, checks_values: bool = True
) -> Iterator[FieldError]:
    if selector is None:
        return
    yield from label_errors_of(selector.get("matchLabels") or {}, f"{at}.matchLabels")
    for index, term in enumerate(selector.get("matchExpressions") or []):
        here, operator, values = (
            f"{at}.matchExpressions[{index}]",
            term.get("operator"),
            term.get("values") or [],
        )
        if operator in ("In", "NotIn"):
            if not values:
                yield required(f"{here}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                yield forbidden(
                    f"{here}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        else:
            yield invalid(f"{here}.operator", operator or "", "not a valid selector operator")
        for said in label_key_errors(term.get("key", "")):
            yield invalid(f"{here}.key", term.get("key", ""), said)
        for number, value in enumerate(values if checks_values else ()):
            for said in label_value_errors(value):
                yield invalid(f"{here}.values[{number}]", value, said)


def affinity_errors(affinity: Json, at: str) -> Iterator[FieldError]:
    node = affinity.get("nodeAffinity") or {}
    if node.get(REQUIRED) is not None:
        yield from _node_selector(node[REQUIRED], f"{at}.nodeAffinity.{REQUIRED}")
    for index, term in enumerate(node.get(PREFERRED) or []):
        here = f"{at}.nodeAffinity.{PREFERRED}[{index}]"
        if not 1 <= term.get("weight", 0) <= 100:
            yield invalid(f"{here}.weight", term.get("weight", 0), _WEIGHT)
        yield from _node_term(term.get("preference") or {}, f"{here}.preference")
    for side in ("podAffinity", "podAntiAffinity"):
        group = affinity.get(side) or {}
        for index, term in enumerate(group.get(REQUIRED) or []):
            yield from _pod_term(term, f"{at}.{side}.{REQUIRED}[{index}]")
        for index, term in enumerate(group.get(PREFERRED) or []):
            here = f"{at}.{side}.{PREFERRED}[{index}]"
            if not 1 <= term.get("weight", 0) <= 100:
                yield invalid(f"{here}.weight", term.get("weight", 0), _WEIGHT)
            yield from _pod_term(term.get("podAffinityTerm") or {}, f"{here}.podAffinityTerm")


def _node_selector(selector: Json, at: str) -> Iterator[FieldError]:
    if not selector.get("nodeSelectorTerms"):
        yield required(f"{at}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in enumerate(selector.get("nodeSelectorTerms") or []):
        yield from _node_term(term, f"{at}.nodeSelectorTerms[{index}]")


def _node_term(term: Json, at: str) -> Iterator[FieldError]:
    for index, each in enumerate(term.get("matchExpressions") or []):
        yield from _node_requirement(each, f"{at}.matchExpressions[{index}]")
    for index, each in enumerate(term.get("matchFields") or []):
        yield from _field_requirement(each, f"{at}.matchFields[{index}]")


def _node_requirement(term: Json, at: str) -> Iterator[FieldError]:
    operator, values = term.get("operator", ""), term.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield forbidden(
                f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        yield invalid(f"{at}.operator", operator, "not a valid selector operator")
    for said in label_key_errors(term.get("key", "")):
        yield invalid(f"{at}.key", term.get("key", ""), said)


def _field_requirement(term: Json, at: str) -> Iterator[FieldError]:
    operator, values = term.get("operator", ""), term.get("values") or []
    if operator in ("In", "NotIn"):
        if len(values) != 1:
            yield required(
                f"{at}.values",
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )
    else:
        yield invalid(f"{at}.operator", operator, "not a valid selector operator")
    if term.get("key") != "metadata.name":
        yield invalid(f"{at}.key", term.get("key", ""), "not a valid field selector key")


def _pod_term(term: Json, at: str) -> Iterator[FieldError]:
    yield from label_selector_errors(term.get("labelSelector"), f"{at}.labelSelector")
    yield from label_selector_errors(term.get("namespaceSelector"), f"{at}.namespaceSelector")
    for index, name in enumerate(term.get("namespaces") or []):
        for said in label_errors(name):
            yield invalid(f"{at}.namespaces[{index}]", name, said)
    if not term.get("topologyKey"):
        yield required(f"{at}.topologyKey", "can not be empty")
    for said in label_key_errors(term.get("topologyKey") or ""):
        yield invalid(f"{at}.topologyKey", term.get("topologyKey") or "", said)


def toleration_errors(toleration: Json, at: str) -> Iterator[FieldError]:
    key, operator = toleration.get("key", ""), toleration.get("operator", "")
    value, effect = toleration.get("value", ""), toleration.get("effect", "")
    if key:
        for said in label_key_errors(key):
            yield invalid(f"{at}.key", key, said)
    if not key and operator != "Exists":
        said = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{at}.operator", operator, said)
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        said = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid(f"{at}.effect", effect, said)
    if operator in ("Equal", ""):
        for said in label_value_errors(value):
            yield invalid(f"{at}.operator", value, said)
    elif operator == "Exists":
        if value:
            yield invalid(f"{at}.operator", value, "value must be empty when `operator` is 'Exists'")
    else:
        yield unsupported(f"{at}.operator", operator, ("Equal", "Exists"))
    if effect and effect not in EFFECTS:
        yield unsupported(f"{at}.effect", effect, EFFECTS)


def spread_errors(constraints: list[Json], at: str) -> Iterator[FieldError]:
    pairs = [(each.get("topologyKey", ""), each.get("whenUnsatisfiable", "")) for each in constraints]
    for index, each in enumerate(constraints):
        here = f"{at}[{index}]"
        skew, key, action = (
            each.get("maxSkew", 0),
            each.get("topologyKey", ""),
            each.get("whenUnsatisfiable", ""),
        )
        if skew <= 0:
            yield invalid(f"{here}.maxSkew", skew, "must be greater than zero")
        if not key:
            yield required(f"{here}.topologyKey", "can not be empty")
        else:
            for said in label_key_errors(key):
                yield invalid(f"{here}.topologyKey", key, said)
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            yield unsupported(f"{here}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway"))
        if (key, action) in pairs[index + 1 :]:
            yield duplicate(f"{here}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
        domains = each.get("minDomains")
        if domains is not None:
            if domains <= 0:
                yield invalid(f"{here}.minDomains", domains, "must be greater than zero")
            if action != "DoNotSchedule":
                said = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                yield invalid(f"{here}.minDomains", domains, said)
        yield from label_selector_errors(each.get("labelSelector"), f"{here}.labelSelector")
