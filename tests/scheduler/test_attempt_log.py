"""What a running scheduler writes into its log about pods, by verbosity."""

from __future__ import annotations

import io
import logging
import re

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin, Status, log, scale_to_max


class Picky(Plugin):
    def filter(self, state, pod, node):
        return Status.unschedulable("not to my taste") if node.name == "n3" else None

    def score(self, state, pod, node):
        return {"n1": 40, "n2": 7}[node.name]


PICKY = {
    "config": {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Picky", "weight": 2}]}}}]},
    "plugins": {"Picky": Picky},
}
BOUND = '"Successfully bound pod to node" pod="default/p" node="n1" evaluatedNodes=3 feasibleNodes=2'
NODES = [f'"Add event for node" node="{name}"' for name in ("n1", "n2", "n3")]
ADDED = '"Add event for unscheduled pod" pod="default/p"'
QUEUED = (
    '"Pod moved to an internal scheduling queue" pod="default/p" event="UnschedulablePodAdd" queue="Active"'
)
POPPED = '"About to try and schedule pod" pod="default/p"'
ATTEMPT = '"Attempting to schedule pod" pod="default/p"'
BIND = '"Attempting to bind pod to node" logger="Bind.DefaultBinder" pod="default/p" node="n1"'
BY_CUSTOM_PLUGINS = [
    '"Plugin rejected node for pod" pod="default/p" plugin="Picky" node="n3" status="not to my taste"',
    '"Plugin scored node for pod" pod="default/p" plugin="Picky" node="n1" score=80',
    '"Plugin scored node for pod" pod="default/p" plugin="Picky" node="n2" score=14',
]


@pytest.fixture
def written():
    root, ours = logging.root, logging.getLogger("stowplan")
    before = (root.handlers[:], root.level, ours.level)
    yield io.StringIO()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def said(stream: io.StringIO) -> list[str]:
    """The lines without their headers."""
    return re.findall(r"^[IWE]\d{4} .*?\] (.*)$", stream.getvalue(), re.MULTILINE)


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        pytest.param(0, [BOUND], id="one line a pod"),
        pytest.param(2, [BOUND], id="no more"),
        pytest.param(3, [*NODES, ADDED, ATTEMPT, BIND, BOUND], id="events and steps"),
        pytest.param(4, [*NODES, ADDED, POPPED, ATTEMPT, BIND, BOUND], id="pods taken from the queue"),
        pytest.param(
            5,
            [*NODES, ADDED, QUEUED, POPPED, ATTEMPT, *BY_CUSTOM_PLUGINS, BIND, BOUND],
            id="what custom plugins said",
        ),
    ],
)
async def test_a_bound_pod(written, verbosity, expected):
    async with staged(**PICKY) as stage:
        log.configure(verbosity=verbosity, stream=written)
        stage.see(node("n1"), node("n2"), node("n3"), pod("p"))
        await stage.settle()
        assert said(written) == expected


async def test_events_of_nodes_and_pods_are_logged_as_kube_scheduler_logs_them(written):
    """What kube-scheduler 1.36.4 writes with `-v=4` for these changes."""
    waiting, large, foreign = pod("p"), pod("large", cpu="64"), pod("foreign", schedulerName="other")
    placed = {**waiting, "spec": {**waiting["spec"], "nodeName": "n1"}}
    done = {**placed, "status": {"phase": "Succeeded"}}
    async with staged() as stage:
        stage.is_leading = False
        log.configure(verbosity=4, stream=written)
        stage.see(node("n1"), foreign, waiting)
        stage.change(waiting, placed)
        stage.change(placed, placed)
        stage.change(placed, done)
        stage.change(done, None)
        stage.see(large)
        stage.change(large, large)
        stage.change(large, None)
        stage.change(foreign, None)
        stage.change(node("n1"), node("n1", cpu="3"))
        stage.change(node("n1"), None)
    assert [line for line in said(written) if " event for " in line] == [
        '"Add event for node" node="n1"',
        '"Add event for unscheduled pod" pod="default/p"',
        '"Delete event for unscheduled pod" pod="default/p"',
        '"Add event for scheduled pod" pod="default/p"',
        '"Update event for scheduled pod" pod="default/p"',
        '"Delete event for scheduled pod" pod="default/p"',
        '"Add event for unscheduled pod" pod="default/large"',
        '"Update event for unscheduled pod" pod="default/large"',
        '"Delete event for unscheduled pod" pod="default/large"',
        '"Update event for node" node="n1"',
        '"Delete event for node" node="n1"',
    ]


class Counting(Plugin):
    def score(self, state, pod, node):
        return {"n1": 400, "n2": 7}[node.name]

    def normalize_score(self, state, pod, scores):
        return scale_to_max(scores)


@pytest.mark.parametrize(("verbosity", "raw"), [(5, []), (6, [("n1", "400"), ("n2", "7")])])
async def test_at_six_raw_scores_and_arguments(written, verbosity, raw):
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Counting"}]}}}]}
    log.configure(verbosity=verbosity, stream=written)
    async with staged(config, {"Counting": Counting}) as stage:
        stage.see(node("n1"), node("n2"), pod("p"))
        await stage.settle()
        text = "\n".join(said(written))
    found = r'"Plugin returned raw score for node" pod="default/p" plugin="Counting" node="(.*)" score=(.*)'
    assert re.findall(found, text) == raw
    assert re.findall('scored node for pod" .* plugin="Counting" node="(.*)" score=(.*)', text) == [
        ("n1", "100"),
        ("n2", "1"),
    ]
    arguments = '"Plugin arguments" profile="default-scheduler" plugin="InterPodAffinity" args={'
    assert (arguments in text) == (verbosity == 6)


async def test_at_ten_all_plugins_and_totals(written):
    async with staged(**PICKY) as stage:
        log.configure(verbosity=10, stream=written)
        stage.see(node("n1"), node("n2"), node("n3", cpu="500m"), pod("p"))
        await stage.settle()
        lines = said(written)
        refused = '"Plugin rejected node for pod" pod="default/p" plugin="NodeResourcesFit" node="n3"'
        assert f'{refused} status="Insufficient cpu"' in lines
        assert any('plugin="TaintToleration" node="n2" score=300' in line for line in lines)
        scores = {
            name: sum(
                int(score) for score in re.findall(rf'scored .* node="{name}" score=(\d+)', "\n".join(lines))
            )
            for name in ("n1", "n2")
        }
        final = '"Calculated node\'s final score for pod" pod="default/p"'
        for name, total in scores.items():
            assert f'{final} node="{name}" score={total}' in lines


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(
            [node("n1", cpu="1")],
            '"Unable to schedule pod; no fit; waiting" pod="default/p" err="0/1 nodes are available: '
            "1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: "
            '1 Preemption is not helpful for scheduling."',
            id="no fit",
        ),
        pytest.param(
            [],
            '"Unable to schedule pod; no nodes are registered to the cluster; waiting" pod="default/p"',
            id="no nodes",
        ),
    ],
)
async def test_a_pod_without_a_node(written, nodes, expected):
    async with staged() as stage:
        log.configure(stream=written)
        stage.see(*nodes, pod("p", cpu="2"))
        await stage.settle()
        assert said(written) == [expected]
