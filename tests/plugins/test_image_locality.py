"""ImageLocality: nodes that already have the images."""

from __future__ import annotations

import pytest
from alone import ask, scores

from make import make_node, make_pod

MIB = 2**20


def cluster(**images):
    """Ten nodes; an image is given as (MiB, how many of the first nodes have it)."""
    named = {name.replace("_", ":"): found for name, found in images.items()}
    return [
        make_node(
            f"n{number}", images={name: size * MIB for name, (size, count) in named.items() if number < count}
        )
        for number in range(10)
    ]


def running(*images, init=(), volumes=()):
    return make_pod(
        containers=[{"name": f"c{number}", "image": image} for number, image in enumerate(images)],
        initContainers=[{"name": f"i{number}", "image": image} for number, image in enumerate(init)],
        volumes=[{"name": f"v{number}", "image": {"reference": each}} for number, each in enumerate(volumes)],
    )


@pytest.mark.parametrize(
    ("pod", "first", "last"),
    [
        pytest.param(running("app:v1"), 18, 0, id="500 MiB on four of ten"),
        pytest.param(running("app:v1", "base:v1"), 10, 0, id="and 30 MiB on all, of two containers"),
        pytest.param(running("app:v1", "app:v1"), 19, 0, id="counted once for each container"),
        pytest.param(running("base:v1"), 0, 0, id="30 MiB on all: hardly more than nothing"),
        pytest.param(running("base:v1", init=["app:v1"]), 10, 0, id="init containers count"),
        pytest.param(
            running("base:v1", volumes=["app:v1"]), 21, 0, id="volumes add, without raising the bar"
        ),
        pytest.param(running("huge:v1"), 100, 0, id="never more than 100"),
        pytest.param(running("elsewhere"), 0, 0, id="an image nobody has"),
    ],
)
def test_images_at_hand(pod, first, last):
    found = scores(ask("ImageLocality", pod, *cluster(app_v1=(500, 4), base_v1=(30, 10), huge_v1=(9000, 4))))
    assert (found["n0"], found["n9"]) == (first, last)


@pytest.mark.parametrize(
    ("wanted", "reported", "same"),
    [
        pytest.param("app", "app:latest", True, id="the latest is meant"),
        pytest.param("app", "app", False, id="so a bare name is never found"),
        pytest.param("app:v1", "app:v1", True, id="a tag"),
        pytest.param("app@sha256:0123", "app@sha256:0123", True, id="a digest"),
        pytest.param("host:5000/app", "host:5000/app:latest", True, id="a port is no tag"),
        pytest.param("host:5000/app:v1", "host:5000/app:v1", True, id="a port and a tag"),
        pytest.param("docker.io/library/app:v1", "app:v1", False, id="no registry is filled in"),
    ],
)
def test_names(wanted, reported, same):
    nodes = [make_node("has", images={reported: 1000 * MIB}), make_node("lacks")]
    found = scores(ask("ImageLocality", running(wanted), *nodes))
    assert found == {"has": 48 if same else 0, "lacks": 0}


def test_the_first_node_to_report_an_image_says_how_large_it_is():
    nodes = [make_node("first", images={"app:v1": 1000 * MIB}), make_node("second", images={"app:v1": 1})]
    assert scores(ask("ImageLocality", running("app:v1"), *nodes)) == {"first": 100, "second": 100}


def test_every_name_of_an_image_counts():
    node = make_node("n", images={"app:v1": 1000 * MIB, "mirror/app:v1": 1000 * MIB})
    found = scores(ask("ImageLocality", running("mirror/app:v1"), node, make_node("other")))
    assert found == {"n": 48, "other": 0}
