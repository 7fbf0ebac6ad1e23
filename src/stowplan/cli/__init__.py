"""The `stowplan` command. Each subcommand is a module in this package, imported when it is called."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem

from stowplan import log
from stowplan.errors import StowplanError

COMMANDS = {
    "bench": "Measure the speed of scheduling decisions.",
    "bind": "Bind a pod to a node, if it fits.",
    "completion": "Print a script that completes commands and options in a shell.",
    "compare": "Compare scheduler configurations on a trace.",
    "config": "Show, check and convert scheduler configurations.",
    "controllers": "Keep the status of pod groups and queues up to date in a cluster.",
    "crd": "Print CustomResourceDefinitions for the kinds that plugins declare.",
    "debug": "Inspect the scheduling engine.",
    "decide": "Decide scenarios from standard input, one JSON object per line.",
    "explain": "Explain why a pod was placed on its node, or on none.",
    "extender": "Serve plugins to kube-scheduler as an extender.",
    "manifests": "Print the manifests to deploy a scheduler.",
    "mcp": "Serve tools for AI assistants, which only read.",
    "page": "Open the web page of a running scheduler.",
    "plugin": "Create, list and check plugins.",
    "record": "Record what happens in a cluster as a trace.",
    "replay": "Run a trace through a scheduler configuration.",
    "run": "Schedule the pods of a cluster.",
    "shadow": "Show what a configuration would do beside the live scheduler.",
    "tune": "Search for weights and plugin arguments that give better results on a trace.",
    "up": "Start a local cluster in one process.",
    "whatif": "Show the effect of a change on a cluster.",
}


class Commands(click.Group):
    """Lists commands with their help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"stowplan.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the closest commands for one that does not exist: click would only know imported ones."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands without importing them."""
        found = [CompletionItem(name, help=text) for name, text in sorted(COMMANDS.items())]
        commands = [each for each in found if each.value.startswith(incomplete)]
        return commands + (
            click.Command.shell_complete(self, ctx, incomplete) if incomplete[:1] == "-" else []
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="stowplan")
def stowplan() -> None:
    """A Kubernetes scheduler you extend in Python."""


def main() -> None:
    """Run a command. Print a StowplanError as one line and exit with status 1."""
    log.configure()  # what plugins log looks the same in all commands
    try:
        stowplan.main(standalone_mode=True)
    except StowplanError as error:
        from stowplan.cli.terminal import echo_error

        echo_error(str(error))
        sys.exit(1)
