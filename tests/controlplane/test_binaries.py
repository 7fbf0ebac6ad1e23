"""Where the programs of a control plane come from."""

import re

import pytest

from controlplane.binaries import OF_MINOR, cache_folder, chosen_module, minor_folder, program


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


def test_another_minor_has_its_own_api_server_and_scheduler(machine, monkeypatch):
    monkeypatch.setenv("STOWPLAN_KUBERNETES", "1.35")
    folder = minor_folder(chosen_module())
    for built in [*(folder / name for name in OF_MINOR), *(cache_folder() / name for name in OF_MINOR)]:
        built.parent.mkdir(parents=True, exist_ok=True)
        built.touch()
    (machine / "kube-apiserver").touch()
    assert [program(name) for name in OF_MINOR] == [folder / name for name in OF_MINOR]
    assert re.search(r"/kubernetes-v1\.35\.\d+$", str(folder))
    assert program("etcd") == machine / "etcd"
    monkeypatch.setenv("STOWPLAN_KUBERNETES", "1.36")
    assert program("kube-apiserver") == machine / "kube-apiserver"
    monkeypatch.setenv("STOWPLAN_KUBERNETES", "1.12")
    with pytest.raises(LookupError, match=r"STOWPLAN_KUBERNETES=1\.12: expected one of 1\.34, 1\.35, 1\.37"):
        program("kube-apiserver")
