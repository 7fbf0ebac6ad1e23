"""Combine the command line and the configuration file: `parse` returns how to run the scheduler.

With --config, deprecated and old flags are ignored, and those of leader election override the file. Without
it, all flags override the defaults. A warning names each flag that is ignored or has no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from stowplan.api import quantity
from stowplan.client.kubeconfig import is_in_pod
from stowplan.config import (
    EXTENSION_POINTS,
    Duration,
    KubeSchedulerConfiguration,
    PluginEntry,
    ProfileConfig,
    load,
)
from stowplan.config.document import Source
from stowplan.config.field_errors import join_errors
from stowplan.config.gates import (
    RELEASE_MINOR,
    choose_features,
    gate_warnings,
    kept_features,
    read_versions,
    unserved_gates,
)
from stowplan.config.load import LoadedConfig
from stowplan.config.types import (
    DEFAULT_SCHEDULER_NAME,
    GROUP,
    MULTI_POINT,
    RETIRED_RESOURCE_LOCKS,
    V1,
    with_gates,
    with_groups,
)
from stowplan.config.validation import faults
from stowplan.errors import ConfigError, InputError
from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.log import Format
from stowplan.scheduler.flag_parser import Flag, read
from stowplan.scheduler.flags import (
    AUTHENTICATION,
    AUTHORIZATION,
    DEPRECATED,
    FLAGS,
    LEADER_ELECTION,
    OLD,
    SECURE_SERVING,
)
from stowplan.serving.options import ServingOptions

PROGRAM = "kube-scheduler"
RELEASE = "v1.36.4"
"""The kube-scheduler release whose decisions we match."""
Given = dict[str, Any]
T = TypeVar("T", bound=msgspec.Struct)

# Flags that set a field of the configuration, by the struct that has it.
_ELECTION_FIELDS = {
    "lock-object-name": "resource_name",
    "lock-object-namespace": "resource_namespace",
    "leader-elect": "leader_elect",
    "leader-elect-lease-duration": "lease_duration",
    "leader-elect-renew-deadline": "renew_deadline",
    "leader-elect-retry-period": "retry_period",
    "leader-elect-resource-lock": "resource_lock",
    "leader-elect-resource-name": "resource_name",
    "leader-elect-resource-namespace": "resource_namespace",
}
_CLIENT_FIELDS = {
    "kubeconfig": "kubeconfig",
    "kube-api-content-type": "content_type",
    "kube-api-qps": "qps",
    "kube-api-burst": "burst",
}
_OTHER_FIELDS = {"profiling": "enable_profiling", "contention-profiling": "enable_contention_profiling"}


class AccessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to authenticate and authorize clients of the HTTPS server.

    Without a kubeconfig, the pod's service account is used. The lookup is for the CA of client certificates,
    in the ConfigMap kube-system/extension-apiserver-authentication.
    """

    authentication_kubeconfig: str
    authentication_skip_lookup: bool
    authentication_tolerate_lookup_failure: bool
    authorization_kubeconfig: str


class LogOptions(msgspec.Struct, frozen=True, kw_only=True):
    verbosity: int
    format: Format


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the decisions kept in memory, and on disk if a directory is given."""

    memory: int
    directory: str
    size: int
    age: Duration


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to run. Without `kubeconfig` and `master`, the pod's service account is used.

    `policy_config_map` is `namespace/name` of a Policy in the cluster: fetch it, then `parse` `argv` again
    with it. To read a changed file, also parse `argv` again.
    """

    argv: tuple[str, ...]
    config: KubeSchedulerConfiguration
    policy_config_map: str
    kubeconfig: str
    master: str
    write_config_to: str
    pod_max_in_unschedulable: Duration
    seed: int | None
    extender_max_response_bytes: int
    plugin_dirs: tuple[str, ...]
    journal: JournalOptions
    record: str
    """Where a trace of the cluster is recorded; empty for nowhere."""
    serving: ServingOptions
    access: AccessOptions
    logs: LogOptions
    feature_gates: dict[str, bool]
    emulated_minor: int | None
    """The minor of --emulated-version; None to follow the API server."""


class Parsed(NamedTuple):
    options: RunOptions
    warnings: list[str]


def parse(
    argv: Sequence[str],
    *,
    program: str = PROGRAM,
    registry: Registry | None = None,
    policy: Source | None = None,
    server_minor: int | None = None,
) -> Parsed:
    """Read the flags and the configuration file; raise an InputError if they are invalid.

    Without --emulated-version, features are those of `server_minor` if the API server is older than 1.36.
    """
    given = read(argv, FLAGS, program)
    values = {name: given.get(name, flag.default) for name, flag in FLAGS.items()}
    if bool(values["tls-cert-file"]) != bool(values["tls-private-key-file"]):
        raise InputError("--tls-cert-file and --tls-private-key-file must be given together")
    loaded = _load(given, registry or Registry.installed(values["plugin-dir"]), policy)
    emulated = read_versions(values["emulated-version"], values["min-compatibility-version"])
    server = server_minor if emulated is None else None
    features = choose_features(values["feature-gates"], emulated or RELEASE_MINOR, server)
    config = with_gates(_apply_flags(loaded.config, given), *features)
    config = with_groups(config) if values["groups"] else config
    options = RunOptions(
        argv=tuple(argv),
        config=config,
        policy_config_map=loaded.policy_config_map,
        kubeconfig=config.client_connection.kubeconfig or _kubeconfig_beside(given, config),
        master=values["master"],
        write_config_to=values["write-config-to"],
        pod_max_in_unschedulable=values["pod-max-in-unschedulable-pods-duration"],
        seed=values["seed"],
        extender_max_response_bytes=_bytes(values["extender-max-response-bytes"]),
        plugin_dirs=tuple(values["plugin-dir"]),
        journal=JournalOptions(
            memory=_bytes(values["decisions-memory"]),
            directory=values["journal"],
            size=_bytes(values["journal-size"]),
            age=values["journal-age"],
        ),
        record=values["record"],
        serving=_make_struct(ServingOptions, values),
        access=_make_struct(AccessOptions, values),
        logs=LogOptions(verbosity=values["v"], format=values["logging-format"]),
        feature_gates=values["feature-gates"],
        emulated_minor=emulated,
    )
    emulation = [*_emulation_warnings(emulated, values["feature-gates"])]
    emulation += (
        f"--feature-gates: {name}=true has no effect: a Kubernetes 1.{server} API server does not serve "
        "the ResourceClaims that it needs by default"
        for name in unserved_gates(values["feature-gates"], server)
    )
    return Parsed(options, [*_warnings(given, config), *emulation, *loaded.warnings])


def _kubeconfig_beside(given: Given, config: KubeSchedulerConfiguration) -> str:
    """The flag --kubeconfig, where --config is given too and there is no other way to reach the cluster.

    parity: kube-scheduler ignores the flag then, and cannot start outside of a pod.
    """
    if config.client_connection.kubeconfig or not given.get("config") or given.get("master") or is_in_pod():
        return ""
    found: str = given.get("kubeconfig", "")
    return found


def _bytes(size: str) -> int:
    return quantity.parse(size) // quantity.NANO


def _load(given: Given, registry: Registry, policy: Source | None) -> LoadedConfig:
    file = given.get("config")
    source = Path(file) if file else _document(given)
    config, warnings, config_map = load(source, registry, policy=policy)
    if config_map:
        warnings = warnings[:-1]  # It says that the policy was not read; the scheduler fetches it.
    if file:
        return LoadedConfig(config, [f"{file}: {warning}" for warning in warnings], config_map)
    return LoadedConfig(config, [f"--{_policy_flag(given)}: {text}" for text in warnings], config_map)


def _document(given: Given) -> dict[str, Any]:
    """The configuration that old flags stand for: v1alpha1 if there is a Policy, else v1."""
    scheduler_name = given.get("scheduler-name") or DEFAULT_SCHEDULER_NAME
    weight = given.get("hard-pod-affinity-symmetric-weight")
    flag = _policy_flag(given)
    if flag:
        named: dict[str, Any] = {"file": {"path": given[flag]}}
        if flag == "policy-configmap":
            namespace = given.get("policy-configmap-namespace", FLAGS["policy-configmap-namespace"].default)
            named = {"configMap": {"name": given[flag], "namespace": namespace}}
        document = {
            "apiVersion": f"{GROUP}/v1alpha1",
            "schedulerName": scheduler_name,
            "hardPodAffinitySymmetricWeight": weight,
            "algorithmSource": {"policy": named},
        }
    else:
        args = [("InterPodAffinity", {"hardPodAffinityWeight": weight})] if weight is not None else []
        if _fills_nodes_up(given):
            args.append(("NodeResourcesFit", {"scoringStrategy": {"type": "MostAllocated"}}))
        plugin_config = [{"name": name, "args": fields} for name, fields in args]
        profile = {"schedulerName": scheduler_name, "pluginConfig": plugin_config}
        document = {"apiVersion": V1, "profiles": [profile]}
    return {"kind": "KubeSchedulerConfiguration", **document}


def _policy_flag(given: Given) -> str:
    """The flag with the Policy that is used, if any."""
    order = ["policy-configmap", "policy-config-file"]
    if given.get("use-legacy-policy-config"):
        order.reverse()
    return next((name for name in order if given.get(name)), "")


def _fills_nodes_up(given: Given) -> bool:
    provider: str = given.get("algorithm-provider") or "DefaultProvider"
    if provider not in ("DefaultProvider", "ClusterAutoscalerProvider"):
        raise InputError(
            f'--algorithm-provider: "{provider}" is neither DefaultProvider nor ClusterAutoscalerProvider'
        )
    return provider == "ClusterAutoscalerProvider"


def _apply_flags(config: KubeSchedulerConfiguration, given: Given) -> KubeSchedulerConfiguration:
    """Apply the flags to the configuration and validate it again."""
    if given.get("config"):
        given = {flag.name: given[flag.name] for flag in LEADER_ELECTION if flag.name in given}
    election = _fields(_ELECTION_FIELDS, given)
    if election.get("resource_lock") in RETIRED_RESOURCE_LOCKS:
        election["resource_lock"] = "leases"
    changed = msgspec.structs.replace(
        config,
        leader_election=msgspec.structs.replace(config.leader_election, **election),
        client_connection=msgspec.structs.replace(config.client_connection, **_fields(_CLIENT_FIELDS, given)),
        **_fields(_OTHER_FIELDS, given),
    )
    if found := list(faults(changed, {})):
        raise ConfigError(join_errors(found), stage="validate")
    return changed


def _fields(flags: dict[str, str], given: Given) -> dict[str, Any]:
    return {field: given[name] for name, field in flags.items() if name in given}


def _make_struct(kind: type[T], values: dict[str, Any]) -> T:
    """A struct whose fields are named like flags."""
    names = [field.name for field in msgspec.structs.fields(kind)]
    return kind(**{name: values[name.replace("_", "-")] for name in names})


def _warnings(given: Given, config: KubeSchedulerConfiguration) -> Iterator[str]:
    """A warning for each flag that is old, ignored or without effect."""
    file = given.get("config")
    used = {"kubeconfig"} if _kubeconfig_beside(given, config) else set()
    for flag in FLAGS.values():
        if flag.name in given and flag.name not in used:
            yield from _flag_warnings(flag, given[flag.name], file)
    yield from gate_warnings(given.get("feature-gates", {}))
    if not file:
        yield from _overridden_warnings(given)
    if given.get("leader-elect-resource-lock") in RETIRED_RESOURCE_LOCKS:
        yield f"--leader-elect-resource-lock={given['leader-elect-resource-lock']}: using leases instead"
    if not config.leader_election.leader_elect:
        others = [flag for flag in LEADER_ELECTION if flag.name != "leader-elect"]
        yield from _ignored_warnings(others, given, "leader election is disabled")
    if given.get("secure-port") == 0:
        others = [flag for flag in SECURE_SERVING if flag.name != "secure-port"]
        yield from _ignored_warnings((*others, *AUTHENTICATION, *AUTHORIZATION), given, "--secure-port is 0")


def _flag_warnings(flag: Flag, value: Any, file: str | None) -> Iterator[str]:
    if flag in OLD and flag.no_effect:
        yield f"--{flag.name} is a flag of older releases and has no effect: {flag.no_effect}"
    elif flag.instead and file and flag in (*OLD, *DEPRECATED):
        yield f"--{flag.name} is ignored because --config is given: set {flag.instead} in {file}"
    elif flag in OLD:
        yield f"--{flag.name} is a flag of older releases: set {flag.instead} in a --config file instead"
    elif flag.no_effect and value != flag.default:
        yield f"--{flag.name} has no effect: {flag.no_effect}"


def _overridden_warnings(given: Given) -> Iterator[str]:
    """Old flags that another old flag overrides."""
    if counts := _policy_flag(given):
        overridden = ["policy-configmap", "policy-config-file", "algorithm-provider"]
        yield from (
            f"--{name} is ignored because --{counts} overrides it"
            for name in overridden
            if name != counts and given.get(name)
        )


def _ignored_warnings(flags: Sequence[Flag], given: Given, why: str) -> Iterator[str]:
    yield from (
        f"--{flag.name} is ignored because {why}"
        for flag in flags
        if flag.name in given and not flag.no_effect
    )


def _emulation_warnings(minor: int | None, gates: Mapping[str, bool]) -> Iterator[str]:
    """Features that the emulated version does not have and that stay enabled all the same."""
    if minor is not None and (kept := kept_features(minor, gates)):
        yield (
            f"--emulated-version=1.{minor}: Stowplan does not disable {', '.join(kept)}; an API server that "
            f"is of version 1.{minor} or emulates it does not serve the fields of these features"
        )


def complete_config(config: KubeSchedulerConfiguration, registry: Registry) -> dict[str, Any]:
    """The configuration as plain v1 data with all defaults, including those of plugins and arguments.

    It reads back as the same configuration. Raises a ConfigError if a profile cannot be built.
    """
    plain = config.as_json()
    for optional in ("extenders", "delayCacheUntilActive"):
        if not plain[optional]:
            del plain[optional]
    if plain["clientConnection"]["qps"] % 1 == 0:
        plain["clientConnection"]["qps"] = int(plain["clientConnection"]["qps"])
    for shown, profile, resolved in zip(
        plain["profiles"], config.profiles, resolve_profiles(config, registry), strict=True
    ):
        args = resolved.as_json()["args"]
        for name, taken in resolved.args.items():
            for gate in taken.gated_fields.keys() & config.disabled_gates:
                args[name].pop(taken.gated_fields[gate], None)
        shown["plugins"] = _complete_plugins(profile, config)
        shown["pluginConfig"] = [{"name": name, "args": args[name]} for name in sorted(args)]
        if shown["percentageOfNodesToScore"] is None:
            del shown["percentageOfNodesToScore"]
    return plain


def write_config(config: KubeSchedulerConfiguration, registry: Registry, path: Path) -> None:
    """Write the completed configuration as YAML with sorted keys."""
    text = yaml.safe_dump(complete_config(config, registry), sort_keys=True, allow_unicode=True)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _complete_plugins(profile: ProfileConfig, config: KubeSchedulerConfiguration) -> dict[str, Any]:
    """The plugins by extension point as in the file, with the default plugins merged into multiPoint."""
    points = {}
    for point in (*EXTENSION_POINTS, MULTI_POINT):
        found = profile.plugins.at(point)
        enabled = found.over(config.default_plugins) if point == MULTI_POINT else found.enabled
        sets = {"enabled": enabled, "disabled": found.disabled}
        points[point] = {
            name: [_plugin_entry(entry) for entry in entries] for name, entries in sets.items() if entries
        }
    return points


def _plugin_entry(entry: PluginEntry) -> dict[str, Any]:
    return {"name": entry.name, "weight": entry.weight}
