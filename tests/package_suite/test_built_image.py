"""The image, built by buildah on a base that debootstrap makes, on a real control plane: `make test-image`.

It needs root. Base and layers are kept in the user's cache folder, so only the first run takes long.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.control_plane import SCHEDULER, ControlPlane, free_ports
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
SUITE = os.environ.get("STOWPLAN_IMAGE_SUITE", "trixie")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stowplan/image"
BASE, IMAGE = f"localhost/python-{SUITE}", "localhost/stowplan:test"
KUBEADM = ROOT / "tests/cluster_suite/kubeadm-kube-scheduler.yaml"
NOBODY = 65532
INSIDE = """\
set -e
mount --bind "$IMAGE_ROOT" "$ROOT"
mount -t tmpfs tmpfs "$ROOT/etc/kubernetes"
cp --preserve=mode,ownership "$FILES"/* "$ROOT/etc/kubernetes/"
mount -o remount,bind,$ACCESS "$ROOT"
mount -t tmpfs tmpfs "$ROOT/tmp" && chmod 1777 "$ROOT/tmp"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
exec chroot --userspec="$OWNER:$OWNER" --groups= "$ROOT" env --ignore-environment "$@"
"""


def run(*command: str | Path, seconds: int = 1800) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def buildah(*words: str | Path) -> str:
    if shutil.which("buildah") is None or shutil.which("debootstrap") is None:
        pytest.fail("needs buildah and debootstrap; Debian has them: apt-get install buildah debootstrap")
    return run("buildah", "--root", CACHE / "store", "--runroot", CACHE / "run", *words)


class Image:
    """A container of the built image that is never started: its files, and what its configuration says."""

    def __init__(self, folder: Path, files: Path, config: Json) -> None:
        self.folder, self.files, self.config = folder, files, config

    def command(self, root: Path, *words: str, owner: int, access: str, files: Path) -> list[str]:
        """The command in the container's file system, in mounts of its own that end with it."""
        settings = {"IMAGE_ROOT": self.files, "ROOT": root, "OWNER": owner, "ACCESS": access, "FILES": files}
        shell = ["unshare", "--mount", "sh", "-c", INSIDE, "sh", *self.config["Env"], *words]
        return ["env", *(f"{name}={value}" for name, value in settings.items()), *shell]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    if os.geteuid() != 0:
        pytest.fail("needs root, to mount and to be another user")
    folder = tmp_path_factory.mktemp("image")
    if f"{BASE}:latest" not in buildah("images", "--format", "{{.Name}}:{{.Tag}}"):
        make_base(folder / "base")
    # What pip needs to reach its index from here is no part of the image.
    machine = [
        path for path in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf") if Path(path).exists()
    ]
    mounts = [f"--volume={path}:{path}:ro" for path in machine]
    options = ["--isolation=chroot", "--layers", "--pull-never", "--network=host", *mounts]
    buildah("bud", *options, f"--build-arg=BASE={BASE}", f"--tag={IMAGE}", ROOT)
    container = buildah("from", "--pull-never", IMAGE).strip()
    try:
        files = Path(buildah("mount", container).strip())
        config = json.loads(buildah("inspect", "--type=image", IMAGE))["OCIv1"]["config"]
        (files / "etc/kubernetes").mkdir()  # as a container runtime makes places to mount volumes
        yield Image(folder, files, config)
    finally:
        buildah("umount", container)
        buildah("rm", container)


def make_base(folder: Path) -> None:
    """Like python:slim: a small Debian with Python as `python`."""
    run("debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", SUITE, folder)
    (folder / "usr/bin/python").symlink_to("python3")
    for path in (folder / "var/cache/apt/archives").glob("*.deb"):
        path.unlink()
    container = buildah("from", "scratch").strip()
    buildah("add", "--quiet", container, folder, "/")
    buildah("commit", "--quiet", "--rm", container, BASE)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    running = ControlPlane(tmp_path_factory.mktemp("control-plane"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def scheduler_conf(control_plane: ControlPlane, folder: Path, *, mode: int, owner: int) -> Path:
    """A kubeconfig with its certificates inside, as kubeadm writes it."""
    document = json.loads(control_plane.kubeconfig(SCHEDULER).read_text())
    cluster = document["clusters"][0]["cluster"]
    authority = Path(cluster.pop("certificate-authority")).read_bytes()
    cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    folder.mkdir()
    path = folder / "scheduler.conf"
    path.write_text(json.dumps(document))
    path.chmod(mode)
    os.chown(path, owner, owner)
    return folder


async def schedules(
    image: Image, control_plane: ControlPlane, tmp_path: Path, words: list[str], **how: Any
) -> None:
    (port,) = free_ports(1)
    server = f"https://127.0.0.1:{port}"
    (tmp_path / "root").mkdir()
    flags = ["--bind-address=127.0.0.1", f"--secure-port={port}"]
    command = image.command(tmp_path / "root", *words, *flags, **how)
    process = Process(command, tmp_path / "scheduler.log", lambda: is_ready(server))
    control_plane.wipe()
    add_nodes(control_plane, node("n1"))
    process.start(seconds=120)
    try:
        create(control_plane, pod("p"))
        await eventually(lambda: placed(control_plane), lambda found: found["p"] == "n1")
    finally:
        process.stop()
    assert process.exit_status == 0, process.output


def is_ready(server: str) -> bool:
    try:
        return ask(server, "/readyz")[0] == 200
    except OSError:
        return False


def test_the_image_has_what_the_lock_file_pins_and_no_build_tools(image):
    assert image.config["Cmd"] == ["stowplan", "run"]
    assert not image.config.get("Entrypoint")
    assert not image.config.get("User")  # kubeadm's manifest names none, and its kubeconfig is root's
    assert not (image.files / "src").exists()
    assert not (image.files / "build").exists()
    bill = json.loads((image.files / "opt/stowplan/sbom.cdx.json").read_text())
    pinned = (ROOT / "requirements/image.txt").read_text().lower()
    for each in bill["components"]:
        if each["name"].lower() not in ("pip", "setuptools", "stowplan"):
            assert f"{each['name'].lower().replace('_', '-')}=={each['version']}" in pinned


async def test_its_command_schedules_as_another_user_on_a_read_only_file_system(
    image, control_plane, tmp_path
):
    files = scheduler_conf(control_plane, tmp_path / "files", mode=0o600, owner=NOBODY)
    words = [*image.config["Cmd"], "--kubeconfig=/etc/kubernetes/scheduler.conf", "--leader-elect=false"]
    await schedules(image, control_plane, tmp_path, words, owner=NOBODY, access="ro", files=files)


async def test_kubeadms_manifest_needs_only_another_image(image, control_plane, tmp_path):
    (manifest,) = yaml.safe_load_all(KUBEADM.read_text())
    (container,) = manifest["spec"]["containers"]
    assert "runAsUser" not in json.dumps(manifest)
    words = [word for word in container["command"] if not word.startswith(("--config", "--bind-address"))]
    files = scheduler_conf(control_plane, tmp_path / "files", mode=0o600, owner=0)
    await schedules(image, control_plane, tmp_path, words, owner=0, access="rw", files=files)
