"""Files of users that are small, but nested too deeply for a YAML loader in C, or huge once read."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from stowplan.cli import stowplan

DEEP = "[" * 50_000 + "]" * 50_000
CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
SECONDS = 2.0
MANIFESTS = ("manifests", "--config", "config.yaml", "--image", "i:1", "--values", "bomb.yaml")


def bomb(kind: str) -> str:
    """Twenty lines, each with nine aliases of the one before: more than any memory holds."""
    first, more = {
        "lists": ("[x]", "[{}]"),
        "merges": ("{k: v}", "{{<<: [{}]}}"),
        "a circle": ("[*a0]", "[{}]"),
    }[kind]
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {more.format(', '.join([f'*a{n - 1}'] * 9))}" for n in range(1, 20)]
    return "{" + ", ".join(lines) + "}"


@pytest.mark.parametrize("kind", ["lists", "merges", "a circle"])
@pytest.mark.parametrize(
    ("start", "arguments"),
    [
        pytest.param("affinity: ", MANIFESTS, id="values"),
        pytest.param(f"{CONFIG}profiles: ", ("config", "convert", "bomb.yaml"), id="configuration"),
        pytest.param("clusters: ", ("explain", "p", "--kubeconfig", "bomb.yaml"), id="kubeconfig"),
        pytest.param("kind: Pod\nspec: ", ("explain", "p", "-f", "bomb.yaml"), id="manifests"),
    ],
)
def test_a_file_whose_aliases_repeat_too_much_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, arguments: tuple[str, ...], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    Path("bomb.yaml").write_text(f"{start}{bomb(kind)}\n")
    before = time.process_time()
    done = CliRunner().invoke(stowplan, arguments)
    assert time.process_time() - before < SECONDS
    assert done.exit_code == 1
    said = f"{done.stderr}{done.exception}"
    wanted = "contains itself (&a0 … *a0)" if kind == "a circle" else "its aliases repeat more than 3 MiB"
    assert f"bomb.yaml: {wanted}" in said


def test_aliases_that_repeat_little_are_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    Path("bomb.yaml").write_text("labels: &l {team: platform}\nnodeSelector: {<<: *l, pool: system}\n")
    done = CliRunner().invoke(stowplan, MANIFESTS)
    assert done.exit_code == 0, done.output
    assert "nodeSelector:\n        team: platform\n        pool: system\n" in done.output


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (f"affinity: {{a: {DEEP}}}", ("manifests", "--config", "config.yaml", "--values", "deep.yaml")),
        (f"clusters: {DEEP}", ("explain", "p", "--kubeconfig", "deep.yaml")),
    ],
    ids=["values", "kubeconfig"],
)
def test_a_file_that_is_nested_too_deeply_is_named(
    tmp_path: Path, text: str, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "deep.yaml").write_text(text)
    command = [sys.executable, "-c", "from stowplan.cli import main; main()", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "stowplan: deep.yaml: is nested too deeply\n")
