"""What `stowplan` exports: listed, explained, and described on its page."""

import subprocess
import sys
from pathlib import Path

import stowplan
from stowplan.framework import exports
from stowplan.framework.plugin import METHODS

ROOT = Path(__file__).parents[2]


def test_dir_lists_what_can_be_imported():
    assert set(dir(stowplan)) == {*exports.__all__, "errors", "log", "metrics"}
    for name in exports.__all__:
        assert getattr(stowplan, name) is getattr(exports, name)


def test_every_extension_point_is_explained():
    assert {"filter", "score_nodes", "permit", "run"} <= METHODS.keys()
    assert [name for name, method in METHODS.items() if not method.__doc__] == []


def test_the_generated_pages_are_current(tmp_path):
    generator = (ROOT / "docs/generate_reference.py").read_text()
    (tmp_path / "docs").mkdir()
    (tmp_path / "src").symlink_to(ROOT / "src")
    (tmp_path / "docs/generate.py").write_text(generator)
    subprocess.run([sys.executable, tmp_path / "docs/generate.py"], check=True)
    for name in ("plugin-api.md", "cli.md", "metrics.md", "feature-gates.md"):
        made, kept = (tmp_path / "docs" / name).read_text(), (ROOT / "docs" / name).read_text()
        assert made == kept, f"docs/{name} is not current: run `make docs`"
