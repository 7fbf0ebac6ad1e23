"""`stowplan whatif`: show the effect of a change on a cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from stowplan.api.manifests import Manifests, objects_in, read
from stowplan.cli.cluster_source import (
    GROUP_KINDS,
    config_of,
    echo_ignored,
    kinds_of,
    live_manifests,
    stop_for,
    with_groups_of,
)
from stowplan.cli.options import (
    CONFIG,
    NAMESPACE,
    OUTPUT,
    PLUGIN_DIRS,
    POLICY,
    SEED,
    VERBOSE,
    kubeconfig_options,
)
from stowplan.cli.terminal import fit_width, paint
from stowplan.cycle.planner import build_cluster
from stowplan.explain.layout import printable
from stowplan.framework.registry import Registry
from stowplan.simulator import WhatIf
from stowplan.simulator.outcome import as_json
from stowplan.simulator.question import Question, Several, ask
from stowplan.simulator.text import render


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    metavar="FILE",
    multiple=True,
    help="Read the cluster from manifests or the output of `kubectl get … -o yaml|json`: a file, a "
    "directory, or - for standard input. Repeatable (default: read the cluster of the kubeconfig).",
)
@kubeconfig_options
@NAMESPACE
@CONFIG
@POLICY
@PLUGIN_DIRS
@click.option(
    "--add",
    metavar="FILE",
    multiple=True,
    help="Add or replace the objects of these manifests: pods, workloads, nodes and others. Repeatable.",
)
@click.option(
    "--more",
    metavar="POD[=N]",
    multiple=True,
    help="Add N pods like POD, or of a workload such as deployment/web. Repeatable.",
)
@click.option(
    "--gang",
    is_flag=True,
    help="Treat each Job or JobSet of --add as a pod group: its pods start together or not at all.",
)
@click.option("--more-nodes", metavar="NODE[=N]", multiple=True, help="Add N nodes like NODE. Repeatable.")
@click.option(
    "--drain", metavar="NODE", multiple=True, help="Cordon the node and evict its pods. Repeatable."
)
@click.option("--lose", metavar="NODE", multiple=True, help="Remove the node with all its pods. Repeatable.")
@click.option("--all", "afresh", is_flag=True, help="Reschedule every pod, not only the pending ones.")
@SEED
@click.option("--all-pods", is_flag=True, help="List all pods instead of the first few.")
@OUTPUT
@VERBOSE
def whatif(
    files: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    config: Path | None,
    policy: Path | None,
    plugin_dirs: tuple[Path, ...],
    add: tuple[str, ...],
    more: tuple[str, ...],
    gang: bool,
    more_nodes: tuple[str, ...],
    drain: tuple[str, ...],
    lose: tuple[str, ...],
    afresh: bool,
    seed: int | None,
    all_pods: bool,
    output: str,
    verbose: bool,
) -> None:
    """Show where pods would go after a change, which would be evicted and which would stay pending.

    Pods that are pending now are decided together with those that the change adds, in the scheduler's
    order. Changes can be combined: nodes are added first, then drained and removed, then pods are added.
    Use --config to try another scheduler configuration.

    Pods of a pod group are placed together or not at all, if the PodGroup is in the cluster or in --add.
    """
    if files and (kubeconfig or context):
        raise click.UsageError("-f cannot be combined with --kubeconfig or --context")
    copies, grown = (tuple(map(_several, each)) for each in (more, more_nodes))
    registry = Registry.installed(plugin_dirs)
    loaded = config_of(config, policy, registry)
    kinds = (*GROUP_KINDS, *kinds_of(loaded, registry))
    if files:
        manifests = read(files, sys.stdin.buffer, namespace or "default", kinds)
    else:
        wanted = [each.name for each in copies]
        manifests = live_manifests(kubeconfig, context, namespace, kinds, wanted)
    stop_for(manifests.faults)
    added = objects_in(add, sys.stdin.buffer, manifests.faults)
    stop_for(manifests.faults)
    loaded = with_groups_of(manifests, loaded, registry, added, gang=gang)
    what_if = WhatIf(
        manifests.objects.values(), loaded, registry=registry, seed=seed, cluster=build_cluster(manifests)
    )
    if config is not None:
        what_if.changes.append(f"the configuration of {config}")
    question = Question(more_nodes=grown, drain=drain, lose=lose, afresh=afresh, more=copies, gang=gang)

    def read_more(manifests: Manifests) -> None:
        manifests.add(added)
        stop_for(manifests.faults)
        if verbose:
            echo_ignored(manifests)

    outcome = ask(what_if, question, manifests, read_more)
    if output == "json":
        click.echo(json.dumps(as_json(outcome)))
    else:
        fit_width()
        click.echo(paint(printable(render(outcome, all_pods=all_pods))))


def _several(text: str) -> Several:
    """Parse `name=3`; a name alone means one."""
    name, given, number = text.partition("=")
    return (
        Several(name, int(number) if number.isdecimal() and len(number) < 9 else 0)
        if given
        else Several(name)
    )
