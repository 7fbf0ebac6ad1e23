"""The properties of the kit: they hold for good policies and find out bad ones."""

import subprocess
import sys

import pytest

from stowplan import Plugin, Reject
from stowplan.testing import a_cluster
from stowplan.testing.properties import never_fails, never_overcommits


class Careful(Plugin):
    """Takes a label for a score only where it is one."""

    def score(self, state, pod, node):
        value = node.labels.get("rank", "")
        return min(int(value), 100) if value.isdecimal() else 0


class Careless(Plugin):
    def score(self, state, pod, node):
        return int(node.labels.get("rank", "0"))


class TooHigh(Plugin):
    def score(self, state, pod, node):
        return len(node.annotations.get("rank", "")) * 2


class Blind(Plugin):
    """Refuses nobody."""

    def filter_nodes(self, state, pod, nodes):
        yield Reject(nodes.pod_count < 0, "never")


@pytest.mark.parametrize("holds", [never_overcommits, never_fails])
def test_a_good_policy_holds(holds):
    holds(lambda: a_cluster(Careful), labels=["rank"], examples=25)


def test_a_policy_that_overcommits_is_found_out():
    with pytest.raises(AssertionError, match="and its pods have"):
        never_overcommits(lambda: a_cluster(Blind).without("NodeResourcesFit"), examples=50)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        pytest.param(Careless, "ValueError: invalid literal for int", id="a label that is no number"),
        pytest.param(TooHigh, "returns an invalid score 126", id="a score past 100"),
    ],
)
def test_a_policy_that_fails_is_found_out(policy, words):
    with pytest.raises(AssertionError, match=words):
        never_fails(lambda: a_cluster(policy), labels=["rank"], examples=200)


def test_only_the_properties_need_hypothesis():
    without = "import sys; sys.modules['hypothesis'] = None; import stowplan.testing"
    subprocess.run([sys.executable, "-c", without], check=True)
