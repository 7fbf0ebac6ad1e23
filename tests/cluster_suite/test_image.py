"""The Dockerfile's steps without a container: what they make runs as another user and writes nothing."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from deployed import answers
from dockerfile import Stage, build
from packaging.utils import canonicalize_name

from controlplane.control_plane import SCHEDULER, free_ports
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

ROOT = Path(__file__).parents[2]
NOBODY = 65532
OTHER_USER = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
"""Only root can be someone else; anyone else is already no owner of the system's files."""


@pytest.fixture(scope="module")
def image() -> Iterator[Stage]:
    # Not tmp_path: nobody else may go there.
    folder = Path(tempfile.mkdtemp(prefix="stowplan-image-"))
    folder.chmod(0o755)
    try:
        stage = build(ROOT / "Dockerfile", folder, python_for_others())
        for path in (stage.folder, *stage.folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)
        yield stage
    finally:
        for path in (folder, *folder.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(folder)


def python_for_others() -> Path:
    """One that the other user can run, too."""
    here = [Path(sys.executable).resolve(), Path("/usr/local/bin/python3"), Path("/usr/bin/python3")]
    for python in here:
        if python.exists():
            try:
                subprocess.run([python, "-c", "import venv"], check=True, capture_output=True, **OTHER_USER)
            except (OSError, subprocess.CalledProcessError):
                continue
            return python
    pytest.fail("no Python of this machine can be run by another user: install the system's python3 and venv")


def run(image: Stage, *command: str) -> subprocess.CompletedProcess[str]:
    path = image.environment["PATH"]
    program = image.inside(command[0]) if command[0].startswith("/") else shutil.which(command[0], path=path)
    assert program is not None, f"{command[0]} is not in the PATH of the image"
    return subprocess.run(
        [program, *command[1:]],
        env=image.environment,
        cwd=image.folder,
        capture_output=True,
        text=True,
        check=False,
        **OTHER_USER,
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(("stowplan", "--version"), "stowplan, version", id="stowplan"),
        pytest.param(("stowplan", "run", "--help"), "--leader-elect-resource-name", id="the scheduler"),
        pytest.param(("kube-scheduler", "--help"), "--leader-elect-resource-name", id="as kube-scheduler"),
        pytest.param(("kube-scheduler", "--version"), "kube-scheduler v1.36", id="its version"),
        pytest.param(("/bin/kube-scheduler", "--version"), "kube-scheduler v1.36", id="as tutorials have it"),
        pytest.param(("/usr/local/bin/kube-scheduler", "--version"), "v1.36", id="as its image has it"),
    ],
)
def test_another_user_runs_it_from_a_read_only_file_system(image, command, said):
    before = set(image.folder.rglob("*"))
    done = run(image, *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout
    assert set(image.folder.rglob("*")) == before


def test_all_plugins_of_a_configuration_can_be_loaded(image):
    config = Path(shutil.copy(ROOT / "examples/recomposed/bin-packing.yaml", image.folder.parent))
    config.chmod(0o644)
    done = run(image, "stowplan", "config", "show", str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert "NodeResourcesFit" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a program as someone else")
async def test_another_user_schedules_with_it(image, control_plane):
    add_nodes(control_plane, node("n1"))
    document = json.loads(control_plane.kubeconfig(SCHEDULER).read_text())
    cluster = document["clusters"][0]["cluster"]
    authority = Path(cluster.pop("certificate-authority")).read_bytes()
    cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    kubeconfig = image.folder.parent / "kubeconfig"
    kubeconfig.write_text(json.dumps(document))
    (port,) = free_ports(1)
    server = f"https://127.0.0.1:{port}"
    ours = Process(
        [
            *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
            *("env", "--ignore-environment", f"--chdir={image.folder}"),
            *(f"{name}={value}" for name, value in image.environment.items()),
            *("kube-scheduler", f"--kubeconfig={kubeconfig}", "--leader-elect=false"),
            *("--bind-address=127.0.0.1", f"--secure-port={port}"),
        ],
        control_plane.folder / "image.log",
        lambda: answers(server, "/readyz"),
    )
    before = set(image.folder.rglob("*"))
    ours.start()
    try:
        create(control_plane, pod("p"))
        await eventually(lambda: placed(control_plane), lambda found: found["p"] == "n1")
    finally:
        ours.stop()
    assert ours.exit_status == 0
    assert set(image.folder.rglob("*")) == before


def test_it_has_what_a_journal_needs(image):
    journal = image.folder.parent / "journal"
    journal.mkdir()
    done = run(image, "stowplan", "explain", "default/p", f"--journal={journal}")
    assert "the journal is empty" in done.stderr


def test_nothing_but_the_wheel_and_what_it_depends_on_is_installed(image):
    assert image.command == ["stowplan", "run"]
    (package,) = (image.folder / "opt/stowplan/lib").glob("python3*/site-packages/stowplan")
    assert package.is_dir()
    assert not (package.parent / "pytest").exists()
    assert not (image.folder / "src").exists()


def test_what_is_installed_is_what_the_lock_file_and_the_bill_of_materials_list(image):
    (packages,) = (image.folder / "opt/stowplan/lib").glob("python3*/site-packages")
    installed = {canonicalize_name(each.name): each.version for each in distributions(path=[str(packages)])}
    del installed["pip"]
    installed.pop("setuptools", None)  # Comes with venv before Python 3.12.
    bill = json.loads((image.folder / "opt/stowplan/sbom.cdx.json").read_text())
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    ours = bill["metadata"]["component"]
    assert ours["name"] == "stowplan"
    assert listed.items() >= installed.items() - {("stowplan", ours["version"])}
    locked = (ROOT / "requirements/image.txt").read_text().lower()
    for name, version in installed.items():
        assert name == "stowplan" or f"\n{name}=={version} " in locked
