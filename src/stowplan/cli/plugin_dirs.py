"""The --plugin-dir option, shared by all commands that read a configuration."""

from __future__ import annotations

from pathlib import Path

import click

PLUGIN_DIRS = click.option(
    "--plugin-dir",
    "plugin_dirs",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Folder with plugins: every subclass of Plugin in its *.py files. Repeatable.",
)
