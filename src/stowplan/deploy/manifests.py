"""A second scheduler beside kube-scheduler: all that `kubectl apply` needs, in the order it needs it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

from stowplan.api.crd import crd_of, needs_crd
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
from stowplan.deploy.setup import CONFIG, JOURNAL_SIZE, MAX_CONFIG_MAP_BYTES, PORT, DeployOptions, Setup
from stowplan.errors import ConfigError, InputError

Json = dict[str, Any]

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
KUBE_SCHEDULERS_LEASE = ("kube-system", "kube-scheduler")
FOLDER = "/etc/stowplan"
KUBECONFIG = "kubeconfig"
USER = 65532
# 5,000 nodes with 50,000 pods take 240 MB.
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
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


def manifests(setup: Setup, options: DeployOptions) -> list[Json]:
    _check(setup, options)
    lease = lease_of(setup, options)
    namespace = [] if options.namespace in SYSTEM_NAMESPACES else [_namespace(options)]
    return [
        *custom_resource_definitions(setup),
        *namespace,
        _service_account(options),
        *_rights(setup, options, lease),
        viewer(f"{options.account}:viewer"),
        _config_map(setup, options),
        deployment(setup, options, lease),
        _disruption_budget(options),
        _service(options),
        *(_monitoring(options) if options.service_monitor else ()),
    ]


def shadow(setup: Setup, options: DeployOptions) -> list[Json]:
    """`stowplan shadow` beside the live scheduler, with rights that only read."""
    _check(setup, options)
    account = [{"kind": "ServiceAccount", "name": options.name, "namespace": options.namespace}]
    return [
        *([] if options.namespace in SYSTEM_NAMESPACES else [_namespace(options)]),
        _service_account(options),
        *render_role(options.account, rules(shadow_rights(setup.plugins)), account),
        make_role_binding(
            f"{options.account}:authentication", "Role", AUTHENTICATION, account, "kube-system"
        ),
        viewer(f"{options.account}:viewer"),
        _config_map(setup, options),
        deployment(setup, options, None, ("shadow", "--no-page")),
        _service(options),
        *(_monitoring(options) if options.service_monitor else ()),
    ]


def controllers(options: DeployOptions) -> list[Json]:
    """`stowplan controllers` beside the scheduler: an account with its rights, and a Deployment."""
    name, namespace = f"{options.name}-controllers", options.namespace
    labels = options.labels | {"app.kubernetes.io/component": "controllers"}
    selected = {"app.kubernetes.io/name": "stowplan-controllers", "app.kubernetes.io/instance": options.name}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    account = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    role = f"{options.account}-controllers"
    pod = {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "priorityClassName": "system-cluster-critical",
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, **SECCOMP},
        "containers": [
            {
                "name": "controllers",
                "image": options.image,
                "command": [
                    "stowplan",
                    "controllers",
                    "--leader-elect",
                    f"--leader-elect-resource-name={name}",
                    f"--leader-elect-resource-namespace={namespace}",
                ],
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
                "securityContext": LOCKED_DOWN,
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [TEMPORARY],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        },
        *render_role(role, rules(GROUP_CONTROLLERS), account),
        *render_role(f"{role}:lease", lease_rules(name), account, namespace),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": options.replicas,
                "selector": {"matchLabels": selected},
                "template": {"metadata": {"labels": selected}, "spec": pod},
            },
        },
    ]


def custom_resource_definitions(setup: Setup) -> list[Json]:
    """Return the definitions of the kinds that the plugins watch."""
    kinds = dict.fromkeys(kind for plugin in setup.plugins for kind in plugin.watches)
    return [crd_of(kind) for kind in kinds if needs_crd(kind)]


def notes(setup: Setup) -> Iterator[str]:
    """Yield notes for the user who deploys it."""
    yield from setup.warnings
    if any(profile.scheduler_name == DEFAULT_SCHEDULER_NAME for profile in setup.config.profiles):
        yield (
            f"a profile is named {DEFAULT_SCHEDULER_NAME}, so kube-scheduler would schedule the same pods: "
            "use another schedulerName, or replace kube-scheduler with --static-pod"
        )


def lease_of(setup: Setup, options: DeployOptions) -> LeaderElection | None:
    """The lease in the configuration, unless it is kube-scheduler's, for which we would wait forever."""
    election = setup.config.leader_election
    if not election.leader_elect:
        return None
    if (election.resource_namespace, election.resource_name) != KUBE_SCHEDULERS_LEASE:
        return election
    return LeaderElection(resource_name=options.name, resource_namespace=options.namespace)


def _check(setup: Setup, options: DeployOptions) -> None:
    if path := setup.config.client_connection.kubeconfig:
        raise ConfigError(
            f"clientConnection.kubeconfig: the pod does not have the file {path}; remove it to use the "
            "pod's service account",
            stage="validate",
            where=setup.where,
        )
    if options.replicas > 1 and not setup.config.leader_election.leader_elect:
        raise ConfigError(
            f"leaderElection.leaderElect: is false, so {options.replicas} replicas would schedule the "
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


def _namespace(options: DeployOptions) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace}}


def _service_account(options: DeployOptions) -> Json:
    """Only its own pods mount its token."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": options.metadata}
    return account | {"automountServiceAccountToken": False}


def _rights(setup: Setup, options: DeployOptions, lease: LeaderElection | None) -> Iterator[Json]:
    account = [{"kind": "ServiceAccount", "name": options.name, "namespace": options.namespace}]
    yield from render_role(options.account, rules(scheduler_rights(setup.plugins)), account)
    if lease is not None:
        where = lease.resource_namespace
        yield from render_role(f"{options.account}:lease", lease_rules(lease.resource_name), account, where)
    yield make_role_binding(
        f"{options.account}:authentication", "Role", AUTHENTICATION, account, "kube-system"
    )


def _config_map(setup: Setup, options: DeployOptions) -> Json:
    data = {CONFIG: setup.files[CONFIG], KUBECONFIG: _account_kubeconfig(), **setup.files}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": options.metadata, "data": data}


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


def _disruption_budget(options: DeployOptions) -> Json:
    """One at a time: with a single replica a node could never be drained otherwise."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": options.metadata,
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": options.labels}},
    }


def _service(options: DeployOptions) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": options.metadata,
        "spec": {
            "selector": options.labels,
            "ports": [{"name": "https", "port": PORT, "targetPort": "https"}],
        },
    }


def _monitoring(options: DeployOptions) -> Iterator[Json]:
    """For Prometheus' operator; bind the role to the service account of Prometheus."""
    yield {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"{options.account}:metrics"},
        "rules": [{"nonResourceURLs": ["/metrics", "/metrics/resources"], "verbs": ["get"]}],
    }
    token = {"bearerTokenFile": str(ACCOUNT / "token"), "tlsConfig": {"insecureSkipVerify": True}}
    yield {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": options.metadata,
        "spec": {
            "selector": {"matchLabels": options.labels},
            "endpoints": [
                {"port": "https", "scheme": "https", "path": path, **token}
                for path in ("/metrics", "/metrics/resources")
            ],
        },
    }


def deployment(
    setup: Setup, options: DeployOptions, lease: LeaderElection | None, command: Sequence[str] = ("run",)
) -> Json:
    # A new configuration starts new pods; a new plugin file does not: the scheduler loads it while it runs.
    stamp = hashlib.sha256(setup.files[CONFIG].encode()).hexdigest()[:16]
    config = {"name": "config", "configMap": {"name": options.name}}
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}
    # Other volumes are writable for all; the volume of a claim belongs to root unless a group is set.
    group = {"fsGroup": USER} if options.journal_claim else {}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod = {
        "serviceAccountName": options.name,
        "automountServiceAccountToken": True,
        "priorityClassName": "system-cluster-critical",
        "securityContext": {**user, **group, **SECCOMP},
        "topologySpreadConstraints": [{**spread, "labelSelector": {"matchLabels": options.labels}}],
        "containers": [
            container(
                "scheduler",
                options.image,
                _command(command, setup, options, lease),
                [read_only("config", FOLDER), *journal_mounts(options)],
                probes(has_standby_cache=not setup.config.delay_cache_until_active),
            )
        ],
        "volumes": [config, TEMPORARY, *journal_volumes(options)],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": options.metadata,
        "spec": {
            "replicas": options.replicas,
            # Without a lease, or with one volume for all, there must never be two of them.
            **({"strategy": {"type": "Recreate"}} if lease is None or options.journal_claim else {}),
            "selector": {"matchLabels": options.labels},
            "template": {
                "metadata": {"labels": options.labels, "annotations": {"stowplan/configuration": stamp}},
                "spec": pod,
            },
        },
    }


def _command(
    words: Sequence[str], setup: Setup, options: DeployOptions, lease: LeaderElection | None
) -> list[str]:
    command = ["stowplan", *words, f"--config={FOLDER}/{CONFIG}"]
    if setup.has_plugin_files:
        command.append(f"--plugin-dir={FOLDER}")
    if lease is not None:
        command.append(f"--leader-elect-resource-name={lease.resource_name}")
        command.append(f"--leader-elect-resource-namespace={lease.resource_namespace}")
    return [
        *command,
        *journal_flags(options),
        f"--authentication-kubeconfig={FOLDER}/{KUBECONFIG}",
        f"--authorization-kubeconfig={FOLDER}/{KUBECONFIG}",
        f"--secure-port={PORT}",
        f"-v={options.verbosity}",
    ]


def container(name: str, image: str, command: Sequence[str], mounts: Sequence[Json], probes: Json) -> Json:
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "ports": [{"name": "https", "containerPort": PORT}],
        **probes,
        "resources": RESOURCES,
        "securityContext": LOCKED_DOWN,
        "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],
    }


def probes(*, host: str = "", has_standby_cache: bool = True) -> Json:
    """A standby without a cache is not ready and need not be."""

    def probe(path: str, failures: int) -> Json:
        get = {"path": path, "port": "https", "scheme": "HTTPS"} | ({"host": host} if host else {})
        return {"httpGet": get, "periodSeconds": 10, "timeoutSeconds": 15, "failureThreshold": failures}

    return {
        "startupProbe": probe("/livez", 24),
        "livenessProbe": probe("/livez", 8),
        "readinessProbe": probe("/readyz" if has_standby_cache else "/livez", 3),
    }


def read_only(name: str, path: str) -> Json:
    return {"name": name, "mountPath": path, "readOnly": True}


def journal_flags(options: DeployOptions) -> list[str]:
    size = options.journal_size or JOURNAL_SIZE
    return [f"--journal={JOURNAL_FOLDER}", f"--journal-size={size}"] if options.has_journal else []


def journal_mounts(options: DeployOptions) -> list[Json]:
    return [{"name": "journal", "mountPath": JOURNAL_FOLDER}] if options.has_journal else []


def journal_volumes(options: DeployOptions) -> list[Json]:
    """The claim's, or one of each pod's own that goes with it."""
    if options.journal_claim:
        return [{"name": "journal", "persistentVolumeClaim": {"claimName": options.journal_claim}}]
    limit = f"{-(-(options.journal_bytes + HEADROOM) // MEBIBYTE)}Mi"
    return [{"name": "journal", "emptyDir": {"sizeLimit": limit}}] if options.has_journal else []


def journal_host_volumes(options: DeployOptions) -> list[Json]:
    folder = {"path": JOURNAL_FOLDER, "type": "DirectoryOrCreate"}
    return [{"name": "journal", "hostPath": folder}] if options.has_journal else []


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """The same labels again are written again."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def as_yaml(documents: Iterable[dict[str, Any]]) -> str:
    return "---\n".join(
        yaml.dump(each, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
        for each in documents
    )
