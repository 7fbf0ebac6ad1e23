"""Wheel and sdist, built from a clean tree and installed in new environments: `make test-package`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(*command: str | Path, cwd: Path | None = None) -> str:
    # Nothing of the checkout that runs the tests may be found by what is tested.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def pythons() -> list[str]:
    """Every Python of this machine that the package supports: those on PATH, and pyenv's."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")):
        found.setdefault(".".join(path.parts[-3].split(".")[:2]), str(path))
    for minor in range(11, 20):
        path = shutil.which(f"python3.{minor}")
        if path and "shims" not in path:
            found.setdefault(f"3.{minor}", path)
    return [path for name, path in found.items() if int(name.partition(".")[2]) >= 11]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, built from what is committed."""
    folder = tmp_path_factory.mktemp("package")
    run("git", "clone", "--quiet", ROOT, folder / "clean")
    run(sys.executable, "-m", "venv", folder / "build")
    run(folder / "build/bin/pip", "install", "--quiet", "build")
    run(folder / "build/bin/python", "-m", "build", "--outdir", folder / "dist", folder / "clean")
    return folder / "dist"


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def test_the_wheel_has_types_data_and_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        fields = HeaderParser().parsestr(archive.read(metadata).decode())
    for name in (
        "py.typed",
        "web/static/index.html",
        "apiserver/schemas.json.gz",
        "deploy/monitoring/rules.yaml",
    ):
        assert f"stowplan/{name}" in names
    assert not [name for name in names if not name.startswith(("stowplan/", "stowplan-"))]
    assert (fields["Name"], fields["Requires-Python"], fields["License-Expression"]) == (
        "stowplan",
        ">=3.11",
        "Apache-2.0",
    )
    assert "Typing :: Typed" in fields.get_all("Classifier", [])


def test_the_source_distribution_builds_the_same_wheel(built, wheel, tmp_path):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"pyproject.toml", "LICENSE", "deploy/helm/stowplan/Chart.yaml", "docs/deploy.md"} <= names
    (folder,) = tmp_path.iterdir()
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        tmp_path / "again",
        folder,
    )
    (again,) = (tmp_path / "again").glob("*.whl")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {each.filename: each.CRC for each in first.infolist()} == {
            each.filename: each.CRC for each in second.infolist()
        }


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).parts[-3])
def test_the_demo_runs_where_only_the_wheel_is_installed(wheel, tmp_path, python):
    check_demo(wheel, tmp_path, python)


def test_the_demo_runs_on_the_python_of_debian_unstable(wheel):
    """Newer than those of this machine; it was 3.14 when this was written."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs debootstrap, and root to run it")
    root = debian("sid")
    folder = Path(tempfile.mkdtemp(dir=root / "tmp"))
    try:
        check_demo(wheel, folder, "python3", root)
    finally:
        shutil.rmtree(folder)


def debian(suite: str) -> Path:
    """A small Debian with Python, made once and kept in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stowplan"
    root = cache / f"debian-{suite}"
    if not root.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=cache))
        included = "--include=python3,python3-venv,ca-certificates"
        run("debootstrap", "--variant=minbase", included, suite, fresh)
        fresh.chmod(0o755)
        fresh.rename(root)
    # What pip needs to reach its index from here.
    for name in ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt"):
        if Path("/", name).exists():
            shutil.copy(Path("/", name), root / name)
    return root


def check_demo(wheel: Path, folder: Path, python: str, root: Path = Path("/")) -> None:
    """Install the wheel in a new environment in `folder`, of a Debian at `root`, and run the demo."""
    here = Path("/", folder.relative_to(root))
    chroot = () if root == Path("/") else ("chroot", root)

    def run_here(*command: str | Path) -> str:
        return run(*chroot, "env", f"--chdir={here}", *command)

    shutil.copy(wheel, folder)
    shutil.copytree(EXAMPLES, folder / "examples")
    run_here(python, "-m", "venv", "fresh")
    run_here("fresh/bin/pip", "install", "--quiet", "--only-binary=:all:", wheel.name)
    assert "stowplan, version" in run_here("fresh/bin/stowplan", "--version")
    assert "kube-scheduler v1.36" in run_here("fresh/bin/kube-scheduler", "--version")
    said = run_here("fresh/bin/python", "examples/embedded/demo.py", "1")
    assert "Traceback" not in said
    assert said.strip()
    where = run_here("fresh/bin/python", "-c", "import stowplan; print(stowplan.__file__)")
    assert where.startswith(str(here))
