"""A scheduler as `stowplan manifests` deploys it: its command, its files, and its account's rights alone.

No kubelet starts the pods of the Deployment: its command is run here, with folders of the test for its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from controlplane.control_plane import ADMIN, ControlPlane, free_ports
from controlplane.pages import ask
from controlplane.process import Process
from stowplan.cli import stowplan

Json = dict[str, Any]
PROGRAMS = Path(sys.executable).parent


def rendered(config: Path, *options: str) -> str:
    """What the command prints."""
    done = CliRunner().invoke(
        stowplan, ["manifests", f"--config={config}", "--image=stowplan:test", *options]
    )
    assert done.exit_code == 0, done.output
    return done.stdout


@contextmanager
def applied(control_plane: ControlPlane, text: str, folder: Path) -> Iterator[list[Json]]:
    """The objects, in the cluster as long as this lasts; custom resources go with the next wipe."""
    path = folder / "manifests.yaml"
    path.write_text(text)
    control_plane.kubectl("apply", f"--filename={path}")
    objects = list(yaml.safe_load_all(text))
    try:
        yield objects
    finally:
        kinds = ("Namespace", "CustomResourceDefinition")
        rest = [each for each in objects if each["kind"] not in kinds]
        control_plane.kubectl("delete", "--ignore-not-found", "-f", "-", objects=rest)


def account_kubeconfig(control_plane: ControlPlane, account: Json, folder: Path) -> Path:
    """A kubeconfig with a token of this ServiceAccount."""
    name, namespace = account["metadata"]["name"], account["metadata"]["namespace"]
    document = json.loads(control_plane.kubeconfig(ADMIN).read_text())
    token = control_plane.kubectl("create", "token", name, f"--namespace={namespace}").strip()
    document["users"][0]["user"] = {"token": token}
    path = folder / "account.kubeconfig"
    path.write_text(json.dumps(document))
    return path


def mount(folder: Path, data: Mapping[str, str]) -> None:
    """Fills the folder as the kubelet does for a ConfigMap: links to links, which change all at once."""
    folder.mkdir(exist_ok=True)
    fresh = folder / f"..{len(list(folder.iterdir()))}"
    fresh.mkdir()
    for name, text in data.items():
        (fresh / name).write_text(text)
    (folder / "..data_tmp").symlink_to(fresh.name)
    os.replace(folder / "..data_tmp", folder / "..data")
    for name in data:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def scheduler(control_plane: ControlPlane, objects: list[Json], folder: Path) -> Process:
    """The process of the Deployment's first pod, not yet started."""
    by_kind = {each["kind"]: each for each in objects}
    kubeconfig = account_kubeconfig(control_plane, by_kind["ServiceAccount"], folder)
    data = dict(by_kind["ConfigMap"]["data"])
    # Here its account is no folder of the pod's but a kubeconfig, for all that it asks.
    data["config.yaml"] += f"clientConnection: {{kubeconfig: {kubeconfig}}}\n"
    data["kubeconfig"] = kubeconfig.read_text()
    mount(folder / "mounted", data)
    (container,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    folders = {"/etc/stowplan": folder / "mounted", "/var/lib/stowplan": folder / "journal"}
    return process_of(container, folders, folder)


def process_of(container: Json, folders: Mapping[str, Path], folder: Path) -> Process:
    """The container's command with its paths mapped; any port and address, so that many can run here."""
    (port,) = free_ports(1)
    program, *words = container["command"]
    flags = [word for word in words if not word.startswith(("--secure-port=", "--bind-address="))]
    for inside, outside in folders.items():
        flags = [flag.replace(inside, str(outside)) for flag in flags]
    server = f"https://127.0.0.1:{port}"
    process = Process(
        [PROGRAMS / program, *flags, "--bind-address=127.0.0.1", f"--secure-port={port}"],
        folder / "scheduler.log",
        lambda: answers(server, "/readyz"),
    )
    process.server = server
    return process


def answers(server: str, path: str) -> bool:
    try:
        return ask(server, path)[0] == 200
    except OSError:
        return False
