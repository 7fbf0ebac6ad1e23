"""`make image` and `make local-image`: the name they give the image, and the tool they build it with."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make where `podman` prints what it is asked to do, and `docker` does not work."""
    for tool, script in {"docker": "exit 1", "podman": '[ "$1" = info ] || echo podman "$@"'}.items():
        (folder / tool).write_text(f"#!/bin/sh\n{script}\n")
        (folder / tool).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "image"),
    [
        pytest.param(["image", "IMAGE=here/mine:1"], "here/mine:1", id="image"),
        pytest.param(["local-image"], "localhost:5000/scheduler-plugins/kube-scheduler:latest", id="local"),
        pytest.param(
            ["local-image", "LOCAL_REGISTRY=quay.io/me", "LOCAL_IMAGE=scorebylabel:2"],
            "quay.io/me/scorebylabel:2",
            id="with variables",
        ),
    ],
)
def test_the_image_is_built_under_its_name(tmp_path, arguments, image):
    ran = make(tmp_path, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert f"--tag {image} " in ran.stdout


def test_an_image_needs_a_name(tmp_path):
    assert "make image IMAGE=NAME:TAG" in make(tmp_path, "image").stderr
