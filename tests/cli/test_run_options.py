"""`stowplan run` and `kube-scheduler` from the outside, up to where the scheduler starts."""

import json
import logging
import re
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from stowplan.cli.run import run
from stowplan.errors import InputError
from stowplan.scheduler.flags import FLAGS, GROUPS
from stowplan.scheduler.options import parse

V1 = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


@pytest.fixture(autouse=True)
def _logging_as_before():
    handlers, level, own = logging.root.handlers[:], logging.root.level, logging.getLogger("stowplan").level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)
    logging.getLogger("stowplan").setLevel(own)


def stowplan(*argv):
    return CliRunner().invoke(run, argv, prog_name="stowplan run")


def kube_scheduler(*argv):
    command = [sys.executable, "-c", "from stowplan.cli.run import kube_scheduler; kube_scheduler()", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_has_every_flag_in_its_group(flag):
    result = stowplan(flag)
    assert result.exit_code == 0
    found, title = {}, ""
    for line in result.stdout.splitlines():
        if heading := re.fullmatch(r"(.+) flags:", line):
            title = heading[1]
        elif name := re.match(r"  (?:-\w, |    )--([a-z0-9-]+)", line):
            found.setdefault(title, []).append(name[1])
    assert found == {name: sorted(flag.name for flag in group) for name, group in GROUPS.items()}
    assert max(map(len, result.stdout.splitlines())) <= 110


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        pytest.param("secure-port", "(default 10259)", id="a number"),
        pytest.param("leader-elect-retry-period", "(default 2s)", id="a duration"),
        pytest.param("leader-elect-resource-name", '(default "kube-scheduler")', id="a text"),
        pytest.param("authorization-always-allow-paths", "(default [/healthz,/readyz,/livez])", id="a list"),
        pytest.param("leader-elect", "(default true)", id="a switch"),
        pytest.param("vmodule", "Accepted without effect: -v applies to all files.", id="no effect"),
        pytest.param("port", "Accepted without effect: only HTTPS is served", id="an old flag"),
        pytest.param("kubeconfig", "In a --config file: clientConnection.kubeconfig.", id="a field instead"),
    ],
)
def test_help_tells_defaults_and_what_has_no_effect(flag, words):
    entries = re.split(r"\n(?=  (?:-\w, |    )--)", stowplan("--help").stdout)
    (entry,) = [entry for entry in entries if re.match(rf" +--{flag}\s", entry)]
    assert words in " ".join(entry.split())


def test_help_marks_everything_without_effect():
    marked = " ".join(stowplan("--help").stdout.split()).count("Accepted without effect")
    assert marked == sum(1 for flag in FLAGS.values() if flag.no_effect)


@pytest.mark.parametrize("flag", ["--version", "--version=raw"])
def test_version(flag):
    result = stowplan(flag)
    assert result.exit_code == 0
    assert re.fullmatch(r"Stowplan \S+, compatible with kube-scheduler v1\.36\.4\n", result.stdout)


def test_arguments_are_refused_by_the_name_of_the_program():
    found = stowplan("extra").exception
    assert isinstance(found, InputError)
    assert str(found) == '"stowplan run" does not take any arguments, got ["extra"]'
    result = kube_scheduler("extra")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == 'kube-scheduler: "kube-scheduler" does not take any arguments, got ["extra"]\n'


@pytest.fixture
def written(tmp_path):
    """Runs --write-config-to with some flags; the answer and what was written."""

    def write(*argv):
        path = tmp_path / "written.yaml"
        result = stowplan("--write-config-to", str(path), *argv)
        return result, path

    return write


def test_write_config_to_writes_every_default_sorted(written):
    result, path = written("--kubeconfig=/k", "--kube-api-qps=5000")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.endswith(f'] "Wrote configuration" file="{path}"\n')
    plain = yaml.safe_load(path.read_text())
    assert path.read_text() == yaml.safe_dump(plain, sort_keys=True)
    assert "qps: 5000\n" in path.read_text()
    assert {name: value for name, value in plain.items() if name != "profiles"} == {
        **V1,
        "clientConnection": {
            "acceptContentTypes": "",
            "burst": 100,
            "contentType": "application/vnd.kubernetes.protobuf",
            "kubeconfig": "/k",
            "qps": 5000,
        },
        "enableContentionProfiling": True,
        "enableProfiling": True,
        "leaderElection": {
            "leaderElect": True,
            "leaseDuration": "15s",
            "renewDeadline": "10s",
            "resourceLock": "leases",
            "resourceName": "kube-scheduler",
            "resourceNamespace": "kube-system",
            "retryPeriod": "2s",
        },
        "parallelism": 16,
        "percentageOfNodesToScore": 0,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 10,
    }
    (profile,) = plain["profiles"]
    assert set(profile) == {"schedulerName", "plugins", "pluginConfig"}
    assert [entry["name"] for entry in profile["pluginConfig"]] == [
        "DefaultPreemption",
        "DynamicResources",
        "InterPodAffinity",
        "NodeAffinity",
        "NodeResourcesBalancedAllocation",
        "NodeResourcesFit",
        "PodTopologySpread",
        "VolumeBinding",
    ]
    assert profile["plugins"]["multiPoint"]["enabled"][4] == {"name": "TaintToleration", "weight": 3}
    assert profile["plugins"]["filter"] == {}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({}, id="nothing"),
        pytest.param(
            {
                "percentageOfNodesToScore": 40,
                "profiles": [
                    {
                        "schedulerName": "a",
                        "percentageOfNodesToScore": 70,
                        "plugins": {
                            "multiPoint": {"disabled": [{"name": "ImageLocality"}]},
                            "score": {"enabled": [{"name": "NodeAffinity", "weight": 8}]},
                        },
                        "pluginConfig": [
                            {"name": "InterPodAffinity", "args": {"hardPodAffinityWeight": 9}},
                        ],
                    },
                    {"schedulerName": "b", "plugins": {"preScore": {"disabled": [{"name": "*"}]}}},
                ],
                "extenders": [{"urlPrefix": "http://e", "filterVerb": "f", "httpTimeout": "2s"}],
                "delayCacheUntilActive": True,
            },
            id="much",
        ),
    ],
)
def test_what_is_written_reads_back_as_the_same(tmp_path, written, document):
    given = tmp_path / "given.yaml"
    given.write_text(yaml.safe_dump({**V1, **document}))
    _, path = written("--config", str(given))
    first = path.read_text()
    again = parse(["--config", str(path)]).options.config
    assert again.extenders == parse(["--config", str(given)]).options.config.extenders
    assert again.delay_cache_until_active is document.get("delayCacheUntilActive", False)
    written("--config", str(path))
    assert path.read_text() == first


def test_warnings_are_log_lines(written):
    result, _ = written("--port=0")
    said = '"--port is a flag of older releases and has no effect: only HTTPS is served'
    assert (result.exit_code, result.stdout) == (0, "")
    assert re.match(rf"W\S+ \S+ +\d+ run\.py:\d+\] {re.escape(said)}", result.stderr)


def test_log_lines_can_be_json(written):
    result, _ = written("--port=0", "--logging-format=json")
    assert [json.loads(line)["msg"][:9] for line in result.stderr.splitlines()] == ["--port is", "Wrote con"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(
            ["--policy-configmap=p"],
            "--write-config-to: cannot read the Policy in ConfigMap kube-system/p",
            id="unread policy",
        ),
        pytest.param(
            ["--write-config-to=/nowhere/at/all"], "/nowhere/at/all: cannot be written: ", id="no directory"
        ),
    ],
)
def test_what_cannot_be_written_is_said(written, argv, message):
    result, path = written(*argv)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f'] "command failed" err="{message}' in result.stderr
    assert not path.exists()


def test_a_profile_that_cannot_be_built_is_not_written(tmp_path, written):
    given = tmp_path / "given.yaml"
    profiles = [{"plugins": {"score": {"enabled": [{"name": "Missing"}]}}}]
    given.write_text(yaml.safe_dump({**V1, "profiles": profiles}))
    result, path = written("--config", str(given))
    assert result.exit_code == 1
    assert 'ScorePlugin \\"Missing\\" does not exist' in result.stderr
    assert not path.exists()
