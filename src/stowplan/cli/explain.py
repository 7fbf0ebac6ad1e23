"""`stowplan explain`: why a pod landed where it is, would land where it does, or nowhere."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from stowplan.api.names import POD, kind_and_name
from stowplan.cli.plugin_dirs import PLUGIN_DIRS
from stowplan.errors import InputError, StowplanError
from stowplan.explain.layout import printable

if TYPE_CHECKING:
    from stowplan.client.connection import Connection
    from stowplan.explain.changes import ChangesAnswer, Printed


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
    is meant. With -o json, every POD gets one line: a JSON object. PODs without an answer are named on
    standard error, and the exit status is 1.
    """
    given = [name for name, it in (("-f", files), ("--server", server), ("--journal", journal)) if it]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are different places to ask: give one of them")
    wanted = _Wanted(node, changes and node is None, output == "json", all_nodes)
    found: Iterator[_Answer]
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
        found = _told(connection, _keys(pods, namespace or connection.namespace), wanted)
    elif journal:
        found = _written(journal, _keys(pods, namespace or "default"), wanted)
    else:
        if files and (kubeconfig or context):
            raise click.UsageError(
                "-f names files with the cluster, --kubeconfig and --context an API server"
            )
        cluster = _Cluster(files, kubeconfig, context, namespace, verbose)
        found = _afresh(pods, cluster, _Scheduler(config, policy, plugin_dirs, seed), wanted)
    _print(found)


def _print(answers: Iterator[_Answer]) -> None:
    """Ends with exit status 1 if there was no answer for one of the pods."""
    between, is_complete = "", True
    for answer in answers:
        if answer.printed.fault:
            click.echo(printable(f"stowplan: {answer.printed.fault}"), err=True)
            is_complete = False
        elif answer.printed.data is not None:
            click.echo(json.dumps(answer.printed.data | _later_data(answer)))
        else:
            click.echo(between + printable(answer.printed.text))
            click.echo(printable(_later_text(answer)), nl=False)
            between = "\n\n"
    if not is_complete:
        sys.exit(1)


class _Wanted(NamedTuple):
    """What is to be told, and how."""

    node: str | None
    changes: bool
    as_data: bool
    all_nodes: bool


class _Answer(NamedTuple):
    printed: Printed
    changes: Callable[[], ChangesAnswer | None] = lambda: None
    """What is looked for only then, as that takes longer; None if there is nothing more to say."""


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
    pods: tuple[str, ...], cluster: _Cluster, scheduler: _Scheduler, wanted: _Wanted
) -> Iterator[_Answer]:
    from stowplan.api.manifests import read
    from stowplan.api.templates import find_target
    from stowplan.cli.cluster_source import config_of, echo_ignored, kinds_of, live_manifests, stop_for
    from stowplan.explain.changes import Printed
    from stowplan.explain.explainer import Explainer
    from stowplan.explain.text import printed
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
    for pod in pods:
        try:
            found = explainer.explain(find_target(manifests, pod), wanted.node, changes=wanted.changes)
        except StowplanError as error:
            yield _Answer(Printed(fault=str(error)))
            continue
        yield _Answer(printed(found, as_data=wanted.as_data, all_nodes=wanted.all_nodes))


def _told(connection: Connection, keys: tuple[str, ...], wanted: _Wanted) -> Iterator[_Answer]:
    """What a running scheduler says."""
    from stowplan.cli.kept_decisions import ask, ask_changes
    from stowplan.client.errors import ApiError

    def changes_for(key: str) -> ChangesAnswer | None:
        try:
            return ask_changes(connection, key) if wanted.changes else None
        except ApiError as error:
            why = printable(str(error))
            click.echo(f"{connection.server}: the smallest changes are not told: {why}", err=True)
            return None

    found = ask(connection, keys, node=wanted.node, as_data=wanted.as_data, all_nodes=wanted.all_nodes)
    for key, each in zip(keys, found, strict=True):
        yield _Answer(each, partial(changes_for, key))


def _written(journal: str, keys: tuple[str, ...], wanted: _Wanted) -> Iterator[_Answer]:
    """What a journal has; files of it that are damaged are named and skipped."""
    # NumPy's threads would take longer to start than all else, and there is no work for them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stowplan.explain.changes import Printed
    from stowplan.explain.recorded import explain_record, with_weights
    from stowplan.explain.text import printed
    from stowplan.journal import reader

    def warn(path: Path, error: Exception) -> None:
        click.echo(f"{path}: damaged, and skipped: {' '.join(str(error).split())}", err=True)

    for key in keys:
        found = reader.find(Path(journal), key, warn)
        if not found:
            yield _Answer(Printed(fault=f"{journal}: no decision on pod {key}; {reader.span(Path(journal))}"))
            continue
        try:
            explained = explain_record(found[0], wanted.node)
        except InputError as error:
            yield _Answer(Printed(fault=str(error)))
            continue
        explained = with_weights(explained) if wanted.changes else explained
        yield _Answer(printed(explained, as_data=wanted.as_data, all_nodes=wanted.all_nodes))


def _keys(pods: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    """Which pods are meant; only those that exist have been decided."""
    found = []
    for wanted in pods:
        kind, name = kind_and_name(wanted)
        if kind not in (None, POD):
            raise InputError(f"{wanted}: only pods are decided; name one, not a {kind}")
        found.append(wanted if kind is None and "/" in wanted else f"{namespace}/{name}")
    return tuple(found)


def _later_data(answer: _Answer) -> dict[str, Any]:
    changes = answer.changes()
    return {} if changes is None else {"changes": msgspec.to_builtins(changes.changes)}


def _later_text(answer: _Answer) -> str:
    changes = answer.changes()
    if changes is None:
        return ""
    from stowplan.explain.changes import present_changes_text

    return f"\n{present_changes_text(changes)}\n"
