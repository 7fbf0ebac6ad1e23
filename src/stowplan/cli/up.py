"""`stowplan up`: a local cluster in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stowplan.cli.options import CONFIG, PLUGIN_DIRS, log_level

if TYPE_CHECKING:
    from stowplan.embedded.up import UpOptions

NEXT = """
  export KUBECONFIG={kubeconfig}
  kubectl get nodes
  kubectl create deployment web --image=web --replicas=3
  kubectl get pods -o wide
  stowplan explain POD

Web page: {page}
{scheduler}
Press Ctrl-C to stop."""


COPIED = "set KUBECONFIG to the kubeconfig of the cluster to copy"
"""--kubeconfig is the file to write here."""


@click.command()
@click.option(
    "--nodes",
    metavar="N",
    help="Number of nodes, or node templates as YAML or in a file: '{count: 3, cpu: 16, zones: [a, b]}' "
    "(default: 10, unless nodes exist already).",
)
@CONFIG
@PLUGIN_DIRS
@click.option(
    "-f",
    "--filename",
    "files",
    metavar="FILE",
    multiple=True,
    help="Manifests to create at the start; - reads standard input. Repeatable.",
)
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="Store all objects in this directory."
)
@click.option(
    "--journal", type=click.Path(path_type=Path), metavar="DIR", help="Store all decisions in this directory."
)
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Record a trace of the cluster in this directory, for `stowplan replay`.",
)
@click.option(
    "--page-port",
    type=click.IntRange(0, 65535),
    help="Port for the web page; 0 is a free port (default: the port of the API server).",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port for the API server, the web page and the scheduler's metrics (default: a free port).",
)
@click.option(
    "--secure-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Also serve the scheduler's health, metrics and pages over HTTPS on this port of 127.0.0.1, as "
    "`stowplan run` does.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Simulated seconds per real second.",
)
@click.option(
    "--missing-image",
    "missing_images",
    metavar="PATTERN",
    multiple=True,
    help="Images that the simulated nodes cannot pull, such as '*:broken'. Repeatable.",
)
@click.option(
    "--rbac",
    is_flag=True,
    help="Enforce RBAC: service accounts and impersonated users may only do what roles allow.",
)
@click.option(
    "--feature-gates",
    metavar="GATE=true,...",
    default="",
    help="Feature gates of pod groups to enable in API server, controllers and scheduler: GenericWorkload, "
    "GangScheduling, TopologyAwareWorkloadScheduling, WorkloadAwarePreemption, WorkloadWithJob, "
    "DRAWorkloadResourceClaims (default: none).",
)
@click.option(
    "--groups",
    is_flag=True,
    help="Install the CustomResourceDefinitions of pod groups and queues of scheduler-plugins and Volcano, "
    "and place the pods of such groups as one. Kinds that a plugin in --config watches are always "
    "installed; install other kinds that plugins watch, such as AppGroup and NodeResourceTopology, with "
    "`stowplan crd PLUGIN | kubectl apply -f -`.",
)
@click.option(
    "--from-cluster",
    is_flag=True,
    help="Start with a copy of the cluster of KUBECONFIG; nothing is written to it.",
)
@click.option("--context", help="Kubeconfig context to use for --from-cluster.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    default=Path("stowplan.kubeconfig"),
    show_default=True,
    help="Kubeconfig file to write.",
)
@log_level("Log level of the scheduler, 0 or higher (default: no log).", default=-1)
def up(
    nodes: str | None,
    config: Path | None,
    plugin_dirs: tuple[Path, ...],
    files: tuple[str, ...],
    data: Path | None,
    journal: Path | None,
    record: Path | None,
    page_port: int | None,
    host: str,
    port: int,
    secure_port: int,
    speed: float,
    missing_images: tuple[str, ...],
    rbac: bool,
    feature_gates: str,
    groups: bool,
    from_cluster: bool,
    context: str | None,
    kubeconfig: Path,
    verbosity: int,
) -> None:
    """Start a local cluster: API server, simulated nodes, controllers and Stowplan's scheduler.

    Everything runs in this process. Use kubectl with the kubeconfig that is written, and press Ctrl-C to
    stop. With --data, the next start finds all objects again.
    """
    import asyncio
    import gc
    from time import perf_counter

    began = perf_counter()
    gc.set_threshold(20_000, 20, 50)  # the start makes many objects, and none that have to be found
    from stowplan import log
    from stowplan.api.manifests import objects_in
    from stowplan.cli.cluster_source import stop_for
    from stowplan.client import kubeconfig as kubeconfigs
    from stowplan.embedded.up import Ready, UpOptions
    from stowplan.embedded.up import up as run
    from stowplan.errors import InputError
    from stowplan.kubelet import read_templates

    if context and not from_cluster:
        raise click.UsageError("--context requires --from-cluster")
    faults: list[InputError] = []
    manifests = objects_in(files, sys.stdin.buffer, faults)
    stop_for(faults)
    log.configure(verbosity=verbosity)
    options = UpOptions(
        kubeconfig=kubeconfig.absolute(),
        nodes=None if nodes is None else read_templates(nodes),
        config=config,
        plugin_dirs=plugin_dirs,
        manifests=manifests,
        data=data,
        journal=journal,
        record=record,
        page_port=page_port,
        host=host,
        port=port,
        secure_port=secure_port,
        speed=speed,
        missing_images=missing_images,
        rbac=rbac,
        feature_gates=feature_gates,
        groups=groups,
        copied=kubeconfigs.load(None, context=context, remedy=COPIED) if from_cluster else None,
    )

    def report(ready: Ready) -> None:
        for warning in ready.warnings:
            click.echo(warning, err=True)
        seconds = perf_counter() - began
        click.echo(f"Ready in {seconds:.1f} s: {ready.nodes} nodes, {ready.pods} pods, at {ready.server}")
        scheduler = f"Scheduler: {ready.scheduler}\n" if ready.scheduler else ""
        click.echo(NEXT.format(kubeconfig=options.kubeconfig, scheduler=scheduler, page=ready.page))

    try:
        status = asyncio.run(run(options, report))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    click.echo(_describe_end(options))
    sys.exit(status)


def _describe_end(options: UpOptions) -> str:
    """What is left once the cluster has stopped."""
    lines = [f"Stopped. {options.kubeconfig} no longer leads to a cluster; the next start replaces it."]
    if options.data is None:
        lines.append("All objects are gone; use --data DIR to keep them.")
    else:
        lines.append(f"All objects are in {options.data}: continue with stowplan up --data {options.data}")
    if options.journal is not None:
        lines.append(
            f"All decisions are in {options.journal}: stowplan explain POD --journal {options.journal}"
        )
    if options.record is not None:
        lines.append(f"The trace is in {options.record}: stowplan replay {options.record}")
    return "\n" + "\n".join(lines)
