"""Nodes as columns: rows that move, labels, ports, images, and parts of the table to try things on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from make import make_node, make_pod
from stowplan.api.meta import NodeSelector, decode
from stowplan.api.selectors import Requirement, node_terms_of
from stowplan.cluster import Cluster
from stowplan.cluster.columns import distinct

HOST_PORT = {"name": "c", "ports": [{"hostPort": 80}]}
HERE = {"name": "c", "ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}]}
THERE = {"name": "c", "ports": [{"hostPort": 80, "hostIP": "10.0.0.2"}]}
DATAGRAMS = {"name": "c", "ports": [{"hostPort": 80, "protocol": "UDP"}]}
NAMED_A = {"key": "metadata.name", "operator": "In", "values": ["a"]}


def table(*objects):
    return Cluster.of(objects).nodes


def named(nodes, mask):
    return {nodes.names[row] for row in np.flatnonzero(mask)}


@given(arrays(np.int64, st.integers(0, 8), elements=st.integers(-2, 2)))
def test_distinct_values_are_those_of_numpy(values):
    assert distinct(values).tolist() == np.unique(values).tolist()


class TestRows:
    def test_the_last_row_fills_the_hole(self):
        cluster = Cluster.of(
            [
                *(
                    make_node(name, labels={"zone": f"z-{name}"}, images={f"image-{name}": 5})
                    for name in "abcd"
                ),
                *(
                    make_pod(f"on-{name}", node=name, requests={"cpu": "1"}, containers=[HERE])
                    for name in "bd"
                ),
            ]
        )
        nodes = cluster.nodes
        nodes.label("zone")
        cluster.remove_node("b")
        assert nodes.names == ["a", "d", "c"]
        assert nodes.row_of("d") == 1
        assert nodes.row_of("b") is None
        zone = nodes.label("zone")
        assert [zone.values[value] for value in zone.ids] == ["z-a", "z-d", "z-c"]
        assert nodes.pod_count.tolist() == [0, 1, 0]
        assert [pod.name for pod in nodes.pods_on(1)] == ["on-d"]
        assert named(nodes, nodes.has_image("image-d")) == {"d"}
        assert not nodes.has_image("image-b").any()
        assert named(nodes, nodes.ports_taken(make_pod(containers=[HERE]).shape.ports)) == {"d"}

    def test_a_node_that_comes_back_is_like_new(self):
        cluster = Cluster.of([make_node("a", labels={"zone": "x"}), make_node("b", labels={"zone": "y"})])
        nodes = cluster.nodes
        nodes.label("zone")
        cluster.remove_node("a")
        cluster.add_node(make_node("a"))
        assert nodes.names == ["b", "a"]
        assert named(nodes, nodes.label("zone").present) == {"b"}

    def test_columns_grow(self):
        nodes = table(*(make_node(f"n{number}", labels={"number": str(number)}) for number in range(100)))
        assert nodes.label("number").ids.tolist() == list(range(100))
        assert len(nodes.allocatable["cpu"]) == len(nodes.pod_count) == 100

    def test_columns_are_read_only(self):
        nodes = table(make_node("a"))
        for column in (nodes.pod_count, nodes.unschedulable, nodes.requested["cpu"], nodes.label("zone").ids):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 1

    def test_pods_leave_a_node_as_kube_scheduler_lets_them(self):
        cluster = Cluster.of([make_node("a"), *(make_pod(name, node="a") for name in "1234")])
        cluster.remove_pod(make_pod("2"))
        assert [pod.name for pod in cluster.nodes.pods_on(0)] == ["1", "4", "3"]

    def test_what_nobody_has_is_zero(self):
        nodes = table(make_node("a"), make_pod("p", node="a", requests={"example.com/gpu": "1"}))
        assert nodes.allocatable["example.com/gpu"].tolist() == [0]
        assert nodes.requested["example.com/gpu"].tolist() == [0]  # nor does it count who asks for it
        assert nodes.requested["unheard.of/thing"].tolist() == [0]


class TestLabels:
    @pytest.mark.parametrize(
        ("operator", "values", "found"),
        [
            ("In", {"x"}, {"a"}),
            ("In", {"x", "y"}, {"a", "b"}),
            ("In", {"other"}, set()),
            ("NotIn", {"x"}, {"b", "c", "e"}),
            ("NotIn", {"x", "y"}, {"c", "e"}),
            ("Exists", set(), {"a", "b", "e"}),
            ("DoesNotExist", set(), {"c"}),
        ],
    )
    def test_requirements(self, operator, values, found):
        zones = {"a": {"zone": "x"}, "b": {"zone": "y"}, "c": {}, "e": {"zone": ""}}
        nodes = table(*(make_node(name, labels=labels) for name, labels in zones.items()))
        requirement = Requirement("zone", operator, frozenset(values))
        assert named(nodes, nodes.matches(requirement)) == found
        assert {name for name, labels in zones.items() if requirement.matches(labels)} == found

    def test_numbers(self):
        sizes = {"a": {"size": "1"}, "b": {"size": "5"}, "c": {"size": "x"}, "d": {}}
        nodes = table(*(make_node(name, labels=labels) for name, labels in sizes.items()))
        assert named(nodes, nodes.matches(Requirement("size", "Gt", frozenset({"3"})))) == {"b"}
        assert named(nodes, nodes.matches(Requirement("size", "Lt", frozenset({"3"})))) == {"a"}

    def test_a_label_that_changes(self):
        cluster = Cluster.of([make_node("a", labels={"zone": "x"}), make_node("b", labels={"zone": "x"})])
        in_x = Requirement("zone", "In", frozenset({"x"}))
        assert cluster.nodes.matches(in_x).tolist() == [True, True]
        cluster.add_node(make_node("a", labels={"zone": "new"}))
        assert cluster.nodes.matches(in_x).tolist() == [False, True]
        cluster.add_node(make_node("b"))
        assert cluster.nodes.label("zone").present.tolist() == [True, False]

    @pytest.mark.parametrize(
        ("term", "found"),
        [
            pytest.param({}, set(), id="an empty term"),
            pytest.param({"matchFields": [NAMED_A]}, {"a"}),
            pytest.param(
                {"matchFields": [NAMED_A | {"operator": "NotIn"}]}, {"b", "c"}, id="all names but one"
            ),
            pytest.param({"matchFields": [NAMED_A | {"values": ["gone"]}]}, set(), id="a name nobody has"),
            pytest.param(
                {"matchFields": [NAMED_A | {"key": "metadata.uid"}]}, set(), id="another field is empty"
            ),
            pytest.param(
                {"matchFields": [NAMED_A], "matchExpressions": [{"key": "zone", "operator": "Exists"}]}, set()
            ),
        ],
    )
    def test_terms_with_fields(self, term, found):
        nodes = table(make_node("a"), make_node("b", labels={"zone": "x"}), make_node("c"))
        built = node_terms_of(decode(NodeSelector, {"nodeSelectorTerms": [term]}))
        assert named(nodes, nodes.match_terms(built)) == found


class TestPorts:
    @pytest.mark.parametrize(
        ("wanted", "free"),
        [
            pytest.param(HOST_PORT, {"none", "datagrams"}, id="on every address"),
            pytest.param(HERE, {"none", "there", "datagrams"}, id="on one address"),
            pytest.param(DATAGRAMS, {"none", "here", "there", "everywhere"}, id="of another protocol"),
        ],
    )
    @pytest.mark.parametrize("part", [False, True])
    def test_conflicts(self, wanted, free, part):
        holders = {"everywhere": HOST_PORT, "here": HERE, "there": THERE, "datagrams": DATAGRAMS}
        nodes = table(
            *(make_node(name) for name in (*holders, "none")),
            *(make_pod(name, node=name, containers=[holder]) for name, holder in holders.items()),
        )
        nodes = nodes.take(range(len(nodes))) if part else nodes
        assert named(nodes, ~nodes.ports_taken(make_pod(containers=[wanted]).shape.ports)) == free

    def test_a_shared_port_is_free_when_the_first_pod_leaves(self):
        cluster = Cluster.of(
            [make_node("a"), *(make_pod(name, node="a", containers=[HERE]) for name in "12")]
        )
        cluster.remove_pod(make_pod("1"))
        assert not cluster.nodes.ports_taken(make_pod(containers=[HERE]).shape.ports).any()


class TestImages:
    def test_the_first_node_to_report_an_image_tells_its_size(self):
        cluster = Cluster.of([make_node("a", images={"web:v1": 5}), make_node("b", images={"web:v1": 9})])
        assert cluster.nodes.images["web:v1"].size == 5
        cluster.add_node(make_node("a"))
        assert cluster.nodes.images["web:v1"].size == 5
        assert named(cluster.nodes, cluster.nodes.has_image("web:v1")) == {"b"}

    def test_once_nobody_has_it_the_next_one_tells(self):
        cluster = Cluster.of([make_node("a", images={"web:v1": 5})])
        cluster.add_node(make_node("a"))
        assert "web:v1" not in cluster.nodes.images
        cluster.add_node(make_node("a", images={"web:v1": 7}))
        assert cluster.nodes.images["web:v1"].size == 7

    def test_a_removed_node_has_none(self):
        cluster = Cluster.of([make_node("a", images={"web:v1": 5}), make_node("b")])
        cluster.remove_node("a")
        assert not cluster.nodes.images


class TestParts:
    """A part of the table is a copy: what is tried on it does not show."""

    def test_pods_come_and_go_unseen(self):
        cluster = Cluster.of(
            [
                make_node("a"),
                make_node("b"),
                make_pod("1", node="b", requests={"cpu": "1"}, containers=[HERE]),
            ]
        )
        nodes = cluster.nodes
        part = nodes.take([1])
        assert list(part.names) == ["b"]
        (known,) = part.pods_on(0)
        part.remove_pod(0, known)
        assert part.pod_count.tolist() == [0]
        assert not part.ports_taken(known.shape.ports).any()
        part.add_pod(0, make_pod("2", requests={"cpu": "2"}))
        assert part.requested["cpu"].tolist() == [2000]
        assert [pod.name for pod in part.pods_on(0)] == ["2"]
        assert nodes.pod_count.tolist() == [0, 1]
        assert [pod.name for pod in nodes.pods_on(1)] == ["1"]
        assert nodes.ports_taken(known.shape.ports).tolist() == [False, True]

    def test_a_part_of_a_part(self):
        nodes = table(*(make_node(name, labels={"zone": name}) for name in "abcd"))
        part = nodes.take([3, 1, 0]).take([1, 2])
        assert list(part.names) == ["b", "a"]
        zone = part.label("zone")
        assert [zone.values[value] for value in zone.ids] == ["b", "a"]
        assert part.rows.tolist() == [1, 0]


def test_one_row():
    nodes = table(
        make_node("a", labels={"x": "y"}, taints=["t:NoSchedule"], unschedulable=True, features=["F"]),
        make_pod("p", node="a", requests={"cpu": "1"}),
    )
    node = nodes.node(0)
    assert (node.name, node.labels["x"], node.unschedulable, node.declared_features) == (
        "a",
        "y",
        True,
        ("F",),
    )
    assert [taint.key for taint in node.taints] == ["t"]
    assert (node.allocatable["cpu"], node.requested["cpu"]) == (4000, 1000)
    assert [pod.name for pod in node.pods] == ["p"]


class TestKeeping:
    def test_only_rows_that_changed_are_worked_out_again(self):
        cluster = Cluster.of([make_node(name) for name in "abc"])
        nodes, asked = cluster.nodes, []

        def compute(part):
            asked.append(sorted(part.names))
            return (part.pod_count.copy(),)

        def kept():
            return nodes.keep("key", compute, usage=True)[0].tolist()

        assert kept() == kept() == [0, 0, 0]
        cluster.assume_pod(make_pod("p"), "b")
        assert kept() == [0, 1, 0]
        cluster.add_node(make_node("c", labels={"x": "y"}))
        assert kept() == [0, 1, 0]
        assert asked == [["a", "b", "c"], ["b"], ["c"]]
        cluster.add_node(make_node("d"))
        assert kept() == [0, 1, 0, 0]
        assert asked[-1] == ["a", "b", "c", "d"]

    def test_what_does_not_depend_on_pods_does_not_follow_them(self):
        cluster = Cluster.of([make_node("a")])
        calls = []

        def compute(part):
            calls.append(len(part))
            return (part.unschedulable.copy(),)

        for number in range(3):
            cluster.nodes.keep("key", compute)
            cluster.assume_pod(make_pod(f"p{number}"), "a")
        assert calls == [1]

    def test_far_behind_it_starts_over(self):
        cluster = Cluster.of([make_node("a"), make_node("b")])

        def kept():
            return cluster.nodes.keep("key", lambda part: (part.pod_count.copy(),), usage=True)[0].tolist()

        assert kept() == [0, 0]
        pod = make_pod("p")
        for _ in range(3000):
            cluster.forget_pod(cluster.assume_pod(pod, "a"))
        cluster.assume_pod(pod, "b")
        assert kept() == [0, 1]
