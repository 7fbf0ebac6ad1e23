"""`stowplan whatif`: what would land where if something about a cluster were different."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from stowplan.api.manifests import Manifests, read, read_into
from stowplan.cli.cluster_source import config_of, echo_ignored, kinds_of, live_manifests, stop_for
from stowplan.cli.plugin_dirs import PLUGIN_DIRS
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
    help="The cluster as manifests or a dump of `kubectl get … -o yaml|json`: a file, a directory, or - for "
    "standard input. Without it, the cluster of the kubeconfig is read; nothing is ever written.",
)
@click.option("--kubeconfig", metavar="FILE", help="Instead of KUBECONFIG, or the usual file.")
@click.option("--context", help="Of the kubeconfig, instead of its current one.")
@click.option("-n", "--namespace", help="Of pods and manifests that name none.")
@click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration or Policy.")
@click.option(
    "--policy", type=click.Path(path_type=Path), help="The Policy an older configuration refers to."
)
@PLUGIN_DIRS
@click.option(
    "--add",
    metavar="FILE",
    multiple=True,
    help="Manifests of what would be added, or replaced: pods, workloads, nodes, whatever there is.",
)
@click.option(
    "--more", metavar="POD[=N]", multiple=True, help="N more pods like POD, or of a deployment/web."
)
@click.option("--more-nodes", metavar="NODE[=N]", multiple=True, help="N more nodes like NODE.")
@click.option("--drain", metavar="NODE", multiple=True, help="The node is cordoned and its pods are evicted.")
@click.option("--lose", metavar="NODE", multiple=True, help="The node is gone, with all its pods.")
@click.option("--all", "afresh", is_flag=True, help="Every pod is placed afresh, not only those that wait.")
@click.option("--seed", type=int, help="Draw among equally good nodes at random, with this seed.")
@click.option("--all-pods", is_flag=True, help="List all pods, however many there are.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Say which kinds of objects were not looked at.")
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
    more_nodes: tuple[str, ...],
    drain: tuple[str, ...],
    lose: tuple[str, ...],
    afresh: bool,
    seed: int | None,
    all_pods: bool,
    output: str,
    verbose: bool,
) -> None:
    """Show what would land where if something were different, who would be evicted, what would stay pending.

    Pods that are pending now are decided along with those that the changes bring, in the scheduler's order.
    Changes can be combined: nodes are added first, then drained and lost, then come the pods. With --config,
    the scheduler is another one.
    """
    if files and (kubeconfig or context):
        raise click.UsageError("-f names files with the cluster, --kubeconfig and --context an API server")
    copies, grown = (tuple(map(_several, each)) for each in (more, more_nodes))
    registry = Registry.installed(plugin_dirs)
    loaded = config_of(config, policy, registry)
    kinds = kinds_of(loaded, registry)
    if files:
        manifests = read(files, sys.stdin.buffer, namespace or "default", kinds)
    else:
        wanted = [each.name for each in copies]
        manifests = live_manifests(kubeconfig, context, namespace, kinds, wanted)
    stop_for(manifests.faults)
    what_if = WhatIf(
        manifests.objects.values(), loaded, registry=registry, seed=seed, cluster=build_cluster(manifests)
    )
    if config is not None:
        what_if.changes.append(f"the configuration of {config}")
    question = Question(more_nodes=grown, drain=drain, lose=lose, afresh=afresh, more=copies)

    def read_more(manifests: Manifests) -> None:
        read_into(manifests, add, sys.stdin.buffer)
        stop_for(manifests.faults)
        if verbose:
            echo_ignored(manifests)

    outcome = ask(what_if, question, manifests, read_more)
    if output == "json":
        click.echo(json.dumps(as_json(outcome)))
    else:
        click.echo(printable(render(outcome, all_pods=all_pods)))


def _several(text: str) -> Several:
    """`name=3`, or a name alone for one."""
    name, given, number = text.partition("=")
    return (
        Several(name, int(number) if number.isdecimal() and len(number) < 9 else 0)
        if given
        else Several(name)
    )
