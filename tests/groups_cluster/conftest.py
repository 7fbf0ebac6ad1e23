"""Pod groups on a real control plane, with kube-scheduler beside ours: `make test-groups`.

They run only when this folder, or a file of it, is named.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests need Go and minutes, so a run of all tests leaves them out."""
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True
