"""`stowplan up`: a whole cluster in one process, for kubectl and for trying out schedulers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from stowplan.cli.plugin_dirs import PLUGIN_DIRS

NEXT = """
  export KUBECONFIG={kubeconfig}
  kubectl get nodes
  kubectl create deployment web --image=web --replicas=3
  kubectl get pods -o wide
  stowplan explain POD --server {scheduler}

The page: {page}

Ctrl-C ends it."""


COPIED = "name that of the cluster to copy in KUBECONFIG"
"""--kubeconfig is something else here: the file that is written."""


@click.command()
@click.option(
    "--nodes",
    metavar="N",
    help="How many, or templates in YAML, or a file of them: '{count: 3, cpu: 16, zones: [a, b]}'. "
    "By default 10, unless there are nodes already.",
)
@click.option("--config", type=click.Path(path_type=Path), help="A KubeSchedulerConfiguration or Policy.")
@PLUGIN_DIRS
@click.option(
    "-f", "--filename", "files", metavar="FILE", multiple=True, help="Manifests to begin with; - reads input."
)
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR", help="Keep all objects there.")
@click.option("--journal", type=click.Path(path_type=Path), metavar="DIR", help="Keep all decisions there.")
@click.option(
    "--page-port", type=click.IntRange(0, 65535), default=0, help="Of the page; by default one that is free."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="By default one that is free.")
@click.option(
    "--speed",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds of nodes in one of ours.",
)
@click.option(
    "--from-cluster", is_flag=True, help="Begin as the cluster of KUBECONFIG looks; it is only read."
)
@click.option("--context", help="Of the kubeconfig, for --from-cluster.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    default=Path("stowplan.kubeconfig"),
    show_default=True,
    help="The file to write.",
)
@click.option("-v", "--verbosity", type=int, default=-1, help="Of the scheduler's log; 0 and more.")
def up(
    nodes: str | None,
    config: Path | None,
    plugin_dirs: tuple[Path, ...],
    files: tuple[str, ...],
    data: Path | None,
    journal: Path | None,
    page_port: int,
    host: str,
    port: int,
    speed: float,
    from_cluster: bool,
    context: str | None,
    kubeconfig: Path,
    verbosity: int,
) -> None:
    """Start a cluster: API server, simulated nodes, controllers, Stowplan's scheduler.

    All of it is this one process. kubectl works with the kubeconfig that is written; Ctrl-C ends it. With
    --data, the next start finds all objects again.
    """
    import asyncio
    from time import perf_counter

    began = perf_counter()
    from stowplan import log
    from stowplan.api.manifests import objects_in
    from stowplan.cli.cluster_source import stop_for
    from stowplan.client import kubeconfig as kubeconfigs
    from stowplan.embedded.up import Ready, UpOptions
    from stowplan.embedded.up import up as run
    from stowplan.errors import InputError
    from stowplan.kubelet import read_templates

    if context and not from_cluster:
        raise click.UsageError("--context goes with --from-cluster")
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
        page_port=page_port,
        host=host,
        port=port,
        speed=speed,
        copied=kubeconfigs.load(None, context=context, remedy=COPIED) if from_cluster else None,
    )

    def tell(ready: Ready) -> None:
        for warning in ready.warnings:
            click.echo(warning, err=True)
        seconds = perf_counter() - began
        click.echo(f"Ready in {seconds:.1f} s: {ready.nodes} nodes, {ready.pods} pods, at {ready.server}")
        told = {"kubeconfig": options.kubeconfig, "scheduler": ready.scheduler, "page": ready.page}
        click.echo(NEXT.format(**told))

    try:
        sys.exit(asyncio.run(run(options, tell)))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
