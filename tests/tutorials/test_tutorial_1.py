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

RATE = (
    'sum by (instance) (rate(node_network_receive_bytes_total{device="ens192"}[5m]) + '
    'rate(node_network_transmit_bytes_total{device="ens192"}[5m]))'
)


async def test_three_nodes_are_scored_as_in_the_tutorial():
    async with fake_prometheus() as prometheus:
        prometheus.answer = vector(TRAFFIC, label="kubernetes_node")
        config = yaml.safe_load(PRINTED.read_text().replace("<address of Prometheus>", prometheus.url))
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


@pytest.mark.parametrize(
    ("version", "compat", "query"),
    [
        pytest.param("v1beta1", None, QUERY, id="as printed"),
        pytest.param("v1beta1", False, RATE, id="the file has its own"),
        pytest.param("v1beta2", None, RATE, id="a version that the tutorial does not use"),
    ],
)
def test_which_query_a_version_means(tmp_path, version, compat, query):
    config = yaml.safe_load(PRINTED.read_text().replace("<address of Prometheus>", "http://prometheus"))
    config["apiVersion"] = f"kubescheduler.config.k8s.io/{version}"
    if compat is not None:
        config["profiles"][0]["pluginConfig"][0]["args"]["compat"] = compat
    found = load(config, REGISTRY)
    args = {each.name: each.args for each in found.config.profiles[0].plugin_config}
    assert args["NetworkTraffic"].query == query
    told = [each for each in found.warnings if each.startswith("NetworkTraffic uses the query of v1beta1")]
    assert len(told) == (query == QUERY)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        pytest.param(
            vector({"rack-1": 5, "rack-2": 7}, label="kubernetes_node"),
            "label kubernetes_node has no node's name or address, but rack-1, rack-2",
            id="names of something else",
        ),
        pytest.param(
            vector(TRAFFIC, label="pod"),
            f"the result of {QUERY} has no label kubernetes_node, but pod: set nodeLabel to the label that "
            "names the node",
            id="another label",
        ),
        pytest.param(vector({}), f"no data for {QUERY}", id="nothing"),
    ],
)
async def test_an_answer_that_names_no_node_is_an_error_at_the_first_read(answer, fault, caplog):
    async with fake_prometheus() as prometheus:
        prometheus.answer = answer
        config = yaml.safe_load(PRINTED.read_text().replace("<address of Prometheus>", prometheus.url))
        staged = planner([make_node(name) for name in TRAFFIC], config)
        async with running(staged.profiles["default-scheduler"].plugins["NetworkTraffic"]):
            await until(lambda: caplog.records)
        assert len(prometheus.queries) == 1
    (said,) = caplog.records
    assert (said.levelname, said.getMessage()) == ("ERROR", "Cannot read network traffic of nodes")
    assert said.fields["err"] == fault


async def test_nodes_that_are_known_after_the_first_read_are_missed_at_once(caplog):
    async with fake_prometheus() as prometheus:
        prometheus.answer = vector({"rack-1": 5}, label="kubernetes_node")
        config = yaml.safe_load(PRINTED.read_text().replace("<address of Prometheus>", prometheus.url))
        staged = planner([], config)
        async with running(staged.profiles["default-scheduler"].plugins["NetworkTraffic"]):
            await until(lambda: prometheus.queries)
            staged.cluster.apply(make_node("a"))
            await until(lambda: caplog.records)
        assert len(prometheus.queries) == 1
    assert "has no node's name or address, but rack-1" in caplog.records[0].fields["err"]


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
