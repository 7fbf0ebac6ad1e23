"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

PLUGIN_DIRS = click.option(
    "--plugin-dir",
    "plugin_dirs",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Folder with plugins: every subclass of Plugin in its *.py files. Repeatable.",
)
CONFIG = click.option(
    "--config", type=click.Path(path_type=Path), help="KubeSchedulerConfiguration or Policy file."
)
POLICY = click.option(
    "--policy", type=click.Path(path_type=Path), help="Policy that an older configuration refers to."
)
NAMESPACE = click.option("-n", "--namespace", help="Namespace for pods and manifests without one.")
SEED = click.option(
    "--seed", type=int, help="Break ties between nodes at random with this seed (default: first by name)."
)
OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format.",
)
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="List the kinds of objects that were ignored.")


class _LogLevel(click.types.IntParamType):
    """Kubernetes' programs also take `-v=5`, where click would read "=5"."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        given: Any = value.removeprefix("=") if isinstance(value, str) else value
        return super().convert(given, param, ctx)


def log_level(text: str, default: int = 0) -> Callable[[Command], Command]:
    """-v, as in all of Kubernetes' programs."""
    shown = default >= 0
    return click.option(
        "-v",
        "--v",
        "--verbosity",
        "verbosity",
        type=_LogLevel(),
        default=default,
        show_default=shown,
        help=text,
    )


def kubeconfig_options(command: Command) -> Command:
    """--kubeconfig and --context."""
    return _add(
        command,
        click.option(
            "--kubeconfig",
            metavar="FILE",
            help="Kubeconfig file (default: $KUBECONFIG, or ~/.kube/config).",
        ),
        click.option("--context", help="Kubeconfig context to use."),
    )


def scheduler_credentials(command: Command) -> Command:
    """--token-file, --certificate-authority and --insecure-skip-tls-verify, for --server."""
    return _add(
        command,
        click.option(
            "--token-file",
            metavar="FILE",
            help="Bearer token file used for --server (default: credentials of the kubeconfig).",
        ),
        click.option(
            "--certificate-authority",
            "authority",
            metavar="FILE",
            help="CA certificate file used to verify --server.",
        ),
        click.option(
            "--insecure-skip-tls-verify",
            "insecure",
            is_flag=True,
            help="Skip verification of the server's certificate (insecure).",
        ),
    )


def _add(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):  # decorators apply from the last to the first
        command = option(command)
    return command
