"""The examples of docs/testing-plugins.md and docs/testing.md are tests, and pass."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["testing-plugins.md", "testing.md"])
def test_the_examples_of_the_page_pass(tmp_path, page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    text = "\n".join(blocks)
    (tmp_path / "test_page.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert f"{text.count('def test_')} passed" in run.stdout
