"""`stowplan record`: record what happens in a cluster as a trace."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import click

from stowplan import log
from stowplan.cli.cluster_source import READS_PER_SECOND, config_of, kinds_of
from stowplan.cli.options import CONFIG, PLUGIN_DIRS, POLICY, kubeconfig_options
from stowplan.framework.registry import Registry


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@kubeconfig_options
@CONFIG
@POLICY
@PLUGIN_DIRS
@click.option("--hash-names", is_flag=True, help="Record hashes of the names of pods and of their owners.")
@click.option("--hash-images", is_flag=True, help="Record hashes of the names of images.")
@click.option("--omit-annotations", is_flag=True, help="Leave out annotations.")
@click.option(
    "--rotate-mb",
    metavar="MB",
    type=click.FloatRange(0, min_open=True),
    default=64.0,
    show_default=True,
    help="Start a new file when the current one reaches this size.",
)
@click.option(
    "--rotate-minutes",
    metavar="MINUTES",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Start a new file when the current one is this old.",
)
@click.option(
    "--seconds", metavar="N", type=click.FloatRange(0, min_open=True), help="Stop after this many seconds."
)
def record(
    folder: Path,
    kubeconfig: str | None,
    context: str | None,
    config: Path | None,
    policy: Path | None,
    plugin_dirs: tuple[Path, ...],
    hash_names: bool,
    hash_images: bool,
    omit_annotations: bool,
    rotate_mb: float,
    rotate_minutes: float,
    seconds: float | None,
) -> None:
    """Record what happens in a cluster into FOLDER, until Ctrl-C.

    All kinds that a scheduler watches are recorded, and with --config those that its plugins watch. The
    cluster is only read: get, list and watch are all that is needed. Recording into the same folder again
    continues the trace. Environment variables, commands and other fields that do not concern scheduling are
    never recorded. Hashes use the key in $STOWPLAN_RECORD_KEY, or a new one each time."""
    from stowplan.client import kubeconfig as kubeconfigs
    from stowplan.client.api import ApiClient
    from stowplan.replay.recorder import Privacy
    from stowplan.replay.recorder import record as run_recorder

    registry = Registry.installed(plugin_dirs)
    kinds = kinds_of(config_of(config, policy, registry), registry)
    key = os.environ.get("STOWPLAN_RECORD_KEY", "").encode() or os.urandom(32)
    privacy = Privacy(
        hashes_names=hash_names, hashes_images=hash_images, omits_annotations=omit_annotations, key=key
    )
    connection = kubeconfigs.load(kubeconfig, context=context)
    written = 0

    def note(number: int) -> None:
        nonlocal written
        written = number

    async def run() -> None:
        _end_on_signals()
        async with ApiClient(connection, qps=READS_PER_SECOND, burst=READS_PER_SECOND) as api:
            await api.get_json("/api/v1/nodes?limit=1")  # unreachable or forbidden: say so and end
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await run_recorder(
                        api,
                        folder,
                        kinds=kinds,
                        privacy=privacy,
                        size=rotate_mb * 2**20,
                        age=rotate_minutes * 60,
                        on_progress=note,
                    )

    log.set_verbosity(-1)
    click.echo(f"Recording {connection.server} into {folder}; press Ctrl-C to end.", err=True)
    with suppress(asyncio.CancelledError):
        asyncio.run(run())
    click.echo(f"{written:,} events in {folder}.", err=True)


def _end_on_signals() -> None:
    """Cancel this task at Ctrl-C, or as the kubelet ends a pod; the second time, end at once.

    A KeyboardInterrupt will not do: raised where a library calls back, it is lost. And a shell that starts a
    command in the background lets it ignore SIGINT.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, end)
