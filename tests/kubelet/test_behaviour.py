"""How simulated containers behave."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.kubelet.behaviour import Behaviour, decode_pod, full_name, images_of


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
