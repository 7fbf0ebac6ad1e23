"""`stowplan explain`: explain why a pod was placed on its node, or on none, or why a pod group waits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from stowplan.api.names import POD, kind_and_name
from stowplan.cli.options import (
    OUTPUT,
    SEED,
    VERBOSE,
    ClusterSource,
    SchedulerSource,
    SourceOptions,
    source_options,
)
from stowplan.cli.terminal import echo_error, fit_width, paint
from stowplan.errors import InputError, StowplanError
from stowplan.explain.layout import printable

if TYPE_CHECKING:
    from stowplan.client.connection import Connection
    from stowplan.explain.changes import ChangesAnswer, Printed
    from stowplan.explain.group_report import GroupReport


GROUP_WORDS = ("group", "podgroup")


@click.command()
@click.argument("pods", metavar="POD... | group GROUP", nargs=-1, required=True)
@source_options(
    "Read the cluster from manifests or the output of `kubectl get … -o yaml|json`: a file, a directory, or "
    "- for standard input. Repeatable.",
    "Explain decisions of the running scheduler at URL, such as https://localhost:10259.",
)
@click.option("--node", help="Explain the decision for this node in detail.")
@click.option(
    "--changes/--no-changes",
    default=True,
    show_default=True,
    help="Also list the smallest changes that would alter the outcome.",
)
@click.option("--all-nodes", is_flag=True, help="List all nodes instead of the first few.")
@click.option("--members", is_flag=True, help="For a group: list its pods, each with its reason.")
@click.option("--domains", is_flag=True, help="For a group: list the domains of its topology constraint.")
@SEED
@OUTPUT
@VERBOSE
def explain(
    options: SourceOptions,
    pods: tuple[str, ...],
    node: str | None,
    changes: bool,
    all_nodes: bool,
    members: bool,
    domains: bool,
    seed: int | None,
    output: str,
    verbose: bool,
) -> None:
    """Explain why a pod was placed on its node, or on none; or why a pod group waits.

    With --server or --journal, or if the kubeconfig is that of `stowplan up`, explain a decision that a
    Stowplan scheduler made. Otherwise, compute what kube-scheduler would decide now for the cluster in the
    files (-f) or of the kubeconfig; nothing is written to it. A pod that is already running is decided as
    if it were pending. Given several PODs, each is placed before the next is decided.

    POD is a name or namespace/name. Without --server and --journal it may also be a workload such as
    deployment/web, which stands for its next pod. With -o json, print one JSON object per POD and line. The
    exit status is 1 if a POD could not be explained.

    `stowplan explain group NAMESPACE/NAME` says how many pods of a group fit, what the others lack, which
    groups are ahead of it, and the smallest changes that would let it start.
    """
    if pods[0] in GROUP_WORDS and len(pods) > 1:
        for name, it in (("--node", node), ("--all-nodes", all_nodes)):
            if it:
                raise click.UsageError(f"{name} is for pods; use --members and --domains for a group")
        shown = _Shown(changes, members, domains, output == "json")
    elif members or domains:
        raise click.UsageError(
            "--members and --domains are for groups: stowplan explain group NAMESPACE/NAME"
        )
    else:
        shown = None
    wanted = Wanted(node, changes and node is None, output == "json", all_nodes)
    fit_width()
    found: Iterator[ExplainAnswer]
    journal, namespace = options.journal, options.namespace
    if options.server:
        connection = options.connect()
        if shown is not None:
            keys = _group_keys(pods, namespace or connection.namespace)
            found = _groups_from_scheduler(connection, keys, shown)
        else:
            keys = pod_keys(pods, namespace or connection.namespace)
            found = explain_from_scheduler(connection, keys, wanted)
    elif journal and shown is not None:
        found = _groups_from_journal(journal, _group_keys(pods, namespace or "default"), shown)
    elif journal:
        found = explain_from_journal(journal, pod_keys(pods, namespace or "default"), wanted)
    else:
        cluster, scheduler = options.cluster(verbose=verbose), options.scheduler(seed)
        is_default = scheduler == SchedulerSource(None, None, (), None)
        asks = is_default and not options.files
        if shown is not None:
            found = (_groups_if_there(pods, cluster, shown) if asks else None) or (
                _groups_now(pods, cluster, scheduler, shown)
            )
        else:
            found = (explain_as_decided(pods, cluster, wanted) if asks else None) or (
                explain_now(pods, cluster, scheduler, wanted)
            )
    _print(found)


def _print(answers: Iterator[ExplainAnswer]) -> None:
    """Print the answers, and exit with status 1 if one is missing."""
    between, is_complete = "", True
    for answer in answers:
        if answer.printed.fault:
            echo_error(answer.printed.fault)
            is_complete = False
        elif answer.printed.data is not None:
            click.echo(json.dumps(answer.printed.data | _later_data(answer)))
        else:
            click.echo(between + paint(printable(answer.printed.text)))
            click.echo(printable(later_text(answer)), nl=False)
            between = "\n\n"
    if not is_complete:
        sys.exit(1)


class Wanted(NamedTuple):
    """What to explain, and how to print it."""

    node: str | None
    changes: bool
    as_data: bool
    all_nodes: bool


class ExplainAnswer(NamedTuple):
    printed: Printed
    changes: Callable[[], ChangesAnswer | None] = lambda: None
    """Asks for the smallest changes, which takes longer; None if there is nothing to add."""


class _Shown(NamedTuple):
    """What to show of a group, and how to print it."""

    changes: bool
    members: bool
    domains: bool
    as_data: bool


def explain_as_decided(
    pods: tuple[str, ...], cluster: ClusterSource, wanted: Wanted
) -> Iterator[ExplainAnswer] | None:
    """Explain decisions of the scheduler that the kubeconfig leads to, as that of `stowplan up` does.

    None if there is none, or if it has not decided about all of the pods.
    """
    if any(kind_and_name(each)[0] not in (None, POD) for each in pods):
        return None  # the next pod of a workload: nobody has decided about it yet
    from stowplan.cli.scheduler_client import ask_if_there
    from stowplan.client import kubeconfig as kubeconfigs

    connection = kubeconfigs.load(cluster.kubeconfig, context=cluster.context)
    keys = pod_keys(pods, cluster.namespace or connection.namespace)
    found = ask_if_there(
        connection, keys, node=wanted.node, as_data=wanted.as_data, all_nodes=wanted.all_nodes
    )
    if isinstance(found, str):
        note = f"{connection.server}: {found}; computing what the default configuration would decide now"
        click.echo(printable(f"{note} (see --server and --config)"), err=True)
        return None
    return _answers(connection, keys, found, wanted)


def explain_now(
    pods: tuple[str, ...],
    cluster: ClusterSource,
    scheduler: SchedulerSource,
    wanted: Wanted,
    on_faults: Callable[[Sequence[InputError]], None] | None = None,
) -> Iterator[ExplainAnswer]:
    from stowplan.api.templates import find_target
    from stowplan.cli.cluster_source import config_of, kinds_of, read_manifests, stop_for, with_features_of
    from stowplan.explain.changes import Printed
    from stowplan.explain.explainer import Explainer
    from stowplan.explain.text import print_explanation
    from stowplan.framework.registry import Registry

    registry = Registry.installed(scheduler.plugin_dirs)
    config = config_of(scheduler.config, scheduler.policy, registry)
    kinds = kinds_of(config, registry)
    manifests = read_manifests(cluster, kinds, pods)
    (on_faults or stop_for)(manifests.faults)
    config = with_features_of(manifests, config, registry)
    explainer = Explainer(manifests, config, registry=registry, seed=scheduler.seed)
    for pod in pods:
        try:
            found = explainer.explain(find_target(manifests, pod), wanted.node, changes=wanted.changes)
        except StowplanError as error:
            yield ExplainAnswer(Printed(fault=str(error)))
            continue
        yield ExplainAnswer(print_explanation(found, as_data=wanted.as_data, all_nodes=wanted.all_nodes))


def explain_from_scheduler(
    connection: Connection, keys: tuple[str, ...], wanted: Wanted
) -> Iterator[ExplainAnswer]:
    """Explain decisions of a running scheduler."""
    from stowplan.cli.scheduler_client import ask

    found = ask(connection, keys, node=wanted.node, as_data=wanted.as_data, all_nodes=wanted.all_nodes)
    return _answers(connection, keys, found, wanted)


def _answers(
    connection: Connection, keys: tuple[str, ...], found: Sequence[Printed], wanted: Wanted
) -> Iterator[ExplainAnswer]:
    from stowplan.cli.scheduler_client import ask_changes
    from stowplan.client.errors import ApiError

    def changes_for(key: str) -> ChangesAnswer | None:
        try:
            return ask_changes(connection, key) if wanted.changes else None
        except ApiError as error:
            why = printable(str(error))
            click.echo(f"{connection.server}: cannot compute alternative changes: {why}", err=True)
            return None

    for key, each in zip(keys, found, strict=True):
        yield ExplainAnswer(each, partial(changes_for, key))


def explain_from_journal(journal: str, keys: tuple[str, ...], wanted: Wanted) -> Iterator[ExplainAnswer]:
    """Explain decisions of a journal; damaged files are reported and skipped."""
    # Starting NumPy's threads would take longer than everything else, and they have nothing to do.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stowplan.explain.changes import Printed
    from stowplan.explain.recorded import add_weight_changes, explain_record
    from stowplan.explain.text import print_explanation
    from stowplan.journal import reader

    damaged: set[Path] = set()

    def on_damage(path: Path, error: Exception) -> None:
        damaged.add(path)
        _warn_of_damage(path, error)

    for key in keys:
        found = reader.find(Path(journal), key, on_damage)
        if not found:
            fault = f"{journal}: no decision for pod {key}; {reader.describe_span(Path(journal))}"
            fault += f"; {len(damaged)} of its files cannot be read" if damaged else ""
            yield ExplainAnswer(Printed(fault=fault))
            continue
        try:
            explained = explain_record(found[0], wanted.node)
        except InputError as error:
            yield ExplainAnswer(Printed(fault=str(error)))
            continue
        explained = add_weight_changes(explained) if wanted.changes else explained
        yield ExplainAnswer(print_explanation(explained, as_data=wanted.as_data, all_nodes=wanted.all_nodes))


def _warn_of_damage(path: Path, error: Exception) -> None:
    click.echo(f"{path}: skipping unreadable file: {' '.join(str(error).split())}", err=True)


def pod_keys(pods: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    """The keys of the pods: recorded decisions exist only for pods, not for workloads."""
    found = []
    for wanted in pods:
        kind, name = kind_and_name(wanted)
        if kind not in (None, POD):
            raise InputError(f"{wanted}: expected a pod, not a {kind}")
        found.append(wanted if kind is None and "/" in wanted else f"{namespace}/{name}")
    return tuple(found)


def _later_data(answer: ExplainAnswer) -> dict[str, object]:
    changes = answer.changes()
    return {} if changes is None else {"changes": msgspec.to_builtins(changes.changes)}


def later_text(answer: ExplainAnswer) -> str:
    changes = answer.changes()
    if changes is None:
        return ""
    from stowplan.explain.changes import present_changes_text

    return f"\n{present_changes_text(changes)}\n"


def _group_keys(words: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    return tuple(name if "/" in name else f"{namespace}/{name}" for name in words[1:])


def _groups_from_scheduler(
    connection: Connection, keys: tuple[str, ...], shown: _Shown
) -> Iterator[ExplainAnswer]:
    """Explain groups of a running scheduler, on its cluster as it is now."""
    from stowplan.cli.scheduler_client import ask_group
    from stowplan.explain.changes import Printed

    for key in keys:
        try:
            report = ask_group(connection, key, changes=shown.changes)
        except InputError as error:
            yield ExplainAnswer(Printed(fault=str(error)))
        else:
            yield _print_group(report, shown)


def _groups_if_there(
    words: tuple[str, ...], cluster: ClusterSource, shown: _Shown
) -> Iterator[ExplainAnswer] | None:
    """Ask the scheduler that the kubeconfig leads to; None if there is none, or if it reads no groups."""
    from stowplan.cli.scheduler_client import group_or_none
    from stowplan.client import kubeconfig as kubeconfigs

    connection = kubeconfigs.load(cluster.kubeconfig, context=cluster.context)
    keys = _group_keys(words, cluster.namespace or connection.namespace)
    reports = [group_or_none(connection, key, changes=shown.changes) for key in keys]
    if any(report is None for report in reports):
        return None
    return (_print_group(report, shown) for report in reports if report is not None)


def _groups_now(
    words: tuple[str, ...], cluster: ClusterSource, scheduler: SchedulerSource, shown: _Shown
) -> Iterator[ExplainAnswer]:
    """Decide the groups on the cluster of the files or of the kubeconfig."""
    from stowplan.cli.cluster_source import (
        GROUP_KINDS,
        config_of,
        kinds_of,
        read_manifests,
        stop_for,
        with_groups_of,
    )
    from stowplan.explain.changes import Printed
    from stowplan.explain.explainer import Explainer
    from stowplan.framework.registry import Registry

    registry = Registry.installed(scheduler.plugin_dirs)
    config = config_of(scheduler.config, scheduler.policy, registry)
    kinds = (*GROUP_KINDS, *kinds_of(config, registry))
    manifests = read_manifests(cluster, kinds)
    stop_for(manifests.faults)
    config = with_groups_of(manifests, config, registry)
    explainer = Explainer(manifests, config, registry=registry, seed=scheduler.seed)
    for key in _group_keys(words, manifests.namespace):
        try:
            report = explainer.explain_group(key, changes=shown.changes)
        except StowplanError as error:
            yield ExplainAnswer(Printed(fault=str(error)))
        else:
            yield _print_group(report, shown)


def _groups_from_journal(journal: str, keys: tuple[str, ...], shown: _Shown) -> Iterator[ExplainAnswer]:
    """Explain the last recorded attempt at each group."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from stowplan.explain.changes import Printed
    from stowplan.explain.groups import explain_recorded_group
    from stowplan.journal import reader

    for key in keys:
        found = reader.find_group(Path(journal), key, _warn_of_damage)
        if not found:
            span = reader.describe_span(Path(journal))
            yield ExplainAnswer(Printed(fault=f"{journal}: no decision for pod group {key}; {span}"))
        else:
            yield _print_group(explain_recorded_group(key, found), shown)


def _print_group(report: GroupReport, shown: _Shown) -> ExplainAnswer:
    from stowplan.explain import group_report
    from stowplan.explain.changes import Printed

    if shown.as_data:
        return ExplainAnswer(Printed(data=group_report.as_json(report)))
    return ExplainAnswer(Printed(group_report.render(report, members=shown.members, domains=shown.domains)))
