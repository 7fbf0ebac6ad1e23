"""How simulated containers behave."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.kubelet.behaviour import Behaviour, decode_pod, full_name, images_of, read_script, script_of


def pod(annotations=None, **spec):
    whole = {"metadata": {"name": "p", "annotations": annotations or {}}, "spec": spec}
    return decode_pod(msgspec.json.encode(whole))


@pytest.mark.parametrize(
    ("behaviour", "asked", "seconds"),
    [
        pytest.param(Behaviour(), pod(), None, id="a server runs on"),
        pytest.param(Behaviour(), pod(restartPolicy="Never"), 1.0, id="a job ends"),
        pytest.param(Behaviour(run_seconds=7), pod(restartPolicy="Never"), 7.0, id="after a set time"),
        pytest.param(
            Behaviour(run_seconds=7), pod({"kubelet.stowplan/run-seconds": "3"}), 3.0, id="its own time"
        ),
        pytest.param(Behaviour(), pod({"kubelet.stowplan/run-seconds": "soon"}), None, id="no number"),
        pytest.param(
            Behaviour(),
            pod(restartPolicy="Never", containers=[{"name": "c", "image": "registry.example/agnhost:2"}]),
            None,
            id="an image that is a server",
        ),
        pytest.param(
            Behaviour(),
            pod(restartPolicy="Never", containers=[{"name": "c", "image": "nginx", "command": ["true"]}]),
            0.0,
            id="an image that is a server, with another command",
        ),
    ],
)
def test_how_long_pods_run(behaviour, asked, seconds):
    assert behaviour.run_time(asked) == seconds


def test_pods_fail_at_the_set_rate():
    behaviour, draw = Behaviour(fail_rate=0.25), random.Random(1)
    codes = [behaviour.exit_code(pod(), draw) for _ in range(2000)]
    assert 400 < sum(codes) < 600
    assert behaviour.exit_code(pod({"kubelet.stowplan/exit-code": "3"}), draw) == 3


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("web", "docker.io/library/web:latest"),
        ("team/web:1", "docker.io/team/web:1"),
        ("registry.example.com/web", "registry.example.com/web:latest"),
        ("localhost:5000/web@sha256:00", "localhost:5000/web@sha256:00"),
    ],
)
def test_images_go_by_their_full_names(image, name):
    assert full_name(image) == name
    assert images_of(pod(containers=[{"name": "c", "image": image}, {"name": "d", "image": image}])) == [name]


def test_an_image_has_the_same_size_everywhere():
    assert Behaviour().image_size("web:1") == Behaviour().image_size("web:1") > 2**20
    assert Behaviour(image_bytes=5).image_size("web:1") == 5


@pytest.mark.parametrize(
    ("words", "script"),
    [
        pytest.param(("sleep", "5"), (5.0, 0, ""), id="sleep"),
        pytest.param(("/bin/sh", "-c", "echo hi; sleep 1m && exit 3"), (60.0, 3, "hi\n"), id="a list"),
        pytest.param(("sh", "-c", "false && echo never"), (0.0, 1, ""), id="a failure ends a list"),
        pytest.param(("sleep", "infinity"), (float("inf"), 0, ""), id="for ever"),
        pytest.param(
            ("sh", "-c", "trap exit TERM; while true; do echo hi; sleep 1; done"),
            (float("inf"), 0, "hi\n"),
            id="an endless loop",
        ),
        pytest.param(("sh", "-c", "env && sleep 9"), (9.0, 0, ""), id="output that is not known"),
        pytest.param(("sh", "-c", "exit $CODE"), None, id="variables are not known"),
        pytest.param(("nginx", "-g", "daemon off;"), None, id="a program"),
    ],
)
def test_simple_commands_are_understood(words, script):
    assert read_script(words) == script


def test_containers_do_what_their_commands_say():
    containers = [{"name": "main", "command": ["sh", "-c", "sleep 3; exit 7"]}]
    asked = pod(restartPolicy="Never", containers=containers)
    assert Behaviour().run_time(asked) == 3.0
    assert Behaviour().exit_codes(asked, random.Random(1)) == {"main": 7}
    annotated = pod({"kubelet.stowplan/exit-code.main": "9"}, containers=containers)
    assert Behaviour().exit_codes(annotated, random.Random(1)) == {"main": 9}


def test_a_pod_stops_within_its_grace_period():
    hook = {"preStop": {"sleep": {"seconds": 20}}}
    whole = {
        "metadata": {
            "name": "p",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 8,
        },
        "spec": {"containers": [{"name": "main", "lifecycle": hook}]},
    }
    assert Behaviour().stop_time(decode_pod(msgspec.json.encode(whole))) == 8.0


def test_usage_is_half_of_what_is_requested_or_as_annotated():
    containers = [{"name": "main", "resources": {"requests": {"cpu": "1", "memory": "64Mi"}}}]
    assert Behaviour().usage(pod(containers=containers)) == {"cpu": 500, "memory": 32 * 2**20}
    assert Behaviour().usage(pod({"kubelet.stowplan/cpu-usage": "1500m"}))["cpu"] == 1500


def test_images_that_cannot_be_pulled():
    behaviour = Behaviour(missing_images=("*:broken",))
    assert behaviour.start_error(pod(containers=[{"name": "main", "image": "web:1"}])) == ""
    said = behaviour.start_error(pod(containers=[{"name": "main", "image": "web:broken"}]))
    assert said == 'ImagePullBackOff: Back-off pulling image "web:broken"'


def test_arguments_without_a_command_are_run_as_busybox_would():
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "busybox", "args": ["echo", "hi"]}]}
    pod = decode_pod(msgspec.json.encode({"metadata": {"name": "p"}, "spec": spec}))
    script = script_of(pod.spec.containers[0])
    assert script is not None
    assert script.output == "hi\n"
