"""The lock files pin, with hashes, what pyproject.toml asks for, and the image installs nothing else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def locked_requirements(path: Path) -> dict[str, list[tuple[Requirement, int]]]:
    """Each pinned requirement by name, with the number of its hashes; several where Pythons differ."""
    found: dict[str, list[tuple[Requirement, int]]] = {}
    lines = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE)
    for entry in re.sub(r"\\\n", " ", lines).splitlines():
        text, *hashes = entry.split("--hash=")
        requirement = Requirement(text)
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(hashes)))
    return found


def wanted() -> list[tuple[str, str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime = [*project["dependencies"], *project["optional-dependencies"]["journal"]]
    development = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    build, docs = (
        [line for line in (ROOT / "requirements" / name).read_text().splitlines() if line[0] != "#"]
        for name in ("build.in", "docs.in")
    )
    files = {"image.txt": runtime, "build.txt": build, "dev.txt": development, "docs.txt": docs}
    return [(file, requirement) for file, requirements in files.items() for requirement in requirements]


@pytest.mark.parametrize(("file", "requirement"), wanted())
def test_every_requirement_is_pinned_to_a_version_it_allows(file, requirement):
    asked = Requirement(requirement)
    pinned = locked_requirements(ROOT / "requirements" / file)
    found = pinned.get(canonicalize_name(asked.name), [])
    assert found, f"requirements/{file} does not pin {requirement}: run `make lock`"
    for each, _ in found:
        (pin,) = each.specifier
        assert pin.operator == "=="
        assert asked.specifier.contains(pin.version), f"{each} is not {requirement}: run `make lock`"


@pytest.mark.parametrize("file", ["image.txt", "build.txt", "dev.txt", "docs.txt"])
def test_every_pin_has_a_hash(file):
    pinned = locked_requirements(ROOT / "requirements" / file)
    assert pinned
    assert all(hashes for entries in pinned.values() for _, hashes in entries)


def test_the_image_installs_nothing_that_is_not_pinned():
    steps = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", steps)
    assert len(installs) == 4
    for command in installs:
        # Either every file's hash is checked, or nothing is fetched: our own wheel.
        assert "--require-hashes" in command or "--no-deps" in command, command


def test_nobody_is_told_to_install_a_name_that_is_not_published():
    """Before a release on PyPI, another package could have the name; `pip install .` in a clone works."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder, pattern in (("docs", "*.md"), ("src", "*.py"), ("examples", "*.md")):
        pages += (ROOT / folder).rglob(pattern)
    advice = re.compile(r"pip3? install (?:-\S+ )*['\"]?stowplan(?![-\w/])")
    assert [str(page.relative_to(ROOT)) for page in pages if advice.search(page.read_text())] == []
    assert advice.search("pip install 'stowplan[journal]'")
