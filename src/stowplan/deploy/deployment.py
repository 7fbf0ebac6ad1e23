"""The Deployment of a second scheduler."""

from __future__ import annotations

import hashlib
from typing import Any

from stowplan.config.types import LeaderElection
from stowplan.deploy import journal
from stowplan.deploy.options import PORT, DeployOptions
from stowplan.deploy.pod import SECCOMP, TEMPORARY, container, probes, read_only
from stowplan.deploy.setup import CONFIG, Setup

Json = dict[str, Any]

FOLDER = "/etc/stowplan"
KUBECONFIG = "kubeconfig"
USER = 65532


def deployment(setup: Setup, options: DeployOptions, lease: LeaderElection | None) -> Json:
    # A new configuration starts new pods; a new plugin file does not: the scheduler loads it while it runs.
    stamp = hashlib.sha256(setup.files[CONFIG].encode()).hexdigest()[:16]
    config = {"name": "config", "configMap": {"name": options.name}}
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER}
    # Other volumes can be written by anyone; that of a claim belongs to root until it is given to a group.
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
                _command(setup, options, lease),
                [read_only("config", FOLDER), *journal.mounts(options)],
                probes(has_standby_cache=not setup.config.delay_cache_until_active),
            )
        ],
        "volumes": [config, TEMPORARY, *journal.pod_volumes(options)],
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


def _command(setup: Setup, options: DeployOptions, lease: LeaderElection | None) -> list[str]:
    command = ["stowplan", "run", f"--config={FOLDER}/{CONFIG}"]
    if setup.has_plugin_files:
        command.append(f"--plugin-dir={FOLDER}")
    if lease is not None:
        command.append(f"--leader-elect-resource-name={lease.resource_name}")
        command.append(f"--leader-elect-resource-namespace={lease.resource_namespace}")
    return [
        *command,
        *journal.flags(options),
        f"--authentication-kubeconfig={FOLDER}/{KUBECONFIG}",
        f"--authorization-kubeconfig={FOLDER}/{KUBECONFIG}",
        f"--secure-port={PORT}",
        f"-v={options.verbosity}",
    ]
