"""A static pod in the place of kube-scheduler's, in the layout that kubeadm gives a control plane."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.api.meta import Json
from stowplan.deploy.manifests import (
    KUBE_SCHEDULERS_LEASE,
    SECCOMP,
    TEMPORARY,
    container,
    custom_resource_definitions,
    journal_flags,
    journal_host_volumes,
    journal_mounts,
    probes,
    read_only,
)
from stowplan.deploy.rights import RBAC, lease_rules, plugin_rights, render_role, rules, viewer
from stowplan.deploy.setup import CONFIG, Setup, Values, check_values
from stowplan.errors import ConfigError
from stowplan.framework.plugin import is_trusted

NAME = "kube-scheduler"
FOLDER = "/etc/kubernetes/stowplan"
SCHEDULER_CONF = "/etc/kubernetes/scheduler.conf"
OWNER = 0
"""Only root can read the kubeconfig on the host."""


def static_pod(setup: Setup, values: Values) -> Json:
    """The scheduler as a static pod, which reads its files from the host."""
    check_values(values)
    kubeconfig = setup.config.client_connection.kubeconfig
    if not kubeconfig:
        raise ConfigError(
            "clientConnection.kubeconfig: is required, since a static pod has no service account: set it to "
            f"{SCHEDULER_CONF}, which kubeadm made for kube-scheduler",
            stage="validate",
            where=setup.where,
        )
    command = [
        NAME,
        f"--config={FOLDER}/{CONFIG}",
        *([f"--plugin-dir={FOLDER}"] if setup.has_plugin_files else []),
        *journal_flags(values),
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"-v={values.verbosity}",
        *values.extra_args,
    ]
    mounts = [read_only("kubeconfig", kubeconfig), read_only("config", FOLDER), *journal_mounts(values)]
    has_standby_cache = not setup.config.delay_cache_until_active
    seen = probes(host="127.0.0.1", has_standby_cache=has_standby_cache)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": NAME,
            "namespace": "kube-system",
            "labels": {"component": NAME, "tier": "control-plane"},
        },
        "spec": {
            "hostNetwork": True,
            "priorityClassName": "system-node-critical",
            "securityContext": {"runAsUser": OWNER, "runAsGroup": OWNER, **SECCOMP},
            "containers": [container(NAME, values, command, mounts, seen)],
            "volumes": [
                {"name": "kubeconfig", "hostPath": {"path": kubeconfig, "type": "File"}},
                {"name": "config", "hostPath": {"path": FOLDER, "type": "Directory"}},
                TEMPORARY,
                *journal_host_volumes(values),
            ],
        },
    }


def beside_static_pod(setup: Setup) -> list[Json]:
    """For `kubectl apply`."""
    return [*_needed_files(setup), viewer("stowplan:viewer")]


def _needed_files(setup: Setup) -> list[Json]:
    """What it takes beyond the rights that kube-scheduler's user has already."""
    user = [{"apiGroup": RBAC, "kind": "User", "name": "system:kube-scheduler"}]
    needed = rules(
        right for plugin in setup.plugins if not is_trusted(type(plugin)) for right in plugin_rights([plugin])
    )
    election = setup.config.leader_election
    where, name = election.resource_namespace, election.resource_name
    has_own_lease = election.leader_elect and (where, name) != KUBE_SCHEDULERS_LEASE
    return [
        *custom_resource_definitions(setup),
        *(render_role("stowplan:plugins", needed, user) if needed else ()),
        *(render_role("stowplan:lease", lease_rules(name), user, where) if has_own_lease else ()),
    ]


def host_files(setup: Setup) -> Iterator[str]:
    """Yield notes for the user who installs the static pod."""
    names = ", ".join(setup.files)
    yield f"each node of the control plane needs these files in {FOLDER}: {names}"
    if _needed_files(setup):
        yield "its plugins need more rights than kube-scheduler's: apply what --beside-static-pod prints"
