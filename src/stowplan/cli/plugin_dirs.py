"""The option that names folders of plugins, for every command that reads a configuration."""

from __future__ import annotations

from pathlib import Path

import click

PLUGIN_DIRS = click.option(
    "--plugin-dir",
    "plugin_dirs",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A folder with plugins: each class derived from Plugin in its *.py files. May be given again.",
)
