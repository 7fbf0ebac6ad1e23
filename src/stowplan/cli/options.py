"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from stowplan.client.connection import Connection

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
    """Accept `-v=5` as Kubernetes' programs do; click would read "=5"."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
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


class ClusterSource(NamedTuple):
    """Where to read the cluster."""

    files: tuple[str, ...]
    kubeconfig: str | None
    context: str | None
    namespace: str | None
    is_verbose: bool


class SchedulerSource(NamedTuple):
    """How to decide."""

    config: Path | None
    policy: Path | None
    plugin_dirs: tuple[Path, ...]
    seed: int | None


class SourceOptions(NamedTuple):
    """Values of `source_options`: whom to ask about decisions."""

    files: tuple[str, ...]
    server: str | None
    journal: str | None
    kubeconfig: str | None
    context: str | None
    token_file: str | None
    authority: str | None
    insecure: bool
    namespace: str | None
    config: Path | None
    policy: Path | None
    plugin_dirs: tuple[Path, ...]

    def check(self) -> None:
        """Raise a UsageError for options that exclude each other."""
        sources = (("-f", self.files), ("--server", self.server), ("--journal", self.journal))
        given = [name for name, it in sources if it]
        if len(given) > 1:
            raise click.UsageError(f"{' and '.join(given)} are mutually exclusive")
        if self.files and (self.kubeconfig or self.context):
            raise click.UsageError("-f cannot be combined with --kubeconfig or --context")

    def connect(self) -> Connection:
        """Connect to the scheduler of --server."""
        from stowplan.cli.scheduler_client import scheduler_at

        return scheduler_at(
            self.server or "",
            kubeconfig=self.kubeconfig,
            context=self.context,
            token_file=self.token_file,
            authority=self.authority,
            insecure=self.insecure,
        )

    def cluster(self, *, verbose: bool = False) -> ClusterSource:
        return ClusterSource(self.files, self.kubeconfig, self.context, self.namespace, verbose)

    def scheduler(self, seed: int | None = None) -> SchedulerSource:
        return SchedulerSource(self.config, self.policy, self.plugin_dirs, seed)


def source_options(files: str, server: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options that say whom to ask, passed to the command as `options`. The help of two of them is given."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            options = SourceOptions(**{name: given.pop(name) for name in SourceOptions._fields})
            options.check()
            command(options=options, **given)

        return _add(
            run,
            click.option("-f", "--filename", "files", metavar="FILE", multiple=True, help=files),
            click.option("--server", metavar="URL", help=server),
            click.option(
                "--journal", metavar="DIR", help="Explain decisions from the journal in this directory."
            ),
            kubeconfig_options,
            scheduler_credentials,
            NAMESPACE,
            CONFIG,
            POLICY,
            PLUGIN_DIRS,
        )

    return decorate


def _add(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):  # decorators apply from the last to the first
        command = option(command)
    return command
