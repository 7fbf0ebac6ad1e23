"""How long a what-if of many pods takes once the cluster is read: pods that fit, and pods that evict others.

The processor time of one thread, from the question to the answer, the least of some runs.
"""

from __future__ import annotations

import time

import click

from stowplan.bench.workloads import Workload, build, pending, read_workloads
from stowplan.simulator import WhatIf

WORKLOADS = ("plain", "default-spread", "hard-zone-spread", "anti-affinity", "preemption")


def seconds(workload: Workload, nodes: int, pods: int) -> tuple[float, int, int]:
    """The time, and how many pods were placed and evicted."""
    wanted = list(pending(workload, pods))
    what_if = WhatIf((), cluster=build(workload, nodes))
    began = time.process_time()
    what_if.add(wanted)
    outcome = what_if.run()
    return time.process_time() - began, len(outcome.placed), len(outcome.evicted)


@click.command()
@click.option("--nodes", type=click.IntRange(10), default=5000, show_default=True)
@click.option("--pods", type=click.IntRange(1), default=1000, show_default=True)
@click.option(
    "--workloads", "names", default=",".join(WORKLOADS), show_default=True, help="Divided by commas."
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(nodes: int, pods: int, names: str, rounds: int) -> None:
    """Ask what would become of so many pods."""
    known = {workload.name: workload for workload in read_workloads()}
    click.echo("| nodes | pods | workload | seconds | placed | evicted |\n" + "|---" * 6 + "|")
    for name in names.split(","):
        took, placed, evicted = min(seconds(known[name], nodes, pods) for _ in range(rounds))
        click.echo(f"| {nodes:,} | {pods:,} | {name} | {took:.2f} | {placed:,} | {evicted:,} |")


if __name__ == "__main__":
    main()
