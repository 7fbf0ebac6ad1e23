"""All that `kubectl apply` needs to run Stowplan in a cluster, in the order it needs it.

`render` makes the objects of a mode from its `Values` alone. It also makes the templates of the Helm chart,
so it decides by the functions of `stowplan.deploy.template` rather than by `if`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from stowplan.api.crd import crd_of, needs_crd
from stowplan.api.custom import CustomResource
from stowplan.api.meta import Json
from stowplan.client.kubeconfig import ACCOUNT
from stowplan.config.types import DEFAULT_SCHEDULER_NAME, LeaderElection
from stowplan.deploy.rights import (
    GROUP_CONTROLLERS,
    RBAC,
    lease_rules,
    make_role_binding,
    render_role,
    rules,
    scheduler_rights,
    shadow_rights,
    viewer,
)
from stowplan.deploy.setup import (
    CONFIG,
    JOURNAL_SIZE,
    MAX_CONFIG_MAP_BYTES,
    PORT,
    REPLICATED,
    Lease,
    Setup,
    Values,
    check_values,
    journal_bytes,
)
from stowplan.deploy.template import Symbol, any_of, checksum, choose, items, merge, negate, when
from stowplan.errors import ConfigError, InputError

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
KUBE_SCHEDULERS_LEASE = ("kube-system", "kube-scheduler")
FOLDER = "/etc/stowplan"
TLS_FOLDER = "/etc/stowplan-tls"
KUBECONFIG = "kubeconfig"
EXTENDER_PORT, EXTENDER_HEALTH_PORT = 8888, 8889
EXTENDER_VERBS = ("filter", "prioritize", "preempt")
"""Not bind: the account may only read, and any client that reaches the port could bind pods."""
USER = 65532
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""Not the default in `Values`, with which Helm would merge a user's. 5,000 nodes, 50,000 pods take 240 MB."""
LOCKED_DOWN = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
TEMPORARY = {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}
"""Python's TLS only reads certificates from files, so generated ones need a place."""
AUTHENTICATION = "extension-apiserver-authentication-reader"
"""A role that every cluster has; with it the CA of client certificates can be read."""
JOURNAL_FOLDER = "/var/lib/stowplan"
MEBIBYTE = 2**20
HEADROOM = 256 * MEBIBYTE
"""Files that are being merged are there twice, and beyond the volume's limit the kubelet evicts the pod."""
MONITORING = Path(__file__).parent / "monitoring"


def manifests(setup: Setup, values: Values) -> list[Json]:
    """Return the objects of `values.mode`, with the configuration and the plugins of the setup."""
    check_values(values)
    _check(setup, values)
    values = with_setup(setup, values)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": values.namespace}}
    return [
        *values.custom_resource_definitions,
        *([] if values.namespace in SYSTEM_NAMESPACES else [namespace]),
        *render(values),
    ]


def with_setup(setup: Setup, values: Values) -> Values:
    """Return the values with what follows from the configuration and its plugins."""
    is_scheduler = values.mode in REPLICATED
    rights = scheduler_rights if is_scheduler else shadow_rights
    lease = lease_of(setup, values) if is_scheduler else None
    limit = f"{-(-(journal_bytes(values) + HEADROOM) // MEBIBYTE)}Mi"
    return msgspec.structs.replace(
        values,
        config=setup.files[CONFIG],
        plugin_files={name: text for name, text in setup.files.items() if name != CONFIG},
        lease=Lease(enabled=False)
        if lease is None
        else Lease(name=lease.resource_name, namespace=lease.resource_namespace),
        standby_cache=not setup.config.delay_cache_until_active,
        journal=msgspec.structs.replace(values.journal, volume_size=values.journal.volume_size or limit),
        rules=rules(rights(setup.plugins)),
        custom_resource_definitions=custom_resource_definitions(setup) if is_scheduler else [],
    )


def render(values: Values) -> list[Json]:
    """Return all objects but the namespace and CustomResourceDefinitions."""
    mode = {
        "scheduler": _scheduler,
        "replacement": _scheduler,
        "extender": _extender,
        "shadow": _shadow,
        "recorder": _recorder,
    }[values.mode]
    return list(mode(values))


def custom_resource_definitions(setup: Setup) -> list[Json]:
    """Return the definitions of the kinds that the plugins watch."""
    return definitions_of(dict.fromkeys(kind for plugin in setup.plugins for kind in plugin.watches))


def definitions_of(kinds: Iterable[type[CustomResource]]) -> list[Json]:
    """Return the definitions of these kinds, but for those that another project installs."""
    return [crd_of(kind) for kind in kinds if needs_crd(kind) and not kind.definition.installed_by]


def notes(setup: Setup, values: Values) -> Iterator[str]:
    """Yield notes for the user who deploys it."""
    yield from setup.warnings
    has_default = any(profile.scheduler_name == DEFAULT_SCHEDULER_NAME for profile in setup.config.profiles)
    if values.mode == "scheduler" and has_default:
        yield (
            f"a profile is named {DEFAULT_SCHEDULER_NAME}, so kube-scheduler would schedule the same pods: "
            "use another schedulerName, or replace kube-scheduler with --static-pod or --replacement"
        )
    if values.mode == "replacement":
        if not has_default:
            yield f"no profile is named {DEFAULT_SCHEDULER_NAME}, so most pods would stay pending"
        yield (
            "it schedules nothing until kube-scheduler gives up its lease; keep kube-scheduler as standby, "
            "because the pods of this Deployment need a scheduler too"
        )


def lease_of(setup: Setup, values: Values) -> LeaderElection | None:
    """The lease in the configuration. A second scheduler would wait forever for kube-scheduler's."""
    election = setup.config.leader_election
    if not election.leader_elect:
        return None
    is_kube_schedulers = (election.resource_namespace, election.resource_name) == KUBE_SCHEDULERS_LEASE
    if values.mode == "replacement" or not is_kube_schedulers:
        return election
    return LeaderElection(resource_name=values.name, resource_namespace=values.namespace)


def _check(setup: Setup, values: Values) -> None:
    if path := setup.config.client_connection.kubeconfig:
        raise ConfigError(
            f"clientConnection.kubeconfig: the pod does not have the file {path}; remove it to use the "
            "pod's service account",
            stage="validate",
            where=setup.where,
        )
    if values.mode in REPLICATED and values.replicas > 1 and not setup.config.leader_election.leader_elect:
        raise ConfigError(
            f"leaderElection.leaderElect: is false, so {values.replicas} replicas would schedule the "
            "same pods: set it to true or use --replicas=1",
            stage="validate",
            where=setup.where,
        )
    size = sum(len(name) + len(text.encode()) for name, text in setup.files.items())
    if size > MAX_CONFIG_MAP_BYTES:
        raise InputError(
            f"configuration and plugin files have {size:,} bytes, but the limit of a ConfigMap is "
            f"{MAX_CONFIG_MAP_BYTES:,}: install the plugins in the image instead"
        )


# Modes


def _scheduler(values: Values) -> Iterator[Any]:
    lease = values.lease
    account = _account(values)
    flags = when(
        lease.enabled,
        [
            f"--leader-elect-resource-name={lease.name}",
            f"--leader-elect-resource-namespace={lease.namespace}",
        ],
    )
    role = render_role(f"{account}:lease", lease_rules(lease.name), _subjects(values), lease.namespace)
    yield from _account_objects(values, when(lease.enabled, list(role)))
    yield viewer(f"{account}:viewer")
    yield _config_map(values)
    yield _deployment(
        values,
        _serving_container(values, ["run"], flags),
        replicas=values.replicas,
        # Without a lease, or with one volume for all, there must never be two of them.
        is_single=any_of(negate(lease.enabled), values.journal.claim),
        claim=values.journal.claim,
        volumes=journal_volumes(values),
    )
    yield from when(values.pod_disruption_budget, [_disruption_budget(values)])
    yield from _service_and_monitoring(values, PORT)
    yield from when(values.controllers, list(_controllers(values)))


def _shadow(values: Values) -> Iterator[Any]:
    """`stowplan shadow` beside the live scheduler, with rights that only read."""
    yield from _account_objects(values, [])
    yield viewer(f"{_account(values)}:viewer")
    yield _config_map(values)
    yield _deployment(
        values,
        _serving_container(values, ["shadow", "--no-page"], []),
        is_single=True,
        claim=values.journal.claim,
        volumes=journal_volumes(values),
    )
    yield from _service_and_monitoring(values, PORT)


def _extender(values: Values) -> Iterator[Any]:
    """`stowplan extender` for the stock kube-scheduler, with rights that only read."""
    secret = values.extender.tls_secret
    tls = [
        f"--tls-cert-file={TLS_FOLDER}/tls.crt",
        f"--tls-private-key-file={TLS_FOLDER}/tls.key",
        f"--client-ca-file={TLS_FOLDER}/ca.crt",
        f"--health-port={EXTENDER_HEALTH_PORT}",  # the kubelet has no certificate
    ]
    command = [
        *_command(values, "extender"),
        *(f"--verb={verb}" for verb in EXTENDER_VERBS),
        f"--port={EXTENDER_PORT}",
        *when(secret, tls),
        f"-v={values.verbosity}",
        *items(values.extra_args),
    ]
    health = choose(secret, "health", "extender")
    yield from _account_objects(values, [])
    yield _config_map(values)
    yield _deployment(
        values,
        container(
            "extender",
            values,
            command,
            [read_only("config", FOLDER), *when(secret, [read_only("tls", TLS_FOLDER)])],
            probes(port=health, scheme="HTTP"),
            [
                {"name": "extender", "containerPort": EXTENDER_PORT},
                *when(secret, [{"name": "health", "containerPort": EXTENDER_HEALTH_PORT}]),
            ],
        ),
        replicas=values.replicas,
        volumes=when(secret, [{"name": "tls", "secret": {"secretName": secret}}]),
    )
    yield from when(values.pod_disruption_budget, [_disruption_budget(values)])
    yield _service(
        values,
        [
            {"name": "extender", "port": EXTENDER_PORT, "targetPort": "extender"},
            *when(secret, [{"name": "health", "port": EXTENDER_HEALTH_PORT, "targetPort": "health"}]),
        ],
    )
    yield from _render_monitoring(values, [{"port": health, "path": "/metrics"}])


def _recorder(values: Values) -> Iterator[Any]:
    """`stowplan record` into a volume, with rights that only read."""
    recorder = values.recorder
    command = [
        *_command(values, "record", JOURNAL_FOLDER),
        *when(recorder.hash_names, ["--hash-names"]),
        *when(recorder.hash_images, ["--hash-images"]),
        *when(recorder.omit_annotations, ["--omit-annotations"]),
        *items(values.extra_args),
    ]
    own = {"name": "trace", "emptyDir": {"sizeLimit": recorder.volume_size}}
    claimed = {"name": "trace", "persistentVolumeClaim": {"claimName": recorder.claim}}
    mounts = [read_only("config", FOLDER), {"name": "trace", "mountPath": JOURNAL_FOLDER}]
    yield from _account_objects(values, [])
    yield _config_map(values)
    yield _deployment(
        values,
        container("recorder", values, command, mounts, {}, []),
        is_single=True,
        claim=recorder.claim,
        volumes=[*when(recorder.claim, [claimed]), *when(negate(recorder.claim), [own])],
    )


def _controllers(values: Values) -> Iterator[Any]:
    """`stowplan controllers` beside the scheduler: an account with its rights, and a Deployment."""
    name, namespace = f"{values.name}-controllers", values.namespace
    selected = {"app.kubernetes.io/name": "stowplan-controllers", "app.kubernetes.io/instance": values.name}
    ours = _selector(values) | {"app.kubernetes.io/component": "controllers"}
    metadata = {"name": name, "namespace": namespace, "labels": merge(ours, values.labels)}
    account = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    role = f"{_account(values)}-controllers"
    command = [
        "stowplan",
        "controllers",
        "--leader-elect",
        f"--leader-elect-resource-name={name}",
        f"--leader-elect-resource-namespace={namespace}",
    ]
    needed = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    pod = {
        **_pod(values, name),
        "containers": [container("controllers", values, command, [], {}, []) | {"resources": needed}],
        "volumes": [TEMPORARY],
    }
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }
    yield from render_role(role, rules(GROUP_CONTROLLERS), account)
    yield from render_role(f"{role}:lease", lease_rules(name), account, namespace)
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": values.replicas,
            "selector": {"matchLabels": selected},
            "template": {"metadata": {"labels": merge(selected, values.labels)}, "spec": pod},
        },
    }


# Objects


def _selector(values: Values) -> Json:
    return {"app.kubernetes.io/name": "stowplan", "app.kubernetes.io/instance": values.name}


def _metadata(values: Values) -> Json:
    labels = merge(_selector(values), values.labels)
    return {"name": values.name, "namespace": values.namespace, "labels": labels}


def _account(values: Values) -> str:
    """Unlike in other namespaces, for objects that are not in this one."""
    return f"{values.namespace}:{values.name}"


def _subjects(values: Values) -> list[Json]:
    return [{"kind": "ServiceAccount", "name": values.name, "namespace": values.namespace}]


def _account_objects(values: Values, roles: Sequence[Json]) -> Iterator[Json]:
    """The account and its rights; only its own pods mount its token."""
    name, subjects = _account(values), _subjects(values)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(values)}
    yield account | {"automountServiceAccountToken": False}
    yield from render_role(name, values.rules, subjects)
    yield from roles
    yield make_role_binding(f"{name}:authentication", "Role", AUTHENTICATION, subjects, "kube-system")


def _config_map(values: Values) -> Json:
    ours = {CONFIG: values.config, KUBECONFIG: _account_kubeconfig()}
    data = merge(ours, values.plugin_files)
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(values), "data": data}


def _account_kubeconfig() -> str:
    """The pod's own account, for the flags that ask for a kubeconfig; no secret is in it."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "this",
                "cluster": {
                    "server": "https://kubernetes.default.svc",
                    "certificate-authority": str(ACCOUNT / "ca.crt"),
                },
            }
        ],
        "users": [{"name": "account", "user": {"tokenFile": str(ACCOUNT / "token")}}],
        "contexts": [{"name": "this", "context": {"cluster": "this", "user": "account"}}],
        "current-context": "this",
    }
    return yaml.safe_dump(document, sort_keys=False)


def _disruption_budget(values: Values) -> Json:
    """One at a time: with a single replica a node could never be drained otherwise."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(values),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _selector(values)}},
    }


def _service(values: Values, ports: Sequence[Json]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(values),
        "spec": {"selector": _selector(values), "ports": list(ports)},
    }


def _service_and_monitoring(values: Values, port: int) -> Iterator[Any]:
    yield _service(values, [{"name": "https", "port": port, "targetPort": "https"}])
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{_account(values)}:metrics"},
        "rules": [{"nonResourceURLs": ["/metrics", "/metrics/resources"], "verbs": ["get"]}],
    }
    token = {"bearerTokenFile": str(ACCOUNT / "token"), "tlsConfig": {"insecureSkipVerify": True}}
    yield from when(values.service_monitor, [role])
    yield from _render_monitoring(
        values,
        [
            {"port": "https", "scheme": "https", "path": path, **token}
            for path in ("/metrics", "/metrics/resources")
        ],
    )


def _render_monitoring(values: Values, endpoints: Sequence[Json]) -> Iterator[Any]:
    """For Prometheus' operator, and for Grafana's sidecar that collects dashboards."""
    operator = {"apiVersion": "monitoring.coreos.com/v1", "metadata": _metadata(values)}
    monitor = operator | {
        "kind": "ServiceMonitor",
        "spec": {"selector": {"matchLabels": _selector(values)}, "endpoints": list(endpoints)},
    }
    labels = merge(_selector(values) | {"grafana_dashboard": "1"}, values.labels)
    yield from when(values.service_monitor, [monitor])
    yield from when(
        values.prometheus_rule, [operator | {"kind": "PrometheusRule", "spec": _rules_spec(values)}]
    )
    dashboard = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{values.name}-dashboard", "namespace": values.namespace, "labels": labels},
        "data": {"stowplan.json": _dashboard(values)},
    }
    yield from when(values.dashboard, [dashboard])


def _rules_spec(values: Values) -> object:
    if isinstance(values, Symbol):
        return Symbol('(.Files.Get "files/rules.yaml" | fromYaml)')
    return yaml.safe_load((MONITORING / "rules.yaml").read_text())


def _dashboard(values: Values) -> object:
    if isinstance(values, Symbol):
        return Symbol('(.Files.Get "files/dashboard.json")')
    return (MONITORING / "dashboard.json").read_text()


def _deployment(
    values: Values,
    container: Json,
    *,
    replicas: object = 1,
    is_single: object = False,
    claim: object = "",
    volumes: Sequence[Json] = (),
) -> Json:
    """A Deployment of this container with its configuration; `is_single` never starts a second pod."""
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod = {
        **_pod(values, values.name, claim),
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": _selector(values)}}],
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": values.name}}, TEMPORARY, *volumes],
    }
    # A new configuration starts new pods; a new plugin file does not: the scheduler loads it while it runs.
    annotations = {"stowplan/configuration": checksum(values.config)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(values),
        "spec": {
            "replicas": replicas,
            **when(is_single, {"strategy": {"type": "Recreate"}}),
            "selector": {"matchLabels": _selector(values)},
            "template": {
                "metadata": {"labels": merge(_selector(values), values.labels), "annotations": annotations},
                "spec": pod,
            },
        },
    }


def _pod(values: Values, account: object, claim: object = "") -> Json:
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}
    # Other volumes are writable for all; the volume of a claim belongs to root unless a group is set.
    group = when(claim, {"fsGroup": USER})
    secrets = values.image_pull_secrets
    return {
        "serviceAccountName": account,
        "automountServiceAccountToken": True,
        "priorityClassName": values.priority_class_name,
        **when(secrets, {"imagePullSecrets": secrets}),
        **when(values.node_selector, {"nodeSelector": values.node_selector}),
        **when(values.tolerations, {"tolerations": values.tolerations}),
        **when(values.affinity, {"affinity": values.affinity}),
        "securityContext": {**user, **group, **SECCOMP},
    }


def _serving_container(values: Values, words: Sequence[str], flags: Sequence[str]) -> Json:
    """A container with a scheduler's HTTPS server."""
    command = [
        *_command(values, *words),
        *flags,
        *journal_flags(values),
        f"--authentication-kubeconfig={FOLDER}/{KUBECONFIG}",
        f"--authorization-kubeconfig={FOLDER}/{KUBECONFIG}",
        f"--secure-port={PORT}",
        f"-v={values.verbosity}",
        *items(values.extra_args),
    ]
    mounts = [read_only("config", FOLDER), *journal_mounts(values)]
    seen = probes(has_standby_cache=values.standby_cache)
    return container("scheduler", values, command, mounts, seen)


def _command(values: Values, *words: str) -> list[str]:
    folder = when(values.plugin_files, [f"--plugin-dir={FOLDER}"])
    return ["stowplan", *words, f"--config={FOLDER}/{CONFIG}", *folder]


def container(
    name: str,
    values: Values,
    command: Sequence[str],
    mounts: Sequence[Json],
    probes: Json,
    ports: Sequence[Json] = ({"name": "https", "containerPort": PORT},),
) -> Json:
    return {
        "name": name,
        "image": values.image,
        "command": list(command),
        **({"ports": list(ports)} if ports else {}),
        **probes,
        "resources": choose(values.resources, values.resources, RESOURCES),
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }


def probes(
    *, host: str = "", has_standby_cache: object = True, port: object = "https", scheme: str = "HTTPS"
) -> Json:
    """A standby without a cache is not ready and need not be."""

    def probe(path: object, failures: int) -> Json:
        get = {"path": path, "port": port, "scheme": scheme} | ({"host": host} if host else {})
        return {"httpGet": get, "periodSeconds": 10, "timeoutSeconds": 15, "failureThreshold": failures}

    return {
        "startupProbe": probe("/livez", 24),
        "livenessProbe": probe("/livez", 8),
        "readinessProbe": probe(choose(has_standby_cache, "/readyz", "/livez"), 3),
    }


def read_only(name: str, path: str) -> Json:
    return {"name": name, "mountPath": path, "readOnly": True}


def _has_journal(values: Values) -> object:
    return any_of(values.journal.enabled, values.journal.claim)


def journal_flags(values: Values) -> list[str]:
    size = choose(values.journal.size, values.journal.size, JOURNAL_SIZE)
    flags = [f"--journal={JOURNAL_FOLDER}", f"--journal-size={size}"]
    return when(_has_journal(values), flags)


def journal_mounts(values: Values) -> list[Json]:
    return when(_has_journal(values), [{"name": "journal", "mountPath": JOURNAL_FOLDER}])


def journal_volumes(values: Values) -> list[Json]:
    """The claim's, or one of each pod's own that goes with it."""
    claim, limit = values.journal.claim, values.journal.volume_size
    own = {"name": "journal", "emptyDir": choose(limit, {"sizeLimit": limit}, {})}
    claimed = {"name": "journal", "persistentVolumeClaim": {"claimName": claim}}
    return when(_has_journal(values), [*when(claim, [claimed]), *when(negate(claim), [own])])


def journal_host_volumes(values: Values) -> list[Json]:
    folder = {"path": JOURNAL_FOLDER, "type": "DirectoryOrCreate"}
    return when(_has_journal(values), [{"name": "journal", "hostPath": folder}])
