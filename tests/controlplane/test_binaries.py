"""Where the programs of a control plane come from."""

import re

import pytest

from controlplane.binaries import cache_folder, program


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without Go, where a user has etcd and nothing was built yet."""
    (tmp_path / "etcd").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    return tmp_path


def test_a_program_the_user_has_is_taken(machine):
    assert program("etcd") == machine / "etcd"


def test_a_program_that_was_built_is_taken(machine):
    built = cache_folder() / "kubectl"
    built.parent.mkdir(parents=True)
    built.touch()
    assert program("kubectl") == built
    assert re.search(r"kubernetes-v1\.36\.\d+-etcd-v3\.6\.\d+", str(built))


def test_without_go_the_message_names_what_is_missing(machine):
    with pytest.raises(FileNotFoundError, match="has kube-apiserver, kube-scheduler, kubectl"):
        program("kube-apiserver")
