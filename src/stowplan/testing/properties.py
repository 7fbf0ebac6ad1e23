"""Properties that must hold for a policy on every cluster, checked on clusters that hypothesis generates.

    def test_properties():
        never_overcommits(lambda: a_cluster(ScoreByLabel))
        never_fails(lambda: a_cluster(ScoreByLabel), labels=["score-by-label"])

Each is called with a function that makes an empty cluster with the policy in it. A case that breaks the
property is made as small as possible before it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stowplan.cluster import Cluster
from stowplan.testing.cluster import PolicyCluster

Words = dict[str, Any]
ODD_VALUES = ("", "0", "1", "10", "-5", "3.7", "1e9", "NaN", "inf", "９", "true", "None", "x" * 63, "9" * 40)
"""Values that people write by mistake for a number, or for nothing."""
EXAMPLES = 50


def nodes(labels: Iterable[str] = ()) -> st.SearchStrategy[Words]:
    """Words for nodes with little room, so that pods soon fight over it."""
    return st.fixed_dictionaries(
        {
            "cpu": st.integers(1, 4).map(str),
            "memory": st.integers(1, 4).map("{}Gi".format),
            "pods": st.integers(1, 4).map(str),
            "labels": _odd(labels),
            "annotations": _odd(labels),
            "taints": st.sampled_from([(), ("busy:PreferNoSchedule",), ("dedicated=a:NoSchedule",)]),
        }
    )


def pods(labels: Iterable[str] = ()) -> st.SearchStrategy[Words]:
    """Words for pods that ask for something, or nothing."""
    return st.fixed_dictionaries(
        {
            "cpu": st.sampled_from(["", "100m", "1", "2"]),
            "memory": st.sampled_from(["", "100Mi", "1Gi", "2Gi"]),
            "labels": _odd(labels),
            "annotations": _odd(labels),
            "tolerations": st.sampled_from([(), ("dedicated",), ("*",)]),
            "priority": st.integers(0, 2),
        }
    )


def never_overcommits(
    make: Callable[[], PolicyCluster], *, labels: Iterable[str] = (), examples: int = EXAMPLES
) -> None:
    """Check that no node gets more than its capacity, whatever pods are created."""

    def check(cluster: PolicyCluster, pending: list[Words]) -> None:
        for number, words in enumerate(pending):
            outcome = cluster.place(f"pod-{number}", **words)
            for fault in overcommitted(cluster.cluster):
                raise AssertionError(f"{fault}\n\n{outcome.explanation}")

    _for_all(make, check, labels, examples)


def never_fails(
    make: Callable[[], PolicyCluster], *, labels: Iterable[str] = (), examples: int = EXAMPLES
) -> None:
    """No decision ends in an error, whatever the values of these labels and annotations of nodes and pods.

    An error is also a score outside 0 to 100, and an answer of the wrong type.
    """

    def check(cluster: PolicyCluster, pending: list[Words]) -> None:
        for number, words in enumerate(pending):
            outcome = cluster.place(f"pod-{number}", **words)
            assert outcome.decision.error is None, outcome.explanation

    _for_all(make, check, labels, examples)


def overcommitted(cluster: Cluster) -> Iterable[str]:
    """Says of each node that was given more than it has what, and how much."""
    table = cluster.nodes
    for row, name in enumerate(table.names):
        taken = {resource: int(table.requested[resource][row]) for resource in table.requested}
        taken["pods"] = int(table.pod_count[row])
        for resource, amount in taken.items():
            room = int(table.allocatable[resource][row])
            if amount > room:
                yield f"node {name} has {room} of {resource}, and its pods have {amount}"


def _for_all(
    make: Callable[[], PolicyCluster],
    check: Callable[[PolicyCluster, list[Words]], None],
    labels: Iterable[str],
    examples: int,
) -> None:
    keys = tuple(labels)

    # The phase `explain` takes ten times as long as all others to say less than the decision itself does.
    @settings(max_examples=examples, deadline=None, database=None, phases=set(Phase) - {Phase.explain})
    # two nodes at least: a lone one is not scored
    @given(st.lists(nodes(keys), min_size=2, max_size=5), st.lists(pods(keys), min_size=1, max_size=8))
    def for_all(described: list[Words], pending: list[Words]) -> None:
        cluster = make()
        for number, words in enumerate(described):
            cluster.node(f"node-{number}", **words)
        check(cluster, pending)

    for_all()


def _odd(keys: Iterable[str]) -> st.SearchStrategy[dict[str, str]]:
    given_or_not = st.sampled_from([None, *ODD_VALUES])
    drawn = st.fixed_dictionaries(dict.fromkeys(keys, given_or_not))
    return drawn.map(lambda found: {key: value for key, value in found.items() if value is not None})
