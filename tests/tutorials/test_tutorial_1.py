"""Tutorial 1, NetworkTraffic, with its configuration as printed (printed_1): its nodes score 29, 15 and 0."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fake_prometheus import fake_prometheus, running, until, vector
from make import REGISTRY, make_node, make_pod, planner
from stowplan.api.kinds import object_of
from stowplan.config import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "network-traffic"
PRINTED = Path(__file__).parent / "printed_1" / "networktraffic-config.yaml"
TRAFFIC = {"a": 1_000_000, "b": 1_200_000, "c": 1_400_000}
SCORES = {"a": 29, "b": 15, "c": 0}
QUERY = 'sum_over_time(node_network_receive_bytes_total{kubernetes_node!="",device="ens192"}[5m])'


async def test_three_nodes_are_scored_as_in_the_tutorial():
    async with fake_prometheus() as prometheus:
        prometheus.answer = vector(TRAFFIC, label="kubernetes_node")
        config = yaml.safe_load(PRINTED.read_text().replace("<address of Prometheus>", prometheus.url))
        # The tutorial adds up the values of a counter; to have that, one has to ask for it.
        config["profiles"][0]["pluginConfig"][0]["args"]["compat"] = True
        staged = planner([make_node(name) for name in TRAFFIC], config)
        plugin = staged.profiles["default-scheduler"].plugins["NetworkTraffic"]
        async with running(plugin):
            await until(lambda: staged.decide(make_pod()).scores[0].scores.any())
            decision = staged.decide(make_pod())
        assert prometheus.queries == [QUERY]
        (column,) = decision.scores
        names = [decision.names[row] for row in decision.feasible]
        assert dict(zip(names, column.scores.tolist(), strict=True)) == SCORES
        assert decision.chosen == "a"


@pytest.mark.parametrize("name", ["scheduler.yaml", "beside-others.yaml", "as-in-the-tutorial.yaml"])
def test_the_examples_are_as_they_should_be(name):
    found = load(yaml.safe_load((EXAMPLE / name).read_text()), REGISTRY)
    assert [each.name for profile in found.config.profiles for each in profile.plugin_config] == [
        "NetworkTraffic"
    ]


async def test_the_example_places_its_pod_by_the_addresses_of_its_nodes():
    nodes = list(yaml.safe_load_all((EXAMPLE / "nodes.yaml").read_text()))
    async with fake_prometheus() as prometheus:
        prometheus.answer = vector({"127.0.1.1:9100": 2000, "127.0.1.2:9100": 50_000, "127.0.1.3:9100": 1e5})
        text = (EXAMPLE / "scheduler.yaml").read_text()
        staged = planner(nodes, yaml.safe_load(text.replace("http://127.0.0.1:9090", prometheus.url)))
        wanted = object_of(yaml.safe_load((EXAMPLE / "pod.yaml").read_text()))
        async with running(staged.profiles["networktraffic"].plugins["NetworkTraffic"]):
            await until(lambda: staged.decide(wanted).scores[0].scores.any())
        decision = staged.decide(wanted)
        assert decision.chosen == "calm"
        assert sorted(decision.scores[0].scores.tolist()) == [0, 50, 98]
