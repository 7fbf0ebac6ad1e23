"""Plugins in folders and modules: found, read again when they change, and refused with file and line."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stowplan.errors import ConfigError
from stowplan.framework.registry import Registry

PLUGIN = """
from stowplan import Plugin


class {name}(Plugin):
    def score(self, state, pod, node):
        return {score}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def plugin(folder: Path, file: str, name: str, score: Any = 1) -> Path:
    return write(folder / file, PLUGIN.format(name=name, score=score))


def score_of(registry: Registry, name: str) -> Any:
    return registry.find(name).score(None, None, None, None)


@pytest.fixture(autouse=True)
def _forget_modules(tmp_path):
    """Only those of the test: a module of stowplan that is imported twice has two of each class."""
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_plugins_of_a_folder_are_found_by_their_names(tmp_path):
    plugin(tmp_path, "one_of_mine.py", "Mine")
    write(tmp_path / "notes.txt", "no plugin")
    registry = Registry.installed([tmp_path])
    assert score_of(registry, "Mine") == 1
    assert "Mine" in registry.names()
    assert registry.extends("Mine", "score")
    assert not registry.has_changed


def test_what_a_file_imports_or_derives_from_is_not_its_plugin(tmp_path):
    plugin(tmp_path, "base_of_all.py", "_Base")
    write(tmp_path / "derived.py", "from base_of_all import _Base\n\n\nclass Derived(_Base):\n    pass\n")
    registry = Registry.installed([tmp_path])
    assert score_of(registry, "Derived") == 1
    assert not {"_Base", "Plugin"} & set(registry.names())


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param(
            {"wrong.py": "def broken(:\n    pass\n"}, "wrong.py:1: SyntaxError: invalid syntax", id="syntax"
        ),
        pytest.param(
            {"wrong.py": "import os\nimport not_there_at_all\n"},
            "wrong.py:2: ModuleNotFoundError: No module named 'not_there_at_all'",
            id="a missing dependency",
        ),
        pytest.param(
            {"wrong.py": "import other_one\n", "other_one.py": "x = 1\ny = x / 0\n"},
            "other_one.py:2: ZeroDivisionError: division by zero",
            id="a fault in what it imports",
        ),
        pytest.param({"wrong.py": "raise SystemExit(3)\n"}, "wrong.py:1: SystemExit: 3", id="an exit"),
        pytest.param(
            {
                "a_file.py": PLUGIN.format(name="Twice", score=1),
                "b_file.py": PLUGIN.format(name="Twice", score=2),
            },
            'b_file.py: "Twice" is the name of a plugin in {folder}/a_file.py; rename one of them',
            id="two plugins of one name",
        ),
        pytest.param(
            {"a_file.py": PLUGIN.format(name="NodeName", score=1)},
            'a_file.py: "NodeName" is also the name of an installed plugin; rename the class',
            id="the name of an installed plugin",
        ),
        pytest.param(
            {"json.py": "x = 1\n"},
            "json.py: has the name of a module that is in use already; rename the file",
            id="a module of Python's",
        ),
        pytest.param(
            {"my-plugin.py": "x = 1\n"},
            "my-plugin.py: is not a name that Python can import; use letters, digits and _ alone",
            id="no module's name",
        ),
    ],
)
def test_a_folder_that_cannot_be_used(tmp_path, files, message, monkeypatch):
    monkeypatch.chdir(os.path.dirname(os.__file__))  # far away: near by, errors have a shorter relative path
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(ConfigError) as caught:
        Registry.installed([tmp_path])
    assert str(caught.value) == f"{tmp_path}/{message.format(folder=tmp_path)}"
    assert not {"wrong", "other_one", "b_file"} & sys.modules.keys()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="the folder of plugins cannot be read: No such file or directory"):
        Registry.installed([tmp_path / "nowhere"])


def test_a_file_that_changes_is_read_again_though_time_and_size_are_the_same(tmp_path):
    path = plugin(tmp_path, "changing.py", "Changing", 1)
    registry = Registry.installed([tmp_path])
    before, stamp = registry.find("Changing"), path.stat()
    fresh = plugin(tmp_path, "changing.new", "Changing", 2)
    os.utime(fresh, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    fresh.rename(path)
    assert registry.has_changed
    with registry.reloading() as after:
        assert score_of(after, "Changing") == 2
    assert before.score(None, None, None, None) == 1
    assert not after.has_changed


def test_files_that_come_and_go(tmp_path):
    first = plugin(tmp_path, "first_file.py", "First")
    registry = Registry.installed([tmp_path])
    plugin(tmp_path, "second_file.py", "Second")
    assert registry.has_changed
    with registry.reloading() as both:
        assert {"First", "Second"} <= set(both.names())
    first.unlink()
    assert both.has_changed
    with both.reloading() as one:
        assert "First" not in one.names()


def test_a_change_of_what_plugins_share_reaches_all_of_the_folder(tmp_path):
    write(tmp_path / "shared_value.py", "VALUE = 1\n")
    text = PLUGIN.format(name="User", score="VALUE").replace(
        "\nfrom", "\nfrom shared_value import VALUE\nfrom", 1
    )
    write(tmp_path / "using_it.py", text)
    registry = Registry.installed([tmp_path])
    assert score_of(registry, "User") == 1
    write(tmp_path / "shared_value.py", "VALUE = 22\n")
    with registry.reloading() as after:
        assert score_of(after, "User") == 22


def test_a_broken_change_leaves_all_as_it_was_and_is_told_once(tmp_path):
    path = plugin(tmp_path, "sometimes_broken.py", "Sometimes", 1)
    registry = Registry.installed([tmp_path])
    module = sys.modules["sometimes_broken"]
    write(path, "class Sometimes(:\n")
    with pytest.raises(ConfigError, match=r"sometimes_broken\.py:1: SyntaxError"), registry.reloading():
        pass
    assert not registry.has_changed
    assert sys.modules["sometimes_broken"] is module
    assert score_of(registry, "Sometimes") == 1
    plugin(tmp_path, "sometimes_broken.py", "Sometimes", 3)
    with registry.reloading() as after:
        assert score_of(after, "Sometimes") == 3


def test_a_change_that_others_refuse_leaves_the_old_modules(tmp_path):
    path = plugin(tmp_path, "refused_later.py", "Later", 1)
    registry = Registry.installed([tmp_path])
    module = sys.modules["refused_later"]
    write(path, PLUGIN.format(name="Later", score=2))
    with pytest.raises(ConfigError, match="no good"), registry.reloading():
        raise ConfigError("no good")
    assert sys.modules["refused_later"] is module


def test_a_module_that_was_named_is_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "acme_test").mkdir()
    write(tmp_path / "acme_test" / "__init__.py", "")
    path = plugin(tmp_path / "acme_test", "scores.py", "Acme", 1)
    registry = Registry.installed()
    assert score_of(registry, "acme_test.scores:Acme") == 1
    assert not registry.has_changed
    write(path, PLUGIN.format(name="Acme", score=12345))
    assert registry.has_changed
    with registry.reloading() as after:
        assert score_of(after, "acme_test.scores:Acme") == 12345


def test_a_folder_swapped_as_a_config_map_is(tmp_path):
    for version, score in (("v1", 1), ("v2", 2)):
        (tmp_path / version).mkdir()
        plugin(tmp_path / version, "mounted_file.py", "Mounted", score)
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "..data").symlink_to(tmp_path / "v1")
    (folder / "mounted_file.py").symlink_to(Path("..data") / "mounted_file.py")
    registry = Registry.installed([folder])
    assert score_of(registry, "Mounted") == 1
    (folder / "..new").symlink_to(tmp_path / "v2")
    (folder / "..new").rename(folder / "..data")
    assert registry.has_changed
    with registry.reloading() as after:
        assert score_of(after, "Mounted") == 2


def test_threads_can_load_the_same_folder(tmp_path):
    plugin(tmp_path, "in_threads.py", "InThreads")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: Registry.installed([tmp_path]), range(100)))
    assert all(each.find("InThreads").__module__ == "in_threads" for each in found)
