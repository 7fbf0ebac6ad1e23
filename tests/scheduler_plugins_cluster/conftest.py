"""The scheduler of scheduler-plugins beside ours, on a real control plane: `make test-scheduler-plugins`.

They run only when this folder, or a file of it, is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from random_clusters import PLUGINS
from real_scheduler import prepare

from controlplane.control_plane import ControlPlane

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests need Go and minutes, so a run of all tests leaves them out."""
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that serves the kinds of all plugins."""
    plane = ControlPlane(tmp_path_factory.mktemp("scheduler-plugins"))
    try:
        plane.start()
        prepare(plane, PLUGINS)
        yield plane
    finally:
        plane.stop()
