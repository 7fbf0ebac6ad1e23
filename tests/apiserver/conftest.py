"""Tests of the API server, in-process; the same cases run on a real one in tests/cluster_suite."""

from __future__ import annotations

import pytest
from api_staging import Staged


@pytest.fixture
def api() -> Staged:
    return Staged()
