"""What is wrong with the input is one line on standard error, and a terminal is safe to show it."""

from __future__ import annotations

import pytest
import yaml

KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [
        {
            "name": "u",
            "user": {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "false",
                    "interactiveMode": "Never",
                }
            },
        }
    ],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}
NAMED = """
apiVersion: v1
kind: Pod
metadata: {name: "a\\e[31mb\\e]0;title\\a"}
spec: {containers: [{name: c}]}
"""
WRONG = """
apiVersion: v1
kind: Pod
metadata: {name: "a\\e]0;title\\a"}
spec: {containers: none}
"""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["explain", "web"], id="explain"),
        pytest.param(["explain", "deployment/web"], id="explain a workload"),
        pytest.param(["whatif", "--lose", "n1"], id="whatif"),
    ],
)
def test_an_exec_plugin_that_fails(run_stowplan, file, words):
    kubeconfig = file(yaml.safe_dump(KUBECONFIG), "exec.kubeconfig")
    result = run_stowplan(*words, "--kubeconfig", kubeconfig)
    assert (result.status, result.out) == (1, "")
    assert result.err.endswith(
        "exec plugin 'false' failed with exit status 1; see standard error for its output\n"
    )
    assert result.err.startswith(f"stowplan: {kubeconfig}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["explain", "nope"], r"a\x1b[31mb\x1b]0;title\x07", id="names in files"),
        pytest.param(["explain", "no\x1b[2Jpe"], r"no\x1b[2Jpe", id="words of the command line"),
    ],
)
def test_what_a_terminal_would_obey_is_spelt_out(run_stowplan, file, words, said):
    result = run_stowplan(*words, "-f", file(NAMED))
    assert result.status == 1
    assert said in result.err
    assert "\x1b" not in result.err


def test_so_are_faults_of_files(run_stowplan, file):
    result = run_stowplan("explain", "a", "-f", file(WRONG))
    assert result.status == 1
    assert r"a\x1b]0;title\x07" in result.err
    assert "\x1b" not in result.err
