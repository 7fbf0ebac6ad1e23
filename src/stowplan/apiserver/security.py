"""Pod Security: what the labels of a namespace let pods do (enforce), or warn of (warn).

The checks are those of the newest version of each level; a label may name an older one, which is only shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from stowplan.api.meta import Json
from stowplan.apiserver.failures import FieldError, invalid

Check = Callable[[Json, Json, list[Json]], "tuple[str, str] | None"]

PREFIX = "pod-security.kubernetes.io/"
LEVELS = ("privileged", "baseline", "restricted")
MAX_EXISTING = 3000
"""Pods of a namespace that are checked when its labels change, as kube-apiserver does."""
_VERSION = re.compile(r"latest|v1\.(0|[1-9][0-9]{0,8})")
_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    *(
        f"net.ipv4.{name}"
        for name in (
            *("ip_local_port_range", "tcp_syncookies", "ping_group_range", "ip_unprivileged_port_start"),
            *("ip_local_reserved_ports", "tcp_keepalive_time", "tcp_fin_timeout", "tcp_keepalive_intvl"),
            *("tcp_keepalive_probes", "tcp_rmem", "tcp_wmem"),
        )
    ),
}
_SELINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"),
    *("secret", "image"),
}
_TEMPLATES = {
    "deployments.apps",
    "replicasets.apps",
    "statefulsets.apps",
    "daemonsets.apps",
    "jobs.batch",
    "replicationcontrollers",
    "podtemplates",
    "cronjobs.batch",
}


def label_errors(labels: Json) -> Iterator[FieldError]:
    """Errors of a namespace's labels."""
    for mode in ("enforce", "audit", "warn"):
        at, level = f"metadata.labels[{PREFIX}{mode}]", labels.get(f"{PREFIX}{mode}")
        if level is not None and level not in LEVELS:
            yield invalid(at, level, f"must be one of {', '.join(LEVELS)}")
        version = labels.get(f"{PREFIX}{mode}-version")
        if version is not None and _VERSION.fullmatch(version) is None:
            at = f"metadata.labels[{PREFIX}{mode}-version]"
            yield invalid(at, version, 'must be "latest" or "v1.x"')


def template_in(resource: str, data: Json) -> Json | None:
    """The pod that an object is or makes: with `metadata` and `spec`."""
    if resource == "pods":
        return data
    if resource not in _TEMPLATES:
        return None
    if resource == "podtemplates":
        return data.get("template")
    spec = data.get("spec") or {}
    if resource == "cronjobs.batch":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    found: Json | None = spec.get("template")
    return found


def violations(labels: Json, mode: str, pod: Json) -> str:
    """How a pod violates a mode of a namespace's labels, in the API's words; empty if it does not."""
    level, version = _policy(labels, mode)
    found = _failed_checks(level, pod)
    if not found:
        return ""
    shown = ", ".join(f"{reason} ({detail})" if detail else reason for reason, detail in found)
    return f'PodSecurity "{level}:{version}": {shown}'


def warnings_about_existing(namespace: str, old: Json, new: Json, pods: Iterable[Json]) -> list[str]:
    """Warnings about pods that violate a stricter level of `enforce`, or another version of it."""
    (old_level, old_version), (level, version) = _policy(old, "enforce"), _policy(new, "enforce")
    if old_version == version and LEVELS.index(level) <= LEVELS.index(old_level):
        return []
    names: dict[str, list[str]] = {}
    for pod in islice(pods, MAX_EXISTING):
        if found := _failed_checks(level, pod):
            names.setdefault(", ".join(reason for reason, _ in found), []).append(pod["metadata"]["name"])
    if not names:
        return []
    policy = f'PodSecurity enforce level "{level}:{version}"'
    said = [f'existing pods in namespace "{namespace}" violate the new {policy}']
    for reasons, (first, *others) in names.items():
        more = f" (and {len(others)} other pod{'s' * (len(others) > 1)})" if others else ""
        said.append(f"{first}{more}: {reasons}")
    return said


def _policy(labels: Json, mode: str) -> tuple[str, str]:
    """Level and version of a mode."""
    level = labels.get(f"{PREFIX}{mode}", LEVELS[0])
    return level if level in LEVELS else LEVELS[0], labels.get(f"{PREFIX}{mode}-version", "latest")


def _failed_checks(level: str, pod: Json) -> list[tuple[str, str]]:
    """Reason and detail of each check that fails."""
    if level == LEVELS[0]:
        return []
    spec, meta = pod.get("spec") or {}, pod.get("metadata") or {}
    kinds = ("initContainers", "containers", "ephemeralContainers")
    containers = [each for kind in kinds for each in spec.get(kind) or ()]
    checks = BASELINE if level == "baseline" else RESTRICTED
    return [said for check in checks if (said := check(spec, meta, containers)) is not None]


def _quote(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _count_text(word: str, names: list[str]) -> str:
    """`container "a"` or `containers "a", "b"`."""
    return f"{word}{'s' if len(names) > 1 else ''} {_quote(names)}"


def _context(part: Json) -> Json:
    return part.get("securityContext") or {}


def _names(containers: list[Json], is_bad: Callable[[Json], bool]) -> list[str]:
    return [each.get("name", "") for each in containers if is_bad(_context(each))]


def _setters(spec: Json, containers: list[Json], is_bad: Callable[[Json], bool]) -> str:
    """`pod`, `container "a"`, or both, whichever sets something that is forbidden."""
    bad = _names(containers, is_bad)
    parts = ["pod"] if is_bad(_context(spec)) else []
    return " and ".join([*parts, *([_count_text("container", bad)] if bad else [])])


def _privileged(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    bad = _names(containers, lambda context: bool(context.get("privileged")))
    said = f"{_count_text('container', bad)} must not set securityContext.privileged=true"
    return ("privileged", said) if bad else None


def _host_namespaces(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    used = [f"{field}=true" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    return ("host namespaces", ", ".join(used)) if used else None


def _host_paths(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    bad = [each.get("name", "") for each in spec.get("volumes") or () if each.get("hostPath") is not None]
    return ("hostPath volumes", _count_text("volume", bad)) if bad else None


def _host_ports(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    ports: dict[str, set[int]] = {}
    for container in containers:
        for port in container.get("ports") or ():
            if port.get("hostPort"):
                ports.setdefault(container.get("name", ""), set()).add(port["hostPort"])
    if not ports:
        return None
    numbers = sorted({str(number) for used in ports.values() for number in used})
    use, many = "uses" if len(ports) == 1 else "use", "s" if len(numbers) > 1 else ""
    return (
        "hostPort",
        f"{_count_text('container', list(ports))} {use} hostPort{many} {', '.join(numbers)}",
    )


def _probe_hosts(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    hosts: set[str] = set()
    bad: set[str] = set()
    for container in containers:
        handlers = [container.get(f"{kind}Probe") for kind in ("liveness", "readiness", "startup")]
        handlers += [(container.get("lifecycle") or {}).get(kind) for kind in ("postStart", "preStop")]
        for handler in filter(None, handlers):
            for kind in ("httpGet", "tcpSocket"):
                if host := (handler.get(kind) or {}).get("host"):
                    hosts.add(host)
                    bad.add(container.get("name", ""))
    if not bad:
        return None
    use, many = "uses" if len(bad) == 1 else "use", "s" if len(hosts) > 1 else ""
    said = (
        f"{_count_text('container', sorted(bad))} {use} probe or lifecycle host{many} {_quote(sorted(hosts))}"
    )
    return "probe or lifecycle host", said


def _added_capabilities(context: Json) -> list[str]:
    return (context.get("capabilities") or {}).get("add") or []


def _capabilities(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    bad = _names(containers, lambda context: bool(set(_added_capabilities(context)) - _CAPABILITIES))
    wrong = sorted(
        {name for each in containers for name in _added_capabilities(_context(each))} - _CAPABILITIES
    )
    found = _count_text("container", bad)
    said = f"{found} must not include {_quote(wrong)} in securityContext.capabilities.add"
    return ("non-default capabilities", said) if bad else None


def _proc_mount(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    if spec.get("hostUsers") is False:
        return None
    bad = _names(containers, lambda context: context.get("procMount", "Default") != "Default")
    wrong = sorted({_context(each).get("procMount", "Default") for each in containers} - {"Default"})
    said = f"{_count_text('container', bad)} must not set securityContext.procMount to {_quote(wrong)}"
    return ("procMount", said) if bad else None


def _selinux(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    def is_bad(context: Json) -> bool:
        options = context.get("seLinuxOptions") or {}
        is_wrong_type = options.get("type", "") not in _SELINUX
        return is_wrong_type or bool(options.get("user")) or bool(options.get("role"))

    setters = _setters(spec, containers, is_bad)
    if not setters:
        return None
    used = [_context(part).get("seLinuxOptions") or {} for part in (spec, *containers)]
    wrong = sorted({each.get("type", "") for each in used} - _SELINUX)
    said = [f"type{'s' if len(wrong) > 1 else ''} {_quote(wrong)}"] if wrong else []
    said += [f"{field} may not be set" for field in ("user", "role") if any(each.get(field) for each in used)]
    return "seLinuxOptions", f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(said)}"


def _profile(context: Json, kind: str) -> str | None:
    found: str | None = (context.get(kind) or {}).get("type")
    return found


def _app_armor(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    known = (None, "RuntimeDefault", "Localhost")

    def is_bad(context: Json) -> bool:
        return _profile(context, "appArmorProfile") not in known

    setters = _setters(spec, containers, is_bad)
    if not setters:
        return None
    kinds = {_profile(_context(part), "appArmorProfile") for part in (spec, *containers)}
    wrong = sorted(each for each in kinds if each not in known and each is not None)
    reason = f"forbidden AppArmor profile{'s' if len(wrong) > 1 else ''}"
    return reason, f"{setters} must not set AppArmor profile type to {_quote(wrong)}"


def _seccomp(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    known = (None, "RuntimeDefault", "Localhost")

    def is_bad(context: Json) -> bool:
        return _profile(context, "seccompProfile") not in known

    setters = _setters(spec, containers, is_bad)
    if not setters:
        return None
    kinds = {_profile(_context(part), "seccompProfile") for part in (spec, *containers)}
    wrong = sorted(each for each in kinds if each not in known and each is not None)
    return (
        "seccompProfile",
        f"{setters} must not set securityContext.seccompProfile.type to {_quote(wrong)}",
    )


def _sysctls(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    used = [each.get("name", "") for each in _context(spec).get("sysctls") or ()]
    bad = [name for name in used if name not in _SYSCTLS]
    return ("forbidden sysctls", ", ".join(bad)) if bad else None


def _host_process(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    setters = _setters(
        spec, containers, lambda context: bool((context.get("windowsOptions") or {}).get("hostProcess"))
    )
    said = f"{setters} must not set securityContext.windowsOptions.hostProcess=true"
    return ("hostProcess", said) if setters else None


# Restricted.


def _is_windows(spec: Json) -> bool:
    return (spec.get("os") or {}).get("name") == "windows"


def _escalation(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    bad = _names(containers, lambda context: context.get("allowPrivilegeEscalation") is not False)
    said = f"{_count_text('container', bad)} must set securityContext.allowPrivilegeEscalation=false"
    return ("allowPrivilegeEscalation != false", said) if bad and not _is_windows(spec) else None


def _few_capabilities(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    def keeps(context: Json) -> bool:
        return "ALL" not in ((context.get("capabilities") or {}).get("drop") or ())

    allowed = {"NET_BIND_SERVICE"}
    keeping = _names(containers, keeps)
    adding = _names(containers, lambda context: bool(set(_added_capabilities(context)) - allowed))
    wrong = sorted({name for each in containers for name in _added_capabilities(_context(each))} - allowed)
    said = []
    if keeping:
        said.append(f'{_count_text("container", keeping)} must set securityContext.capabilities.drop=["ALL"]')
    if adding:
        listed = f"must not include {_quote(wrong)} in securityContext.capabilities.add"
        said.append(f"{_count_text('container', adding)} {listed}")
    return ("unrestricted capabilities", "; ".join(said)) if said and not _is_windows(spec) else None


def _few_volumes(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    kinds = {
        each.get("name", ""): next((key for key in each if key != "name"), "unknown")
        for each in spec.get("volumes") or ()
    }
    bad = [name for name, kind in kinds.items() if kind not in _VOLUMES]
    wrong = sorted({kinds[name] for name in bad})
    use, many = "uses" if len(bad) == 1 else "use", "s" if len(wrong) > 1 else ""
    said = f"{_count_text('volume', bad)} {use} restricted volume type{many} {_quote(wrong)}"
    return ("restricted volume types", said) if bad else None


def _non_root(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    if spec.get("hostUsers") is False:
        return None
    reason = "runAsNonRoot != true"
    setters = _setters(spec, containers, lambda context: context.get("runAsNonRoot") is False)
    if setters:
        return reason, f"{setters} must not set securityContext.runAsNonRoot=false"
    if _context(spec).get("runAsNonRoot"):
        return None
    bad = _names(containers, lambda context: context.get("runAsNonRoot") is None)
    said = f"pod or {_count_text('container', bad)} must set securityContext.runAsNonRoot=true"
    return (reason, said) if bad else None


def _not_user_zero(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    setters = _setters(spec, containers, lambda context: context.get("runAsUser") == 0)
    relaxed = spec.get("hostUsers") is False
    return ("runAsUser=0", f"{setters} must not set runAsUser=0") if setters and not relaxed else None


def _some_seccomp(spec: Json, meta: Json, containers: list[Json]) -> tuple[str, str] | None:
    if _is_windows(spec):
        return None
    if (said := _seccomp(spec, meta, containers)) is not None:
        return said
    if _profile(_context(spec), "seccompProfile") is not None:
        return None
    bad = _names(containers, lambda context: _profile(context, "seccompProfile") is None)
    words = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return ("seccompProfile", f"pod or {_count_text('container', bad)} {words}") if bad else None


_BOTH: tuple[Check, ...] = (
    _app_armor,
    _capabilities,
    _host_namespaces,
    _host_paths,
    _host_ports,
    _probe_hosts,
    _privileged,
    _proc_mount,
    _selinux,
    _seccomp,
    _sysctls,
    _host_process,
)
BASELINE = _BOTH
RESTRICTED: tuple[Check, ...] = (
    *(each for each in _BOTH if each not in (_capabilities, _host_paths, _seccomp)),
    _escalation,
    _few_capabilities,
    _few_volumes,
    _non_root,
    _not_user_zero,
    _some_seccomp,
)
