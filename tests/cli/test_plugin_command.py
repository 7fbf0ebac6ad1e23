"""`stowplan plugin` from the outside."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml
from click.testing import CliRunner

from pytest_process import run_pytest
from stowplan.cli import stowplan
from stowplan.errors import StowplanError

CONFIG = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
GOOD = "from stowplan import Plugin\n\nclass {}(Plugin):\n    def score(self, state, pod, node): return 1\n"
WITH_ARGS = """\
from stowplan import Plugin, PluginArgs

class SizedArgs(PluginArgs):
    max_size: int = 3
    names: tuple[str, ...] = ()

class Sized(Plugin):
    args: SizedArgs

    def filter(self, state, pod, node): ...
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Runs the command in a folder of its own, where files can be written."""
    monkeypatch.chdir(tmp_path)

    class Here:
        path: Path = tmp_path

        def write(self, name, text):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text if isinstance(text, str) else yaml.safe_dump(text))

        def stowplan(self, *arguments):
            """In this process, which saves the time to import everything."""
            result = CliRunner().invoke(stowplan, [*map(str, arguments)])
            if isinstance(result.exception, StowplanError):
                return CompletedProcess(arguments, 1, result.stdout, f"stowplan: {result.exception}\n")
            return CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)

        def stowplan_process(self, *arguments, python_path=""):
            command = [sys.executable, "-c", "from stowplan.cli import main; main()", *map(str, arguments)]
            environment = {**os.environ, "PYTHONPATH": python_path, "PYTHONSAFEPATH": "1"}
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return Here()


@pytest.mark.parametrize("kind", [False, True], ids=["of a label", "of a custom resource"])
def test_a_new_plugin_passes_its_test_and_all_checks_at_once(here, kind):
    options, extra, passed = (["--kind", "NodeUse"], ["crd.yaml"], 5) if kind else ([], [], 6)
    written = here.stowplan_process("plugin", "new", "HTTPNodes2", "--dir", "policies/http", *options)
    names = ["http_nodes2.py", "test_http_nodes2.py", "scheduler.yaml", "example.yaml", "README.md"]
    names += ["manifests.yaml", *extra]
    assert written.stdout.splitlines() == [f"wrote policies/http/{name}" for name in names]
    folder, config = "policies/http", "policies/http/scheduler.yaml"
    assert here.stowplan("plugin", "check", "policies/http/http_nodes2.py").returncode == 0
    checked = here.stowplan("plugin", "check", "--plugin-dir", folder, "--config", config)
    assert (checked.returncode, checked.stdout) == (0, "no errors found\n")
    assert checked.stderr == "Types are not checked; run mypy --strict on your files for that.\n"
    checked = here.stowplan("config", "check", config, "--plugin-dir", folder)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    run = run_pytest(here.path, "-o", "addopts=", folder)
    assert (run.returncode, f"{passed} passed" in run.stdout) == (0, True), run.stdout
    manifests = list(yaml.safe_load_all((here.path / folder / "manifests.yaml").read_text()))
    again = here.stowplan(
        *("manifests", "--config", config, "--plugin-dir", folder, "--name=http-nodes2"),
        *("--namespace=http-nodes2", f"--image=registry.example/stowplan:{version('stowplan')}"),
    )
    assert again.returncode == 0, again.stderr
    assert manifests == list(yaml.safe_load_all(again.stdout))
    readme = (here.path / folder / "README.md").read_text()
    assert all(f"| `{name}` |" in readme for name in names if name != "README.md")
    assert "$" not in readme
    if kind:
        printed = here.stowplan("crd", "--plugin-dir", folder, "HTTPNodes2").stdout
        definition = yaml.safe_load(printed)
        assert yaml.safe_load((here.path / folder / "crd.yaml").read_text()) == definition
        assert definition in manifests


def test_common_mistakes_are_all_reported(here):
    text = (Path(__file__).parents[1] / "framework" / "plugin_mistakes.py").read_text()
    here.write("mistakes.py", text)
    checked = here.stowplan("plugin", "check", "mistakes.py")
    places = re.findall(r"^mistakes\.py:(\d+): ", checked.stdout + checked.stderr, re.MULTILINE)
    expected = [str(n) for n, line in enumerate(text.splitlines(), 1) if line.endswith("# mistake")]
    assert (checked.returncode, len(expected), places) == (1, 10, expected)


def test_a_readme_that_is_there_is_kept(here):
    here.write("README.md", "mine")
    run = here.stowplan_process("plugin", "new", "GreenNodes")
    assert (run.returncode, "README.md" in run.stdout) == (0, False)
    assert (here.path / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("node-use", "such as NodeUse"),
        ("Ünï", "such as Uni"),
        ("GreenNodes", "is the plugin's name, too"),
        ("Pod", "choose another name"),
        ("Literal", "choose another name"),
        ("None", "choose another name"),
    ],
)
def test_a_kind_that_will_not_do_is_rejected(here, kind, words):
    run = here.stowplan("plugin", "new", "GreenNodes", "--kind", kind)
    assert (run.returncode, words in run.stderr) == (1, True)
    assert list(here.path.iterdir()) == []


def test_a_new_plugin_never_writes_over_a_file(here):
    here.write("scheduler.yaml", "mine")
    run = here.stowplan_process("plugin", "new", "GreenNodes")
    assert (run.returncode, run.stdout) == (1, "")
    assert "scheduler.yaml: already exists" in run.stderr
    assert [path.name for path in here.path.iterdir()] == ["scheduler.yaml"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("green-nodes", "such as GreenNodes", id="kebab"),
        pytest.param("greenNodes", "such as GreenNodes", id="small first letter"),
        pytest.param("../Up", "such as Up", id="a path"),
        pytest.param("Ünicode", "such as Unicode", id="no plain letter"),
        pytest.param("NodeAffinity", "is the name of an installed plugin", id="installed"),
        pytest.param("Plugin", "choose another name", id="the class itself"),
        pytest.param("Queue", "a module queue already exists", id="a module of Python"),
        pytest.param("Yaml", "a module yaml already exists", id="an installed module"),
    ],
)
def test_a_name_that_will_not_do_is_refused(here, name, words):
    run = here.stowplan("plugin", "new", name)
    assert (run.returncode, run.stdout) == (1, "")
    assert words in run.stderr
    assert list(here.path.iterdir()) == []


def test_list_says_what_is_there(here):
    here.write("mine/sized.py", WITH_ARGS)
    run = here.stowplan("plugin", "list", "--plugin-dir", "mine")
    blocks = {block.split()[0]: block.splitlines() for block in run.stdout.split("\n\n")}
    assert blocks["Sized"] == [
        "Sized  mine/sized.py:7",
        "  points: filter",
        "  argument maxSize: int = 3",
        "  argument names: tuple[str, ...] = []",
    ]
    assert blocks["NodeName"][0] == "NodeName  stowplan.plugins.default.node_name:NodeName"
    assert "  runs a background task" in blocks["DynamicResources"]


def test_list_of_a_configuration_has_what_it_uses(here):
    here.write("mod/listed.py", GOOD.format("Listed"))
    enabled = [{"name": "listed:Listed"}]
    multi_point = {"enabled": enabled, "disabled": [{"name": "NodeName"}]}
    here.write("config.yaml", CONFIG | {"profiles": [{"plugins": {"multiPoint": multi_point}}]})
    run = here.stowplan_process("plugin", "list", "--config", "config.yaml", "-o", "json", python_path="mod")
    found = {line["name"]: line for line in map(json.loads, run.stdout.splitlines())}
    assert "NodeName" not in found
    assert found["listed:Listed"] == {
        "name": "listed:Listed",
        "origin": "mod/listed.py:3",
        "entryPoint": "",
        "says": "",
        "points": ["score"],
        "arguments": [],
        "watches": [],
        "hasBackgroundWork": False,
    }
    budget = found["DefaultPreemption"]["arguments"][0]
    assert budget == {"name": "minCandidateNodesPercentage", "type": "int", "required": False, "default": 10}


def test_check_finds_all_faults_of_a_folder(here):
    here.write("bad/a_syntax.py", "x = 1\ndef f(:\n")
    here.write("bad/b_missing.py", "import json\nimport no_such_dependency\n")
    here.write(
        "bad/c_wrong.py",
        "from stowplan import Plugin\nclass Wrong(Plugin):\n"
        "    def filter_node(self, state, pod, node): ...\n"
        "    def score(self, pod, node): return 1\n",
    )
    here.write("bad/d_first.py", GOOD.format("Same"))
    here.write("bad/e_second.py", "import d_first\n" + GOOD.format("Same"))
    here.write("bad/f_installed.py", GOOD.format("NodeName"))
    here.write("bad/g_twice.py", GOOD.format("Twice") + GOOD.format("Twice"))
    here.write("bad/h_none.py", "x = 1\n")
    here.write("bad/queue.py", GOOD.format("Queue"))
    here.write("bad/not-a-name.py", GOOD.format("Never"))
    here.write("bad/test_a.py", "import no_such_test_dependency\n")
    run = here.stowplan("plugin", "check", "--plugin-dir", "bad")
    assert (run.returncode, run.stderr) == (1, "")
    assert here.stowplan("plugin", "check", "bad").stdout == run.stdout
    found = [line.split(": ", 1) for line in run.stdout.splitlines()]
    assert [where for where, _ in found] == [
        "bad/a_syntax.py:2",
        "bad/b_missing.py:2",
        "bad/c_wrong.py:3",
        "bad/c_wrong.py:4",
        "bad/e_second.py:4",
        "bad/f_installed.py:3",
        "bad/g_twice.py:7",
        "bad/h_none.py",
        "bad/not-a-name.py",
        "bad/queue.py",
    ]
    said = [text for _, text in found]
    assert said[0].startswith("SyntaxError: invalid syntax")
    assert "No module named 'no_such_dependency'; install it" in said[1]
    assert "Wrong.filter_node is not an extension point; did you mean filter_nodes?" in said[2]
    assert "Same is also the name of a plugin in bad/d_first.py" in said[4]
    assert "NodeName is also the name of an installed plugin" in said[5]
    assert "Twice is already defined in line 3" in said[6]
    assert "defines no class derived from stowplan.Plugin" in said[7]


@pytest.mark.parametrize(
    ("profile", "line", "words"),
    [
        pytest.param(
            {"plugins": {"multiPoint": {"enabled": [{"name": "Sizes"}]}}},
            7,
            'profiles[0].plugins.multiPoint.enabled[0].name: "Sizes" does not exist; did you mean "Sized"?',
            id="a misspelt plugin",
        ),
        pytest.param(
            {"pluginConfig": [{"name": "Sized", "args": {"maxsize": 1}}]},
            5,
            'unknown field "maxsize" (Sized takes maxSize, names)',
            id="an unknown argument",
        ),
        pytest.param(
            {"pluginConfig": [{"name": "Sized", "args": {"maxSize": "big"}}]},
            5,
            "expected int, got str",
            id="an argument of the wrong type",
        ),
        pytest.param(
            {"pluginConfig": [{"name": "Plain", "args": {"a": 1}}]},
            5,
            "profiles[0].pluginConfig[0].args: Plain takes no arguments",
            id="arguments for a plugin without",
        ),
        pytest.param(
            {"plugins": {"multiPoint": {"enabled": [{"name": "Plain"}, {"name": "Named"}]}}},
            8,
            'initializing plugin "Named": args.label: Required value',
            id="a required argument that is not given",
        ),
        pytest.param({"plugin": {}}, 4, 'unknown field "profiles[0].plugin"', id="an unknown field"),
        pytest.param(
            {"plugins": {"bind": {"enabled": [{"name": "Sized"}]}}},
            0,
            'plugin "Sized" does not extend BindPlugin plugin',
            id="a point that it does not have",
        ),
    ],
)
def test_check_finds_faults_of_a_configuration_with_their_lines(here, profile, line, words):
    here.write("mine/sized.py", WITH_ARGS)
    here.write("mine/plain_one.py", GOOD.format("Plain"))
    here.write(
        "mine/named.py", WITH_ARGS.replace("Sized", "Named").replace("max_size: int = 3", "label: str")
    )
    here.write("config.yaml", CONFIG | {"profiles": [profile]})
    run = here.stowplan("plugin", "check", "--plugin-dir", "mine", "--config", "config.yaml")
    (said,) = run.stdout.splitlines()
    assert run.returncode == 1
    assert said.startswith(f"config.yaml:{line}: " if line else "config.yaml: ")
    assert words in said


def test_check_takes_names_and_modules(here):
    here.write("mod/checked_module.py", "from stowplan import Plugin\nclass A(Plugin): ...\n")
    here.write("mod/broken_module.py", "import json\n1 / 0\n")
    names = ["NodeName", "checked_module:A", "broken_module:B", "no_module:C", "os:path", "Nope"]
    run = here.stowplan_process("plugin", "check", *names, python_path="mod")
    assert run.returncode == 1
    module, broken, missing, other, unknown = run.stdout.splitlines()
    assert module.startswith("mod/checked_module.py:2: A takes part in no extension point")
    assert broken == "mod/broken_module.py:2: ZeroDivisionError: division by zero"
    assert missing == """no_module:C: "no_module:C" cannot be imported: No module named 'no_module'"""
    assert other == 'os:path: "os:path" is not a class derived from stowplan.Plugin'
    assert unknown == 'Nope: "Nope" does not exist'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a: b: c", "config.yaml:1: is not YAML", id="no YAML"),
        pytest.param("- 1", "config.yaml: is not a scheduler configuration", id="no object"),
    ],
)
def test_check_names_the_file_that_is_no_configuration(here, text, words):
    here.write("config.yaml", text)
    run = here.stowplan("plugin", "check", "--config", "config.yaml")
    assert run.returncode == 1
    assert words in run.stdout


def test_check_wants_something_to_check(here):
    run = here.stowplan("plugin", "check")
    assert run.returncode == 2
    assert "missing PLUGIN, --plugin-dir or --config" in run.stderr


def test_a_file_that_cannot_be_loaded_is_the_only_fault(here):
    here.write("mine/tier.py", "from stowplan import Plugin\nclass Tier(Plugin)\n")
    enabled = {"multiPoint": {"enabled": [{"name": "Tier"}]}}
    args = [{"name": "Tier", "args": {"label": "x"}}]
    here.write("config.yaml", CONFIG | {"profiles": [{"plugins": enabled, "pluginConfig": args}]})
    run = here.stowplan("plugin", "check", "--plugin-dir", "mine", "--config", "config.yaml")
    assert (run.returncode, run.stdout) == (1, "mine/tier.py:2: SyntaxError: expected ':'\n")


LOGGING = """\
import logging
from stowplan import Plugin

class Tier(Plugin):
    def filter(self, state, pod, node):
        logging.getLogger(__name__).info("looking at %s", node.name)
        self.handle.log.warning("asked about %s", pod.name)
"""
OBJECTS = """\
apiVersion: v1
kind: Node
metadata: {name: a}
status: {allocatable: {cpu: "4", memory: 8Gi, pods: "110"}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: c, image: x}]}
"""


def test_explain_shows_what_a_plugin_logs_as_the_scheduler_does(here):
    here.write("mine/tier.py", LOGGING)
    here.write("objects.yaml", OBJECTS)
    here.write(
        "config.yaml", CONFIG | {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Tier"}]}}}]}
    )
    run = here.stowplan_process(
        "explain", "--plugin-dir", "mine", "--config", "config.yaml", "-f", "objects.yaml", "web"
    )
    assert run.stdout.startswith("Pod default/web goes to a ")
    info, warning = run.stderr.splitlines()
    assert re.fullmatch(r'I\d{4} .* tier\.py:6\] "looking at a" plugin="Tier"', info)
    assert re.fullmatch(r'W\d{4} .* tier\.py:7\] "asked about web" plugin="Tier"', warning)
