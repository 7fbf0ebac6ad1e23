"""`stowplan up` with wrong input: one line that says what is wrong, and where."""

from __future__ import annotations

import pytest

CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(["--nodes", "{cpus: 4}"], "nodes[0]: ", id="a template with an unknown field"),
        pytest.param(
            ["--nodes", "ten"],
            "ten: cannot be read: No such file or directory; --nodes takes a number, a template or a file",
            id="nodes as a word",
        ),
        pytest.param(["-f", "nowhere.yaml"], "nowhere.yaml: cannot be read", id="a file that is not there"),
        pytest.param(["--config", "nowhere.yaml"], "nowhere.yaml", id="a configuration that is not there"),
        pytest.param(
            ["--context", "there"], "--context requires --from-cluster", id="a flag without its own"
        ),
        pytest.param(
            ["--from-cluster"],
            "stowplan: no kubeconfig found; set KUBECONFIG to the kubeconfig of the cluster to copy\n",
            id="no cluster to copy",
        ),
        pytest.param(
            ["--nodes", "-3"],
            "nodes[0]: count: -3 is negative; must be 0 or greater",
            id="less than no nodes",
        ),
        pytest.param(["--host", "203.0.113.9"], "cannot listen on 203.0.113.9", id="an address of others"),
    ],
)
def test_what_is_wrong_is_said(run_stowplan, tmp_path, monkeypatch, flags, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = run_stowplan("up", "--kubeconfig", tmp_path / "config", *flags)
    assert ended.status in (1, 2)
    assert said in ended.err
    assert "Traceback" not in ended.err


NO_OBJECT = "is not a Kubernetes object: it needs at least apiVersion, kind and metadata"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n",
            "spec.containers: Required value",
            id="what the API refuses",
        ),
        pytest.param("just words\n", NO_OBJECT, id="text"),
        pytest.param("- 1\n", NO_OBJECT, id="a list"),
        pytest.param("apiVersion: v1\nkind: Pod\nmetadata: web\n", NO_OBJECT, id="metadata that are text"),
        pytest.param("apiVersion: v1\nkind: [Pod]\nmetadata: {}\n", NO_OBJECT, id="two kinds"),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata: {name: 5}\n",
            "metadata.name: is not text: 5",
            id="a number for a name",
        ),
    ],
)
def test_an_object_that_cannot_be_is_named(run_stowplan, tmp_path, text, said):
    manifest = tmp_path / "bad.yaml"
    manifest.write_text(text)
    ended = run_stowplan("up", "--kubeconfig", tmp_path / "config", "-f", manifest)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.startswith(f"stowplan: {manifest}: document 1: ")
    assert said in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("level", [["-v=3"], ["-v", "3"], ["-v3"], ["--v=3"], ["--verbosity=3"]])
def test_a_log_level_is_written_as_kubernetes_writes_it(run_stowplan, tmp_path, monkeypatch, level):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "scheduler.yaml"
    config.write_text(CONFIG)
    assert "- -v=3\n" in run_stowplan("manifests", f"--config={config}", "--image=i", *level).out
    for command, said in (
        (["up", "--config=nowhere.yaml", "--kubeconfig=k"], "nowhere.yaml"),
        (["extender"], "nothing to serve"),
        (["run", "--config=nowhere.yaml"], "nowhere.yaml"),
    ):
        if command[0] == "run" and level[0].startswith("--verbosity"):
            continue  # as of kube-scheduler
        ended = run_stowplan(*command, *level)
        assert said in ended.err, ended.err
    assert "'x' is not a valid integer" in run_stowplan("extender", "-v=x").err
