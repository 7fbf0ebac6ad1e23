"""The examples of docs/testing-plugins.md and docs/testing.md are tests, and pass."""

import re
from pathlib import Path

import pytest

from pytest_process import run_pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["testing-plugins.md", "testing.md"])
def test_the_examples_of_the_page_pass(tmp_path, page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    text = "\n".join(blocks)
    (tmp_path / "test_page.py").write_text(text)
    run = run_pytest(tmp_path, "test_page.py")
    assert run.returncode == 0, run.stdout
    assert f"{text.count('def test_')} passed" in run.stdout
