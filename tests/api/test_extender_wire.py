"""What goes over the wire to and from an extender."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from stowplan.api.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    NodeList,
    Victims,
    read,
    write,
)
from stowplan.errors import InputError

POD = Raw(b'{"metadata":{"name":"p"},"spec":{"x":[1.50]}}')
NODE = Raw(b'{"metadata":{"name":"n1"}}')


@pytest.mark.parametrize(
    ("message", "text"),
    [
        pytest.param(
            ExtenderArgs(pod=POD, node_names=["a", "b"]),
            '{"Pod":{"metadata":{"name":"p"},"spec":{"x":[1.50]}},"Nodes":null,"NodeNames":["a","b"]}',
            id="names, and the pod to the letter",
        ),
        pytest.param(
            ExtenderArgs(pod=Raw(b"{}"), nodes=NodeList(items=[NODE])),
            '{"Pod":{},"Nodes":{"metadata":{},"items":[{"metadata":{"name":"n1"}}]},"NodeNames":null}',
            id="whole nodes",
        ),
        pytest.param(
            ExtenderBindingArgs(pod_name="p", pod_namespace="d", pod_uid="u", node="n"),
            '{"PodName":"p","PodNamespace":"d","PodUID":"u","Node":"n"}',
            id="bind",
        ),
        pytest.param(
            ExtenderPreemptionArgs(
                pod=Raw(b"{}"),
                node_name_to_meta_victims={"n": MetaVictims(pods=[MetaPod(uid="u")], num_pdb_violations=2)},
            ),
            '{"Pod":{},"NodeNameToVictims":null,'
            '"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":"u"}],"NumPDBViolations":2}}}',
            id="preempt by uid",
        ),
        pytest.param(
            ExtenderPreemptionArgs(pod=Raw(b"{}"), node_name_to_victims={"n": Victims(pods=[POD])}),
            '{"Pod":{},"NodeNameToVictims":{"n":{"Pods":[{"metadata":{"name":"p"},"spec":{"x":[1.50]}}],'
            '"NumPDBViolations":0}},"NodeNameToMetaVictims":null}',
            id="preempt with whole pods",
        ),
        pytest.param([HostPriority(host="a", score=3)], '[{"Host":"a","Score":3}]', id="priorities"),
    ],
)
def test_leaves_in_capitals(message, text):
    assert write(message).decode() == text


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        pytest.param(
            ExtenderFilterResult,
            '{"NodeNames":["a"],"FailedNodes":{"B":"no"},"Error":""}',
            ExtenderFilterResult(node_names=["a"], failed_nodes={"B": "no"}),
            id="as Go writes it",
        ),
        pytest.param(
            ExtenderFilterResult,
            '{"nodenames":["A"],"failednodes":{"B":"no"},"failedAndUnresolvableNodes":{"C":"never"}}',
            ExtenderFilterResult(
                node_names=["A"], failed_nodes={"B": "no"}, failed_and_unresolvable_nodes={"C": "never"}
            ),
            id="any case, but the names of nodes are left alone",
        ),
        pytest.param(
            ExtenderFilterResult,
            '{"Nodes":null,"NodeNames":null,"FailedNodes":null,"Error":null,"Other":{"x":1}}',
            ExtenderFilterResult(),
            id="nulls and fields of others",
        ),
        pytest.param(ExtenderFilterResult, "null", ExtenderFilterResult(), id="null is an empty answer"),
        pytest.param(
            list[HostPriority],
            '[{"host":"a","score":7},{"HOST":"b","Score":null}]',
            [HostPriority(host="a", score=7), HostPriority(host="b")],
            id="priorities in any case",
        ),
        pytest.param(list[HostPriority], "null", [], id="no priorities"),
        pytest.param(
            ExtenderPreemptionResult,
            '{"nodeNameToMetaVictims":{"n":{"pods":[{"uid":"u"}],"numPDBViolations":1},"m":null}}',
            ExtenderPreemptionResult(
                node_name_to_meta_victims={
                    "n": MetaVictims(pods=[MetaPod(uid="u")], num_pdb_violations=1),
                    "m": MetaVictims(),
                }
            ),
            id="victims within a map",
        ),
        pytest.param(
            ExtenderBindingResult, '{"error":"no"}', ExtenderBindingResult(error="no"), id="bind's answer"
        ),
        pytest.param(
            ExtenderBindingArgs,
            '{"podName":"p","poduid":"u"}',
            ExtenderBindingArgs(pod_name="p", pod_uid="u"),
            id="bind's question",
        ),
    ],
)
def test_is_read_in_any_case(kind, text, expected):
    assert read(kind, text.encode()) == expected


def test_whole_nodes_are_read_in_any_case():
    text = b'{"pod":{"metadata":{}},"nodes":{"ApiVersion":"v1","Items":[{"metadata":{"name":"n1"},"x":1}]}}'
    found = read(ExtenderArgs, text)
    assert found.nodes is not None
    assert found.nodes.names() == ["n1"]
    assert bytes(found.nodes.items[0]) == b'{"metadata":{"name":"n1"},"x":1}'
    assert bytes(found.pod) == b'{"metadata":{}}'


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        pytest.param(ExtenderFilterResult, b"<html>", "is not JSON", id="no JSON"),
        pytest.param(ExtenderFilterResult, b"", "is not JSON", id="nothing"),
        pytest.param(ExtenderFilterResult, b'{"NodeNames":["a"', "is not JSON", id="cut off"),
        pytest.param(ExtenderFilterResult, b'{"Error":"\xff"}', "is not JSON", id="no UTF-8"),
        pytest.param(ExtenderFilterResult, b"[]", "Expected `object`, got `array`", id="a list"),
        pytest.param(
            ExtenderFilterResult, b'{"nodenames":3}', "NodeNames: Expected", id="a number for names"
        ),
        pytest.param(
            list[HostPriority], b'[{"host":"a","score":1.5}]', r"\[0\].Score: Expected", id="a half"
        ),
        pytest.param(
            list[HostPriority], json.dumps([{"Score": 2**63}]).encode(), r"\[0\].Score", id="too large for Go"
        ),
        pytest.param(ExtenderArgs, b"{}", "missing required field `Pod`", id="no pod"),
    ],
)
def test_faults_name_the_field(kind, text, fault):
    with pytest.raises(InputError, match=fault):
        read(kind, text)
