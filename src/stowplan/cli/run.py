"""`stowplan run`, also installed as `kube-scheduler`: schedule the pods of a cluster."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from stowplan.errors import InputError, StowplanError
from stowplan.framework.registry import Registry
from stowplan.log import configure, error, log, warn
from stowplan.scheduler.flag_parser import read
from stowplan.scheduler.flags import FLAGS, help_text
from stowplan.scheduler.options import PROGRAM, RELEASE, parse, write_config

_WIDTH = 110


class GoStyleCommand(click.Command):
    """Passes its arguments on: flags are parsed as kube-scheduler parses them, not as click does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.params["words"] = tuple(args)
        return []

    def get_help(self, ctx: click.Context) -> str:
        return help_text(ctx.command_path, _help_width())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete flags, which click does not know, and files after `=`."""
        name, has_value, value = incomplete.partition("=")
        if has_value or not name.startswith("-"):
            return [CompletionItem(value or incomplete, type="file")]
        flags = {f"--{each.name}": each.help for each in FLAGS.values()}
        return [CompletionItem(flag, help=text) for flag, text in flags.items() if flag.startswith(name)]


def _help_width() -> int:
    return min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)


@click.command(cls=GoStyleCommand, short_help="Schedule the pods of a cluster.")
@click.pass_context
def run(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Schedule the pods of a cluster."""
    _run(words, ctx.command_path)


def kube_scheduler() -> None:
    """The console script that replaces kube-scheduler."""
    try:
        _run(sys.argv[1:], PROGRAM)
    except StowplanError as failure:
        click.echo(f"{PROGRAM}: {failure}", err=True)
        sys.exit(1)


def _run(argv: Sequence[str], program: str) -> None:
    given = read(argv, FLAGS, program)
    if given.get("help"):
        click.echo(help_text(program, _help_width()))
        return
    if given.get("version", "false") != "false":
        click.echo(f"Stowplan {version('stowplan')}, compatible with kube-scheduler {RELEASE}")
        return
    configure(verbosity=given.get("v", 0), style=given.get("logging-format", "text"))
    try:
        _start(argv, program)
    except StowplanError as failure:
        error("command failed", failure)
        sys.exit(1)


def _start(argv: Sequence[str], program: str) -> None:
    registry = Registry.installed(read(argv, FLAGS, program).get("plugin-dir", ()))
    options, warnings = parse(argv, program=program, registry=registry)
    for warning in warnings:
        warn(warning)
    if options.write_config_to:
        if options.policy_config_map:
            raise InputError(
                f"cannot read the Policy in ConfigMap {options.policy_config_map}: "
                "pass it with --policy-config-file",
                what="--write-config-to",
            )
        write_config(options.config, registry, Path(options.write_config_to))
        log(0, "Wrote configuration", file=options.write_config_to)
        return
    from stowplan.scheduler.main import run as run_scheduler
    from stowplan.web import make_pages, make_source, mount

    beside = None
    if options.record:
        from stowplan.cli.cluster_source import kinds_of
        from stowplan.replay.recorder import record_beside

        kinds = kinds_of(options.config, registry)
        beside = partial(record_beside, folder=Path(options.record), kinds=kinds)
    run_scheduler(options, registry, lambda service: mount(make_pages(make_source(service))), beside)
