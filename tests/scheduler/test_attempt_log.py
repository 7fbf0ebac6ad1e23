"""What a running scheduler writes into its log about pods, by verbosity."""

from __future__ import annotations

import io
import logging
import re

import pytest

from scheduler_staging import node, pod, staged
from stowplan import Plugin, Status, log


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
QUEUED = (
    '"Pod moved to an internal scheduling queue" pod="default/p" event="UnschedulablePodAdd" queue="active"'
)
ATTEMPT = '"Attempting to schedule pod" pod="default/p"'
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
        pytest.param(5, [QUEUED, ATTEMPT, *BY_CUSTOM_PLUGINS, BOUND], id="what custom plugins said"),
    ],
)
async def test_a_bound_pod(written, verbosity, expected):
    async with staged(**PICKY) as stage:
        log.configure(verbosity=verbosity, stream=written)
        stage.see(node("n1"), node("n2"), node("n3"), pod("p"))
        await stage.settle()
        assert said(written) == expected


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
