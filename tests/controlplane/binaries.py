"""The control plane's programs: from `KUBEBUILDER_ASSETS`, else built once by Go from the versions in go.mod.

Builds are kept in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`), by version; run this file to
build ahead of time.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

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
}
"""Built only when they are asked for: Kubernetes' own tests and what they need besides, and Helm."""


def program(name: str) -> Path:
    """Where the program is; the first call ever takes minutes, since it builds all that are missing."""
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
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    key = f"kubernetes-{version('k8s.io/kubernetes')}-etcd-{version('go.etcd.io/etcd/server/v3')}"
    return Path(root, "stowplan", "controlplane", key)


def version(module: str) -> str:
    """The version of a module that go.mod requires."""
    found = re.search(rf"^\s*{re.escape(module)} (v\S+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"go.mod does not require {module}")
    return found[1]


def build(names: list[str], folder: Path) -> None:
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
            _compile(missing, Path(fresh))
            for name in missing:
                (Path(fresh) / name).replace(folder / name)  # whole or not at all


def _compile(names: list[str], folder: Path) -> None:
    # Built outside its own repository Kubernetes knows no version, and kubectl refuses to compare two such.
    kubernetes = version("k8s.io/kubernetes")
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    facts = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    stamps = [
        f"-X {package}.{fact}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for fact, value in facts.items()
    ]
    packages = PACKAGES | OTHERS
    for name in names:
        verb = ["test", "-c", "-vet=off"] if name.endswith(".test") else ["build"]
        command = ["go", *verb, "-trimpath", f"-ldflags=-s -w {' '.join(stamps)}", "-o", str(folder / name)]
        module = MODULE / name if (MODULE / name / "go.mod").exists() else MODULE  # Helm has one of its own
        subprocess.run([*command, packages[name]], cwd=module, check=True)


if __name__ == "__main__":
    for wanted in PACKAGES:
        sys.stdout.write(f"{program(wanted)}\n")
