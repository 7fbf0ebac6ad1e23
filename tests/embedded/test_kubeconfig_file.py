"""The kubeconfig of `stowplan up`: for its owner alone, and never written through a link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stowplan.embedded import kubeconfig
from stowplan.errors import InputError


def write(path: Path) -> None:
    kubeconfig.check_may_write(path)
    with kubeconfig.written(path, server="https://[::1]:1", certificate=b"c", token="secret"):
        pass


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kubeconfig"
    before = os.umask(0)
    try:
        write(path)
        path.chmod(0o644)
        write(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret" in path.read_text()
    assert os.listdir(path.parent) == ["kubeconfig"]


@pytest.mark.parametrize("content", ["", "mine\n", kubeconfig.HEADER, None])
def test_no_link_is_followed(tmp_path: Path, content: str | None) -> None:
    target, path = tmp_path / "target", tmp_path / "kubeconfig"
    if content is not None:
        target.write_text(content)
    path.symlink_to(target)
    with pytest.raises(InputError, match="symbolic link"):
        write(path)
    assert path.is_symlink()
    assert (target.read_text() if target.exists() else None) == content


def test_a_link_that_comes_after_the_check_is_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "kubeconfig"
    kubeconfig.check_may_write(path)
    path.symlink_to(target)
    with (
        pytest.raises(InputError),
        kubeconfig.written(path, server="https://[::1]:1", certificate=b"c", token="secret"),
    ):
        pass
    assert not target.exists()
    assert sorted(os.listdir(tmp_path)) == ["kubeconfig"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: Path(path).write_bytes(b"\xff\xfe")])
def test_what_is_no_kubeconfig_of_ours_stays(tmp_path: Path, make: object) -> None:
    path = tmp_path / "kubeconfig"
    make(path)  # type: ignore[operator]
    with pytest.raises(InputError, match="not created by `stowplan up`"):
        write(path)


def test_the_file_of_a_running_cluster_stays(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with kubeconfig.written(path, server="https://[::1]:1", certificate=b"c", token="first"):
        with pytest.raises(InputError, match="another `stowplan up` that is running uses this file"):
            write(path)
        assert "first" in path.read_text()
    write(path)
    assert "secret" in path.read_text()
