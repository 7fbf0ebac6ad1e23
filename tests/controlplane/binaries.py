"""The control plane's programs: from `KUBEBUILDER_ASSETS`, else built once by Go from the versions in go.mod.

Builds are kept in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`), by version; run this file to
build ahead of time. With `STOWPLAN_KUBERNETES=1.35`, kube-apiserver and kube-scheduler are of that minor,
from the go.mod in kubernetes-1.35; `python binaries.py pin v1.35.8` writes that file for another patch.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODULE = Path(__file__).parent
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
OTHERS = {
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "e2e.test": "k8s.io/kubernetes/test/e2e",
    "helm": "helm.sh/helm/v3/cmd/helm",
    "scheduler-plugins": "sigs.k8s.io/scheduler-plugins/cmd/scheduler",
}
"""Built only when they are asked for: Kubernetes' own tests and what they need besides, Helm, and the
scheduler of scheduler-plugins."""


OF_MINOR = ("kube-apiserver", "kube-scheduler")
"""The programs that a folder kubernetes-1.x has; the others are those of the default version."""


def program(name: str) -> Path:
    """Where the program is; the first call ever takes minutes, since it builds all that are missing."""
    module = chosen_module()
    if name in OF_MINOR and module != MODULE:
        folder = minor_folder(module)
        if not (folder / name).exists():
            build(list(OF_MINOR), folder, module)
        return folder / name
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    given = {known: Path(assets, known) for known in PACKAGES if assets and Path(assets, known).exists()}
    if name in given:
        return given[name]
    folder = cache_folder()
    if name in OTHERS:
        if not (folder / name).exists():
            build([name], folder)
    elif not (folder / name).exists():
        build([known for known in PACKAGES if known not in given], folder)
    return folder / name


def cache_folder() -> Path:
    return _cache() / f"kubernetes-{version('k8s.io/kubernetes')}-etcd-{version('go.etcd.io/etcd/server/v3')}"


def minor_folder(module: Path) -> Path:
    return _cache() / f"kubernetes-{version('k8s.io/kubernetes', module)}"


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "stowplan", "controlplane")


def chosen_module() -> Path:
    """The folder whose go.mod has the version of kube-apiserver and kube-scheduler."""
    minor = os.environ.get("STOWPLAN_KUBERNETES", "")
    if not minor or version("k8s.io/kubernetes").startswith(f"v{minor}."):
        return MODULE
    folder = MODULE / f"kubernetes-{minor}"
    if not (folder / "go.mod").exists():
        known = sorted(each.name.removeprefix("kubernetes-") for each in MODULE.glob("kubernetes-*"))
        raise LookupError(f"STOWPLAN_KUBERNETES={minor}: expected one of {', '.join(known)}")
    return folder


def version(module: str, folder: Path = MODULE) -> str:
    """The version of a module that go.mod requires, or with which it replaces it."""
    pattern = rf"^(?:require)?\s*{re.escape(module)}(?: => {re.escape(module)})? (v\S+)"
    found = re.findall(pattern, (folder / "go.mod").read_text(), re.MULTILINE)
    if not found:
        raise LookupError(f"go.mod does not require {module}")
    return str(found[-1])


def build(names: list[str], folder: Path, module: Path = MODULE) -> None:
    """Build the programs that the folder lacks; of two processes that ask for it, the second waits."""
    if shutil.which("go") is None:
        raise FileNotFoundError(
            "Go is needed to build a control plane: install it, or set KUBEBUILDER_ASSETS to a folder "
            f"that has {', '.join(names)}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in names if not (folder / name).exists()]
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            _compile(missing, Path(fresh), module)
            for name in missing:
                (Path(fresh) / name).replace(folder / name)  # whole or not at all


def _compile(names: list[str], folder: Path, root: Path) -> None:
    packages = PACKAGES | OTHERS
    for name in names:
        # Helm and scheduler-plugins need other versions than the control plane, so each has its own go.mod.
        module = MODULE / name if (MODULE / name / "go.mod").exists() else root
        verb = ["test", "-c", "-vet=off"] if name.endswith(".test") else ["build"]
        stamps = " ".join(_stamps(MODULE if name == "helm" else module))
        command = ["go", *verb, "-trimpath", f"-ldflags=-s -w {stamps}", "-o", str(folder / name)]
        subprocess.run([*command, packages[name]], cwd=module, check=True)


def _stamps(module: Path) -> list[str]:
    # Built outside its own repository Kubernetes knows no version, and kubectl refuses to compare two such.
    kubernetes = version("k8s.io/kubernetes", module)
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    facts = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    return [
        f"-X {package}.{fact}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for fact, value in facts.items()
    ]


def pin(release: str) -> None:
    """Write go.mod and go.sum for a release of Kubernetes, with the versions that it pins itself."""
    folder = MODULE / f"kubernetes-{release.removeprefix('v').rpartition('.')[0]}"
    folder.mkdir(exist_ok=True)
    found = _go_json("mod", "download", "-json", f"k8s.io/kubernetes@{release}")
    theirs = _go_json("mod", "edit", "-json", found["GoMod"])
    # Its go.mod replaces its staging modules by folders, which a module that requires it does not have.
    staging = f"v0{release.removeprefix('v1')}"
    lines = [
        f"// kube-apiserver and kube-scheduler {release}, for `make test-minors`; written by binaries.py.",
        f"module stowplan/tests/controlplane/{folder.name}",
        f"go {theirs['Go']}",
        *("tool (", *(PACKAGES[name] for name in OF_MINOR), ")"),
        *("require (", f"k8s.io/kubernetes {release}"),
        *(f"{each['Path']} {each['Version']} // indirect" for each in theirs["Require"]),
        *(")", "replace ("),
        *(f"{path} => {path} {staging}" for path in sorted(_replaced(theirs) & _required(theirs))),
        ")",
    ]
    (folder / "go.mod").write_text("\n".join(lines) + "\n")
    subprocess.run(["go", "mod", "edit", "-fmt"], cwd=folder, check=True)
    packages = [PACKAGES[name] for name in OF_MINOR]
    subprocess.run(
        ["go", "list", "-mod=mod", "-deps", *packages], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )


def _replaced(module: dict[str, Any]) -> set[str]:
    return {each["Old"]["Path"] for each in module["Replace"]}


def _required(module: dict[str, Any]) -> set[str]:
    return {each["Path"] for each in module["Require"]}


def _go_json(*arguments: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(["go", *arguments], cwd=elsewhere, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["pin"]:
        pin(sys.argv[2])
    else:
        for wanted in PACKAGES:
            sys.stdout.write(f"{program(wanted)}\n")
