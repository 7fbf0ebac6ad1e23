"""A whole question: what is added, how much of it, and what of it is told."""

from __future__ import annotations

import io
import json

import pytest

from make import REGISTRY
from stowplan.api.manifests import STDIN, read, read_into
from stowplan.errors import InputError
from stowplan.simulator import WhatIf
from stowplan.simulator.question import Question, Several, ask


def node(name):
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def workload(kind, group="apps/v1", **spec):
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c"}]}}
    whole = {"selector": {"matchLabels": {"app": "w"}}, "template": template, **spec}
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "w"}, "spec": whole}


def text_of(*objects):
    return io.BytesIO(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode())


def asked(*added, question=None, nodes=("n1", "n2"), check=None, **settings):
    known = read([STDIN], text_of(*map(node, nodes)))
    what_if = WhatIf(known.objects.values(), registry=REGISTRY, **({"check": check} if check else {}))

    def read_more(manifests):
        if added:
            read_into(manifests, [STDIN], text_of(*added))

    return ask(what_if, question or Question(), known, read_more, **settings)


@pytest.mark.parametrize(
    ("added", "field"),
    [
        pytest.param(workload("Deployment", replicas=-4), "replicas: -4", id="replicas"),
        pytest.param(workload("StatefulSet", replicas=-1), "replicas: -1", id="of a set"),
        pytest.param(workload("Job", "batch/v1", parallelism=-2), "parallelism: -2", id="parallelism"),
        pytest.param(workload("Job", "batch/v1", completions=-3), "completions: -3", id="completions"),
    ],
)
def test_less_than_none_is_refused(added, field):
    with pytest.raises(InputError) as error:
        asked(added)
    assert str(error.value) == f"{added['kind']} default/w: spec.{field} is negative; must be 0 or greater"


def test_a_number_that_is_none_names_its_workload():
    with pytest.raises(InputError, match=r"^Deployment default/w: spec\.replicas: "):
        asked(workload("Deployment", replicas="many"))


@pytest.mark.parametrize(
    ("added", "question", "who"),
    [
        pytest.param([workload("Deployment", replicas=4)], Question(), "Deployment default/w", id="one"),
        pytest.param([workload("DaemonSet")], Question(), "DaemonSet default/w", id="one for each node"),
        pytest.param(
            [workload("Deployment", replicas=2)],
            Question(more=(Several("deployment/w", 2),)),
            "deployment/w",
            id="together",
        ),
        pytest.param([], Question(more_nodes=(Several("n1", 4),)), "n1", id="nodes"),
    ],
)
def test_there_is_a_limit_to_what_is_added(added, question, who):
    with pytest.raises(InputError, match="not more than 3 can be added at once") as error:
        asked(*added, question=question, nodes=("n1", "n2", "n3", "n4"), max_added=3)
    assert str(error.value).startswith(f"{who}: ")


def test_the_limit_itself_is_allowed():
    assert len(asked(workload("Deployment", replicas=3), max_added=3).fates) == 3


def test_what_is_not_looked_at_is_told():
    backup = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "backup"}}
    thing = {"apiVersion": "acme.example/v1", "kind": "Thing", "metadata": {"name": "t"}}
    outcome = asked(backup, thing, thing, workload("Deployment"))
    assert outcome.changes == ("1 CronJob and 2 Thing not looked at", "1 pod added")


@pytest.mark.parametrize("way", ["lose", "drain"])
def test_a_node_that_is_named_twice_goes_once(way):
    outcome = asked(question=Question(**{way: ("n1", "n1")}))
    assert outcome.changes == (f"n1 {'lost' if way == 'lose' else 'drained'}",)


@pytest.mark.parametrize(
    ("added", "question"),
    [
        pytest.param([workload("Deployment", replicas=5)], Question(), id="pods"),
        pytest.param([workload("DaemonSet")] * 5, Question(), id="daemons"),
        pytest.param([], Question(more_nodes=(Several("n1", 5),)), id="nodes"),
    ],
)
def test_a_question_can_be_ended_while_it_is_worked_out(added, question):
    times = []

    def check():
        times.append(1)
        if len(times) == 2:
            raise InputError("enough")

    with pytest.raises(InputError, match="enough"):
        asked(*added, question=question, check=check)
