"""Tests of the page in a real browser. They run only when this folder, or a file of it, is named.

`make test-page` does so. They need Chromium: Debian's package `chromium`, or CHROMIUM with its path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from browser import Browser, Tab

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of all tests needs Python alone, and leaves these out."""
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    return None if any(path.resolve().is_relative_to(HERE) for path in named) else True


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with Browser(tmp_path / "profile") as found:
        yield found


@pytest.fixture
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    """An empty tab; after the test, that nothing went wrong in it and nobody else was asked."""
    found = await browser.open()
    yield found
    assert found.problems == []
    assert {url for url in found.asked if not url.startswith(("http://127.0.0.1:", "about:"))} == set()
