"""`stowplan explain`: why a pod landed where it is, would land where it does, or nowhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from stowplan.cli.plugin_dirs import PLUGIN_DIRS
from stowplan.errors import InputError
from stowplan.explain.layout import printable
from stowplan.explain.manifests import POD
from stowplan.explain.report import Explanation, as_json
from stowplan.explain.targets import kind_and_name
from stowplan.explain.text import render

if TYPE_CHECKING:
    from stowplan.client.connection import Connection


@click.command()
@click.argument("pods", metavar="POD...", nargs=-1, required=True)
@click.option(
    "-f",
    "--filename",
    "files",
    metavar="FILE",
    multiple=True,
    help="Decide afresh on manifests or a dump of `kubectl get … -o yaml|json`: a file, a directory, or - "
    "for standard input.",
)
@click.option(
    "--server", metavar="URL", help="Ask the scheduler that serves there, as https://localhost:10259."
)
@click.option("--journal", metavar="DIR", help="Look up what a scheduler has written there.")
@click.option("--kubeconfig", metavar="FILE", help="Instead of KUBECONFIG, or the usual file.")
@click.option("--context", help="Of the kubeconfig, instead of its current one.")
@click.option("--token-file", metavar="FILE", help="For --server, instead of the kubeconfig's user.")
@click.option("--certificate-authority", "authority", metavar="FILE", help="That of --server.")
@click.option("--insecure-skip-tls-verify", "insecure", is_flag=True, help="Take --server for what it says.")
@click.option("-n", "--namespace", help="Namespace of PODs and manifests that name none.")
@click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration or Policy.")
@click.option(
    "--policy", type=click.Path(path_type=Path), help="The Policy an older configuration refers to."
)
@PLUGIN_DIRS
@click.option("--node", help="Explain this node in full.")
@click.option(
    "--changes/--no-changes", default=True, show_default=True, help="Look for the smallest that would matter."
)
@click.option("--all-nodes", is_flag=True, help="List all nodes, however many there are.")
@click.option("--seed", type=int, help="Draw among equally good nodes at random, with this seed.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Say which kinds of objects were not looked at.")
def explain(
    pods: tuple[str, ...],
    files: tuple[str, ...],
    server: str | None,
    journal: str | None,
    kubeconfig: str | None,
    context: str | None,
    token_file: str | None,
    authority: str | None,
    insecure: bool,
    namespace: str | None,
    config: Path | None,
    policy: Path | None,
    plugin_dirs: tuple[Path, ...],
    node: str | None,
    changes: bool,
    all_nodes: bool,
    seed: int | None,
    output: str,
    verbose: bool,
) -> None:
    """Show why a pod landed where it is, or lands where it does, or nowhere.

    With --server or --journal the decision is explained that a Stowplan scheduler made. Otherwise what
    kube-scheduler would decide is worked out afresh, from files (-f) or from what the API server of the
    kubeconfig has, which is only read; a pod that runs already is explained as if it did not. Of several
    PODs, each is placed before the next is decided.

    POD is a name or namespace/name; to decide afresh also a workload such as deployment/web, whose next pod
    is meant. With -o json, every POD gets one line: a JSON object.
    """
    given = [name for name, it in (("-f", files), ("--server", server), ("--journal", journal)) if it]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are different places to ask: give one of them")
    found: Iterator[Explanation | str]
    if server:
        from stowplan.cli.kept_decisions import scheduler_at

        connection = scheduler_at(
            server,
            kubeconfig=kubeconfig,
            context=context,
            token_file=token_file,
            authority=authority,
            insecure=insecure,
        )
        found = _told(connection, _keys(pods, namespace or connection.namespace), node)
    elif journal:
        found = _written(journal, _keys(pods, namespace or "default"), node)
    else:
        if files and (kubeconfig or context):
            raise click.UsageError(
                "-f names files with the cluster, --kubeconfig and --context an API server"
            )
        cluster = _Cluster(files, kubeconfig, context, namespace, verbose)
        found = _afresh(pods, cluster, _Scheduler(config, policy, plugin_dirs, seed), node, changes)
    for number, each in enumerate(found):
        _echo(each, number, output, all_nodes)


class _Cluster(NamedTuple):
    """Where the cluster is to be read."""

    files: tuple[str, ...]
    kubeconfig: str | None
    context: str | None
    namespace: str | None
    is_verbose: bool


class _Scheduler(NamedTuple):
    """How it is to be decided."""

    config: Path | None
    policy: Path | None
    plugin_dirs: tuple[Path, ...]
    seed: int | None


def _afresh(
    pods: tuple[str, ...], cluster: _Cluster, scheduler: _Scheduler, node: str | None, changes: bool
) -> Iterator[Explanation]:
    from stowplan.cli.cluster_source import config_of, echo_ignored, kinds_of, live_manifests, stop_for
    from stowplan.explain.manifests import read
    from stowplan.explain.offline import Explainer
    from stowplan.explain.targets import find_target
    from stowplan.framework.registry import Registry

    registry = Registry.installed(scheduler.plugin_dirs)
    config = config_of(scheduler.config, scheduler.policy, registry)
    kinds = kinds_of(config, registry)
    if cluster.files:
        manifests = read(cluster.files, sys.stdin.buffer, cluster.namespace or "default", kinds)
        stop_for(manifests.faults)
    else:
        manifests = live_manifests(cluster.kubeconfig, cluster.context, cluster.namespace, kinds, pods)
    if cluster.is_verbose:
        echo_ignored(manifests)
    explainer = Explainer(manifests, config, registry=registry, seed=scheduler.seed)
    for wanted in pods:
        yield explainer.explain(find_target(manifests, wanted), node, changes=changes and node is None)


def _told(connection: Connection, keys: tuple[str, ...], node: str | None) -> Iterator[Explanation | str]:
    """What a running scheduler says."""
    from stowplan.cli.kept_decisions import ask
    from stowplan.explain.kept import explain_answer

    for answer in ask(connection, keys):
        yield explain_answer(answer, node)


def _written(journal: str, keys: tuple[str, ...], node: str | None) -> Iterator[Explanation | str]:
    """What a journal has; files of it that are damaged are named and skipped."""
    from stowplan.explain.kept import explain_record
    from stowplan.journal import reader

    def warn(path: Path, error: Exception) -> None:
        click.echo(f"{path}: damaged, and skipped: {' '.join(str(error).split())}", err=True)

    for key in keys:
        found = reader.find(Path(journal), key, warn)
        if not found:
            raise InputError(f"no decision on pod {key}; {reader.span(Path(journal))}", where=journal)
        yield explain_record(found[0], node)


def _keys(pods: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    """Which pods are meant; only those that exist have been decided."""
    found = []
    for wanted in pods:
        kind, name = kind_and_name(wanted)
        if kind not in (None, POD):
            raise InputError(f"{wanted}: only pods are decided; name one, not a {kind}")
        found.append(wanted if kind is None and "/" in wanted else f"{namespace}/{name}")
    return tuple(found)


def _echo(found: Explanation | str, number: int, output: str, all_nodes: bool) -> None:
    if output == "json":
        click.echo(json.dumps({"waiting": found} if isinstance(found, str) else as_json(found)))
        return
    text = found if isinstance(found, str) else render(found, all_nodes=all_nodes)
    click.echo(("\n\n" if number else "") + printable(text))
