"""A record holds all of a decision's evidence, in memory and as bytes, and is shown as plain data."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from keeping_decisions import FAMILIES, ROOM, attempt_of, recorded_decisions, records_of

from make import make_node, make_pod, planner
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.framework.decision import Decision, Evidence, ScoreColumn
from stowplan.framework.plugin import Plugin
from stowplan.framework.registry import Registry
from stowplan.framework.status import Status
from stowplan.journal import Decisions, Outcome, parquet, reader
from stowplan.journal.codec import GroupReader, GroupWriter
from stowplan.journal.record import Record, RecordMaker
from stowplan.journal.wire import PodAnswer, plain_record
from stowplan.journal.writer import writing


def as_bytes(records: list[Record]) -> list[Record]:
    writer = GroupWriter()
    stored = [writer.encode(record) for record in records]
    reader = GroupReader(lambda row: stored[row])
    return [reader.record(row) for row in reversed(range(len(records)))][::-1]


WAYS = [
    pytest.param(lambda records: records, id="in memory"),
    pytest.param(as_bytes, id="as bytes"),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recorded_case_comes_back_as_it_was(family):
    decisions = list(recorded_decisions(family))
    records = records_of(decisions)
    for decision, kept, stored in zip(decisions, records, as_bytes(records), strict=True):
        for record in (kept, stored):
            again = record.decision()
            assert again.as_golden() == decision.as_golden()
            assert again.message == decision.message
            assert again.rejectors == decision.rejectors
            assert (again.codes() == decision.codes()).all()
            assert record.priority == decision.pod.priority
        check_plain_record(decision, kept)


def check_plain_record(decision: Decision, record: Record) -> None:
    """As plain data: which filter rejected which node and why, and what the others scored."""
    found = msgspec.json.decode(msgspec.json.encode(plain_record(record)))
    assert (found["pod"], found["chosen"]) == (decision.pod.key, decision.chosen)
    looked_at = range(len(found["nodes"])) if found["lookedAt"] is None else found["lookedAt"]
    assert [found["nodes"][row] for row in looked_at] == [decision.names[row] for row in decision.looked_at]
    for told, real in zip(found["filters"], decision.filters, strict=True):
        assert [bool(number) for number in told["column"]] == real.fails.tolist()
        for place, number in enumerate(told["column"]):
            if number:
                status, expected = told["statuses"][number - 1], real.status(place)
                assert status["code"] == expected.code.wire_name
                assert status["reasons"] == list(expected.reasons)
    scores = [(each.plugin, each.weight, each.scores.tolist()) for each in decision.scores]
    assert [tuple(each.values()) for each in found["scores"]] == scores


@pytest.mark.parametrize("way", WAYS)
def test_what_came_of_a_decision_comes_back(way):
    (decision,) = [planner([make_node("a")]).decide(make_pod("<b>&ß\"'/%0a", namespace="ns"))]
    attempt = attempt_of(
        decision, number=3, outcome=Outcome.ERROR, message="binding: 500", wakes={"Fit": "a node comes"}
    )
    (record,) = way([RecordMaker(ROOM).make_record(decision, attempt)])
    assert record.attempt == attempt
    assert record.pod == "ns/<b>&ß\"'/%0a"
    assert (record.node, record.chosen) == (None, "a")


@pytest.mark.parametrize("way", WAYS)
def test_one_node_plugins_and_extenders_come_back(way):
    class Odd(Plugin):
        def filter(self, state, pod, node):
            number = int(node.name)
            return Status.unschedulable(f"node {number} is odd") if number % 2 else None

    registry = Registry.installed(classes={"Odd": Odd})
    profile = {"plugins": {"multiPoint": {"enabled": [{"name": "Odd"}]}}}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }
    nodes = [make_node(str(number)) for number in range(100)]
    odd = Planner(Cluster.of(nodes), load(config, registry).config, registry=registry)
    decision = odd.decide(make_pod())
    points = np.arange(len(decision.feasible), dtype=np.int64) * -1000
    decision.scores.append(ScoreColumn("extender", 7, points, None))
    decision.relative_totals = decision.relative_totals + 7 * points
    (record,) = way(records_of([decision]))
    assert record.decision().as_golden() == decision.as_golden()
    assert record.decision().status_of("3").reasons == ("node 3 is odd",)


@pytest.mark.parametrize("way", WAYS)
def test_a_search_over_a_sample_comes_back(way):
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 50,
    }
    sampling = planner([make_node(f"n{number}") for number in range(300)], config)
    decision = sampling.decide(make_pod())
    assert decision.not_looked_at is not None
    (record,) = way(records_of([decision]))
    again = record.decision()
    assert again.as_golden() == decision.as_golden()
    assert (again.not_looked_at == decision.not_looked_at).all()


def test_a_field_of_a_decision_is_named_once():
    """What Evidence declares is restored, in the JSON and, if other tools can read it, a column."""
    decision = planner([make_node("a")]).decide(make_pod())
    (record,) = as_bytes(records_of([decision]))
    shown = {name.lower() for name in plain_record(record)}
    for name in Evidence.__struct_fields__:
        assert getattr(record.decision(), name) == getattr(decision, name)
        assert name.replace("_", "") in shown
    assert set(Evidence.__struct_fields__) - {"overruled"} <= set(parquet.SCHEMA.names)


def test_nodes_that_came_later_are_not_in_it():
    growing = planner([make_node("a")])
    decision = growing.decide(make_pod())
    (record,) = records_of([decision])
    growing.cluster.apply(make_node("b"))
    assert record.decision().node_count == 1
    assert plain_record(record)["nodes"] == ["a"]
    assert as_bytes([record])[0].nodes.to_list() == ["a"]


def test_decisions_that_are_alike_share_their_columns():
    """A thousand nodes, a hundred pods, and a few kilobytes each: far less than a column."""
    many = planner(
        [
            make_node(f"n{number}", allocatable={"cpu": "64", "memory": "64Gi", "pods": "500"})
            for number in range(1000)
        ]
    )
    decisions = Decisions(64 * 2**20)
    golden = {}
    for number in range(100):
        decision = many.decide(make_pod(f"p{number}", requests={"cpu": "100m"}))
        many.carry_out(decision)
        decisions.keep(decision, attempt_of(decision))
        golden[decision.pod.key] = decision.as_golden()
    assert decisions.recent.bytes / 100 < 5000
    for pod, expected in golden.items():
        assert decisions.recent.of(pod)[0].decision().as_golden() == expected


def test_the_oldest_go_when_the_budget_is_used_up():
    decisions = Decisions(64 * 2**10)
    placing = planner([make_node("a", allocatable={"cpu": "64", "memory": "64Gi", "pods": "500"})])
    for number in range(200):
        decision = placing.decide(make_pod(f"p{number}"))
        decisions.keep(decision, attempt_of(decision))
    recent = decisions.recent
    assert 0 < len(recent) < 50
    assert recent.bytes <= 64 * 2**10
    assert recent.of("default/p0") == []
    assert recent.of("default/p199")[0].pod == "default/p199"
    assert [each.pod for each in recent.newest(2)] == ["default/p199", "default/p198"]
    assert [each.number for each in recent.newest(10, after=198)] == [200, 199]
    assert len(list(recent.pods())) == len(recent)


def test_attempts_at_one_pod_are_the_newest_first():
    decisions = Decisions()
    decision = planner([make_node("a")]).decide(make_pod())
    for number in (1, 2):
        decisions.keep(decision, attempt_of(decision, number=number))
    assert [each.attempt.number for each in decisions.recent.of("default/pod")] == [2, 1]


def test_a_budget_of_nothing_keeps_nothing():
    decisions = Decisions(0)
    decision = planner([make_node("a")]).decide(make_pod())
    decisions.keep(decision, attempt_of(decision))
    assert len(decisions.recent) == 0


def test_an_answer_without_a_decision_is_plain_data_too():
    answer = PodAnswer(pod="default/p")
    assert msgspec.json.decode(msgspec.json.encode(answer), type=PodAnswer) == answer


def test_all_that_was_kept_is_written_in_the_end(tmp_path):
    decisions = Decisions()
    placing = planner([make_node("a")])
    with writing(decisions, tmp_path, size=2**20, age=3600):
        decision = placing.decide(make_pod())
        decisions.keep(decision, attempt_of(decision))
    assert decisions.write is None
    (record,) = reader.find(tmp_path, "default/pod", lambda *_: None)
    assert record.decision().as_golden() == decision.as_golden()
