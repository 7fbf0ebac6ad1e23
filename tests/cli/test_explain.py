"""`stowplan explain` from the outside."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples/demo"
DEMO_PODS = ["newsletter", "deployment/mailer", "web-4", "trainer-2", "warehouse", "checkout"]
NODE = (
    "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {capacity: {cpu: 4, memory: 8Gi, pods: 110}}\n"
)
POD = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n"
CONFIG = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.fixture
def stowplan(run_stowplan):
    return partial(run_stowplan, "explain")


def winners(run):
    assert (run.status, run.err) == (0, "")
    return [
        (found["pod"], found["outcome"], found["node"]) for found in map(json.loads, run.out.splitlines())
    ]


def test_the_demo_shows_ties_winners_a_pending_pod_and_a_preemption(stowplan):
    assert winners(stowplan(*DEMO_PODS, "-n", "shop", "-f", DEMO, "-o", "json", "--seed", 1)) == [
        ("shop/newsletter", "placed", "worker-a1"),
        ("shop/mailer-new", "placed", "worker-c2"),
        ("shop/web-4", "placed", "worker-c1"),
        ("shop/trainer-2", "placed", "gpu-b"),
        ("shop/warehouse", "pending", None),
        ("shop/checkout", "preempting", None),
    ]


def test_another_seed_lets_other_nodes_win(stowplan):
    assert winners(stowplan(*DEMO_PODS[:2], "-n", "shop", "-f", DEMO, "-o", "json", "--seed", 2)) == [
        ("shop/newsletter", "placed", "worker-c2"),
        ("shop/mailer-new", "placed", "worker-b2"),
    ]


def documented():
    text = (ROOT / "docs/explain.md").read_text()
    found = re.findall(r"```console\n\$ (stowplan explain .*)\n((?:.*\n)*?)```", text)
    return [pytest.param(command, output, id=command) for command, output in found]


@pytest.mark.parametrize(("command", "output"), documented())
def test_prints_what_the_documentation_shows(command, output, stowplan, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert stowplan(*shlex.split(command)[2:]) == (0, output, "")


def test_reads_standard_input(stowplan):
    run = stowplan("p", "-f", "-", stdin=NODE + POD)
    assert run.out.startswith("Pod default/p goes to n (profile default-scheduler).\n")


def test_says_which_kinds_were_not_looked_at(stowplan):
    secrets = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n" * 2
    run = stowplan("p", "-v", "-f", "-", stdin=NODE + POD + secrets)
    assert run.err == "ignored, because they do not affect scheduling: 2 Secret\n"


def test_takes_a_configuration(stowplan, file):
    config = file(
        CONFIG + "profiles: [{schedulerName: mine}]\nextenders: [{urlPrefix: http://x, filterVerb: f}]\n", "c"
    )
    run = stowplan(
        "p", "-f", "-", "--config", config, stdin=NODE + POD.replace("{cont", "{schedulerName: mine, cont")
    )
    assert run.out.startswith("Pod default/p goes to n (profile mine).\n")
    assert run.err == f"{config}: ignoring its extenders (1)\n"


def test_warns_of_an_old_configuration(stowplan, file):
    config = file(CONFIG.replace("v1\n", "v1beta3\n"), "old.yaml")
    run = stowplan("p", "-f", "-", "--config", config, stdin=NODE + POD)
    assert run.status == 0
    assert re.fullmatch(rf"{config}: converted from .*v1beta3.* to v1.*\n", run.err)


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        pytest.param(["p"], "just text", "{file}: document 1: is not a Kubernetes object", id="no object"),
        pytest.param(
            ["p"],
            POD.replace("name: c", "name: c, resources: {requests: {cpu: 1.5.3}}"),
            "{file}: Pod default/p: spec.containers[0].resources.requests.cpu: '1.5.3' is not a quantity",
            id="no quantity",
        ),
        pytest.param(["q"], NODE + POD, "pod default/q not found (known: default/p)", id="no such pod"),
        pytest.param(["p", "--node", "m"], NODE + POD, "node m not found (known: n)", id="no such node"),
        pytest.param(
            ["p", "-f", "/no/such"], NODE + POD, "/no/such: cannot be read: No such file", id="no such file"
        ),
        pytest.param(
            ["p", "--config", "/no/such"],
            NODE + POD,
            "/no/such: cannot be read: No such",
            id="no such config",
        ),
        pytest.param(
            ["p"],
            NODE + POD.replace("{cont", "{schedulerName: mine, cont"),
            "Pod default/p: spec.schedulerName: no profile has the name 'mine', there is default-scheduler",
            id="no such profile",
        ),
    ],
)
def test_bad_input_is_a_line_and_exit_status_1(arguments, text, message, stowplan, file):
    path = file(text)
    run = stowplan(*arguments, "-f", path)
    assert (run.status, run.out) == (1, "")
    (line,) = run.err.splitlines()
    assert line.startswith(f"stowplan: {message.format(file=path)}")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(
            "profile: []", '{file}: strict decoding error: unknown field "profile"', id="an unknown field"
        ),
        pytest.param(
            "profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]",
            '"Nope" does not exist',
            id="an unknown plugin",
        ),
    ],
)
def test_a_bad_configuration_is_a_line_and_exit_status_1(config, message, stowplan, file):
    path = file(CONFIG + config, "config.yaml")
    run = stowplan("p", "-f", "-", "--config", path, stdin=NODE + POD)
    assert (run.status, run.out) == (1, "")
    (line,) = run.err.splitlines()
    assert message.format(file=path) in line


PLUGINS = """
from stowplan.framework import Plugin, Status

class Raises(Plugin):
    def filter(self, state, pod, node):
        raise ValueError("boom")

class Exaggerates(Plugin):
    def score(self, state, pod, node):
        return 101

class Interferes(Plugin):
    def post_filter(self, state, pod, decision):
        raise ValueError("boom")

class Mimics(Plugin):
    def post_filter(self, state, pod, decision):
        return Status.unschedulable("preemption: this pod is not eligible")
"""


NO_FIT = POD.replace("{containers", "{nodeSelector: {disk: ssd}, containers")


@pytest.mark.parametrize(
    ("plugin", "point", "pod", "where"),
    [
        pytest.param("Raises", "filter", POD, "(pod default/p, node n, at ", id="raises for a node"),
        pytest.param(
            "Exaggerates", "score", POD, "(pod default/p, node n, at ", id="scores outside of 0 to 100"
        ),
        pytest.param(
            "Interferes", "postFilter", NO_FIT, "(pod default/p, at ", id="raises where nothing fits"
        ),
    ],
)
def test_a_failing_plugin_is_a_line_and_exit_status_1(plugin, point, pod, where, stowplan, file, monkeypatch):
    monkeypatch.syspath_prepend(file(PLUGINS, "failing.py").parent)
    plugins = {point: {"enabled": [{"name": f"failing:{plugin}"}], "disabled": [{"name": "*"}]}}
    config = file(CONFIG + json.dumps({"profiles": [{"plugins": plugins}]})[1:-1], "config.yaml")
    nodes = NODE + "---\n" + NODE.replace("name: n", "name: o")
    run = stowplan("p", "-f", "-", "--config", config, stdin=nodes + pod)
    assert (run.status, run.out) == (1, "")
    (line,) = run.err.splitlines()
    assert f"failing:{plugin}" in line
    assert where in line


def test_words_of_a_plugin_are_not_taken_for_a_search_for_victims(stowplan, file, monkeypatch):
    monkeypatch.syspath_prepend(file(PLUGINS, "mimicking.py").parent)
    plugins = {"postFilter": {"enabled": [{"name": "mimicking:Mimics"}], "disabled": [{"name": "*"}]}}
    config = file(CONFIG + json.dumps({"profiles": [{"plugins": plugins}]})[1:-1], "config.yaml")
    run = stowplan("p", "-f", "-", "--config", config, "-o", "json", stdin=NODE + NO_FIT)
    assert json.loads(run.out)["preemption"]["why"] == "No plugin of this profile preempts pods."


@pytest.mark.parametrize("pods", [("p", "q"), ("q", "p")], ids=" ".join)
def test_of_several_pods_the_others_are_explained_beside_a_bad_one(pods, stowplan):
    run = stowplan(*pods, "-f", "-", stdin=NODE + POD)
    assert run.status == 1
    assert run.out.startswith("Pod default/p goes to n")
    assert run.err == "stowplan: pod default/q not found (known: default/p)\n"


def test_help_does_not_load_numpy():
    code = "import sys; from stowplan.cli import stowplan; stowplan.main(['--help'], standalone_mode=False); "
    code += "sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
