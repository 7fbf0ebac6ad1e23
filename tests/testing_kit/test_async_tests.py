"""`async def` tests with an embedded cluster run with nothing configured by hand."""

from __future__ import annotations

from pytest_process import run_pytest

TEST = """
from typing import ClassVar

import pytest

from stowplan import CustomResource, Definition, Plugin, Status, Wire
from stowplan.embedded import embedded_cluster


class Shelf(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "shelves", "Shelf", namespaced=False)


class Shelves(Plugin):
    watches = (Shelf,)

    def filter(self, state, pod, node):
        found = self.handle.watched(Shelf)
        return None if found.is_served and found.get(node.name) else Status.unschedulable("no shelf")


CONTAINERS = '[{"name": "c", "image": "i"}]'
HEAD = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}'
POD = HEAD + ', "spec": {"containers": ' + CONTAINERS + "}}"


@pytest.mark.parametrize("number", [1, 2])
async def test_plugin_kinds_and_paths(tmp_path, number):
    (tmp_path / "pod.json").write_text(POD)
    shelf = {"apiVersion": "example.com/v1", "kind": "Shelf", "metadata": {"name": "node-2"}}
    async with embedded_cluster(nodes=2, plugins=[Shelves], manifests=[shelf, tmp_path]) as cluster:
        assert await cluster.bound("web") == "node-2"
        with pytest.raises(LookupError, match="default/nobody"):
            cluster.explain("nobody")
"""
OTHER = """
async def test_of_somebody_else():
    pass
"""
FIXTURE = """
import pytest

from stowplan.embedded import embedded_cluster


@pytest.fixture
async def cluster():
    async with embedded_cluster() as made:
        yield made


async def test_with_a_fixture(cluster):
    pass
"""


def run(folder, *options):
    return run_pytest(folder, "-p", "stowplan.pytest_plugin", *options).stdout


def test_they_run_without_any_configuration(tmp_path):
    (tmp_path / "test_one.py").write_text(TEST)
    assert "2 passed" in run(tmp_path, "-p", "no:asyncio")
    assert "2 passed" in run(tmp_path)  # with pytest-asyncio, which leaves them alone in its strict mode
    assert "2 passed" in run(tmp_path, "-o", "asyncio_mode=auto")


def test_those_of_others_are_left_alone(tmp_path):
    (tmp_path / "test_one.py").write_text(OTHER)
    assert "1 passed" not in run(tmp_path, "-p", "no:asyncio")


def test_async_fixtures_need_pytest_asyncio(tmp_path):
    (tmp_path / "test_one.py").write_text(FIXTURE)
    assert "requested an async fixture 'cluster'" in run(tmp_path, "-p", "no:asyncio")
    assert "1 passed" in run(tmp_path, "-o", "asyncio_mode=auto")
