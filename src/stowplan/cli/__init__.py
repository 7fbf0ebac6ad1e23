"""The `stowplan` command. Each subcommand is a file beside this one, imported when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from stowplan.errors import StowplanError

COMMANDS = {
    "bench": "Measure how fast decisions are made.",
    "bind": "Bind a pod to a node by hand, if it fits.",
    "config": "Read, check and convert scheduler configurations.",
    "crd": "Print CustomResourceDefinitions for kinds that plugins declare.",
    "debug": "Ask the engine about its inner workings.",
    "decide": "Decide scenarios from standard input, one JSON object a line.",
    "explain": "Show why a pod lands where it does, or nowhere.",
    "extender": "Serve plugins to a kube-scheduler, as its extender.",
    "manifests": "Print what brings a scheduler into a cluster.",
    "page": "Show a running scheduler's page: cluster, queue and decisions.",
    "plugin": "Write, list and check plugins.",
    "run": "Schedule the pods of a cluster.",
    "up": "Start a cluster in this process, for kubectl.",
    "whatif": "Show what would land where if something were different.",
}


class Commands(click.Group):
    """Knows its commands by name and help, so that `--help` need not import them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"stowplan.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="stowplan")
def stowplan() -> None:
    """A Kubernetes scheduler you extend in Python."""


def main() -> None:
    """Runs a command; a fault of the input is one line on standard error and exit status 1."""
    try:
        stowplan.main(standalone_mode=True)
    except StowplanError as error:
        from stowplan.explain.layout import printable

        click.echo(printable(f"stowplan: {error}"), err=True)
        sys.exit(1)
