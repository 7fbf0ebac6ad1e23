"""`stowplan completion`: print a script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM, VARIABLE = "stowplan", "_STOWPLAN_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and files in a shell.

    \b
    bash:  source <(stowplan completion bash)
    zsh:   source <(stowplan completion zsh)
    fish:  stowplan completion fish | source

    Add the line to ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish to load it in every shell.
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())
