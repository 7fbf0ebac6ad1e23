"""`stowplan bench`: measure the figures of docs/performance.md on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec
import yaml

from stowplan.api.names import suggest_names
from stowplan.bench.decisions import Measurement, measure
from stowplan.bench.memory import measure_memory
from stowplan.bench.plugin_cost import PluginCost, cost_of
from stowplan.bench.workloads import read_workloads
from stowplan.cli.options import PLUGIN_DIRS
from stowplan.errors import InputError
from stowplan.framework.plugin_audit import find_plugin

HEADER = (
    f"{'workload':20}{'nodes':>7}{'decisions/s':>13}{'p50 µs':>10}{'p99 µs':>10}{'cpu µs':>10}{'RSS MB':>9}"
)


@click.group()
def bench() -> None:
    """Measure the speed of scheduling decisions."""


@bench.command()
@click.option(
    "--nodes",
    type=click.IntRange(1),
    multiple=True,
    default=(5000,),
    show_default=True,
    help="Number of nodes. Repeatable.",
)
@click.option("--workload", "names", multiple=True, help="Run only this workload. Repeatable.")
@click.option(
    "--count", type=click.IntRange(1), help="Number of pods to measure (default: set by the workload)."
)
@click.option(
    "--workloads",
    "file",
    type=click.Path(exists=True, path_type=Path),
    help="File with workloads to use instead of the built-in ones.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def decisions(
    nodes: tuple[int, ...], names: tuple[str, ...], count: int | None, file: Path | None, output: str
) -> None:
    """Decide and place the pods of each workload on one thread, scoring every node.

    Times are in microseconds per decision, including placing the pod. With -o json, each measurement is a
    JSON object on a line of its own.
    """
    workloads = read_workloads(file.read_text() if file else None)
    unknown = set(names) - {workload.name for workload in workloads}
    if unknown:
        name = sorted(unknown)[0]
        hint = suggest_names(name, [workload.name for workload in workloads])
        raise InputError(f'unknown workload "{name}"{hint}')
    if output == "table":
        click.echo(HEADER)
    for size in nodes:
        for workload in workloads:
            if not names or workload.name in names:
                _show(measure(workload, size, count), output)


def _show(found: Measurement, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    click.echo(
        f"{found.workload:20}{found.nodes:>7}{found.per_second:>13,.0f}{found.p50:>10,.1f}{found.p99:>10,.1f}"
        f"{found.cpu:>10,.1f}{found.rss_mb:>9,.0f}"
    )


@bench.command()
@click.option("--nodes", type=click.IntRange(1), default=5000, show_default=True, help="Number of nodes.")
@click.option("--pods", type=click.IntRange(1), default=50000, show_default=True, help="Number of pods.")
def memory(nodes: int, pods: int) -> None:
    """Read a cluster from JSON and report how much memory it takes."""
    found = measure_memory(nodes, pods)
    click.echo(
        f"{found.nodes} nodes and {found.pods} pods of {found.pod_bytes} bytes of JSON: "
        f"{found.rss_mb} MB resident ({found.before_mb} MB before), read in {found.seconds} s"
    )


@bench.command()
@click.argument("name", metavar="PLUGIN")
@click.option("--nodes", type=click.IntRange(2), default=5000, show_default=True, help="Number of nodes.")
@click.option(
    "--count", type=click.IntRange(1), default=200, show_default=True, help="Number of decisions to measure."
)
@click.option("--args", "text", default="{}", help="The plugin's arguments, as JSON or YAML.")
@PLUGIN_DIRS
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def plugin(name: str, nodes: int, count: int, text: str, plugin_dirs: tuple[Path, ...], output: str) -> None:
    """Measure what a plugin adds to a decision, and the cost of each of its methods.

    PLUGIN is a name, module:Class, a file with one plugin, or file.py:Class. Pods are decided on one thread
    by the default plugins, alternately with and without the plugin, and every node is scored. Times are CPU
    time per decision in µs (median). Calls are the average per decision: a method whose answers are cached
    is called in few decisions, and timed in these.

    "added" also counts what Stowplan does for the plugin, such as checking and adding up its scores, so it
    exceeds the sum of the methods.
    """
    try:
        args = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"is neither JSON nor YAML: {' '.join(str(error).split())}", what="--args") from None
    if not isinstance(args, dict):
        raise InputError(f"expected an object, got {text}", what="--args")
    found = cost_of(find_plugin(name, plugin_dirs), args=args, nodes=nodes, decisions=count)
    if output == "json":
        click.echo(json.dumps({**msgspec.to_builtins(found), "added": found.added}))
    else:
        _show_cost(found)


def _show_cost(found: PluginCost) -> None:
    click.echo(f"{found.plugin} on {found.nodes} nodes, p50 of {found.decisions} decisions")
    click.echo(f"{'method':20}{'calls':>8}{'µs':>12}")
    for each in found.methods:
        click.echo(f"{each.method:20}{each.calls:>8,.6g}{each.p50:>12,.1f}")
    click.echo(f"{'decision without it':28}{found.without_it:>12,.1f}")
    click.echo(f"{'decision with it':28}{found.with_it:>12,.1f}")
    click.echo(f"{'added':28}{found.added:>12,.1f}")
