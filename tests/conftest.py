"""Settings that all tests share."""

from __future__ import annotations

import gc
import os
import sys

# Container images often turn bytecode files off; every process that a test starts would compile all modules,
# and pytest would compile Hypothesis, whose assertions it rewrites: so this stands before its import.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Every process that imports NumPy would start threads, which costs a third of the import, and use none.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# Some tests run pytest in a process of its own, without the plugins that options of this run may be for.
os.environ.pop("PYTEST_ADDOPTS", None)

pytest.register_assert_rewrite("comparing", "plugin_world")

settings.register_profile(
    "ci",
    deadline=None,
    print_blob=True,
    derandomize="CI" in os.environ,  # an unlucky draw should not stop an unrelated change
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
)
settings.load_profile("ci")


gc.disable()  # what is imported and collected stays


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what all tests share, and run it less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
