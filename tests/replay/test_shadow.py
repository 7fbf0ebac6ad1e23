"""`stowplan shadow`: what another configuration would do with the pods that the live scheduler binds.

The live scheduler is the test itself, which binds pods through the API, or Stowplan's own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from shadow_world import ONLY_FIT, PACKING, PODS, V1, node, pod, shadowing
from stowplan.apiserver.faults import Target
from stowplan.apiserver.server import VERSION
from stowplan.cli import stowplan
from stowplan.client.errors import NotAllowed
from stowplan.embedded.cluster import EmbeddedCluster
from stowplan.framework.registry import Registry
from stowplan.replay.shadow import MAX_NAMES, ShadowService
from stowplan.replay.shadow_timing import MAX_SETTLE_SECONDS
from stowplan.scheduler.options import parse
from stowplan.web import answer_by_name, make_pages, make_source, serve_locally

RAISING = """
from stowplan import Plugin


class Raising(Plugin):
    def filter(self, state, pod, node):
        raise RuntimeError("out of order")
"""


async def test_the_same_node_is_the_same_and_an_equal_one_a_tie(tmp_path):
    async with shadowing(tmp_path, "--seed=1") as world:
        await world.create(node("a"), node("b"))
        await world.known("b")
        await world.create(pod("web"))
        await world.decided("web")
        ours = world.service.decisions.recent.of("default/web")[0].chosen
        await world.bind("web", ours)
        assert (await world.verdict("web")).result == "same"
        await world.create(node("c"))
        await world.known("c")
        await world.create(pod("next"))
        await world.decided("next")
        chosen = world.service.decisions.recent.of("default/next")[0].chosen
        (other,) = {"a", "b", "c"} - {ours, chosen}  # both are empty, so both are the best
        await world.bind("next", other)
        found = await world.verdict("next")
        assert (found.result, found.live, found.best) == ("tie", other, 2)
        assert "have the same score" in found.reason
        summary = world.service.shadow.summary()
        assert (summary.judged, summary.same_node, summary.agreement) == (2, 0.5, 1.0)


async def test_another_policy_is_named_with_the_scores_that_differ(tmp_path):
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [PACKING], **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(node("empty"), node("used"))
        await world.known("used")
        await world.place(pod("first", "4"), "used")
        found = await world.place(pod("second"), "empty")
        assert (found.result, found.live, found.chosen) == ("policy", "empty", "used")
        (score,) = found.scores
        assert (score.plugin, score.live < score.chosen) == ("NodeResourcesFit", True)
        assert "empty scores" in found.reason
        assert "NodeResourcesFit -" in found.reason
        assert world.service.shadow.summary().causes == {"NodeResourcesFit": 1}


async def test_a_node_that_is_rejected_here_is_policy_with_the_reason(tmp_path):
    async with shadowing(tmp_path) as world:
        await world.create(node("closed", unschedulable=True), node("open"))
        await world.known("open")
        found = await world.place(pod("web"), "closed")
        assert (found.result, found.cause) == ("policy", "NodeUnschedulable")
        assert "NodeUnschedulable rejects closed: node(s) were unschedulable" in found.reason


async def test_a_change_between_arrival_and_binding_is_timing(tmp_path):
    profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(node("old", "4"))
        await world.known("old")
        await world.create(pod("web"))
        await world.decided("web")
        await world.create(node("new", "64"))
        await world.known("new")
        await world.bind("web", "new")
        found = await world.verdict("web")
        assert (found.result, found.live) == ("timing", "new")
        assert "changed between" in found.reason


async def test_a_node_that_changes_back_before_the_binding_is_timing(tmp_path):
    """The live scheduler may have decided in between, on a state that no decision here has seen."""
    profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(node("a", "4"), node("b", "8"))
        await world.known("b")
        await world.create(pod("web"))
        await world.decided("web")
        await world.resize("a", "64")
        await world.resize("a", "4")
        await world.bind("web", "a")
        found = await world.verdict("web")
        assert (found.result, found.chosen) == ("timing", "b")
        assert "a changed between" in found.reason


async def test_pods_that_are_bound_later_and_were_decided_before_are_timing(tmp_path):
    """The live scheduler counts pods that it has decided and not bound yet."""
    profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(node("big", "10"), node("small", "8"))
        await world.known("small")
        await world.create(pod("slow", "4"), pod("quick", "1"))
        await world.decided("quick")
        await world.bind("quick", "small")  # big is the best without `slow`, which is about to be bound
        await world.bind("slow", "big")
        found = await world.verdict("quick")
        assert found.result == "timing"
        assert "those before it in the queue are counted" in found.reason


def spread(pods, order):
    """Where a scheduler with the policy of ONLY_FIT puts pods that it decides in this order."""
    used = {f"n{number}": [0, 0] for number in range(6)}
    found = {}
    for name in order:
        cpu, memory = pods[name], 200 * 2**20  # what counts for a container without a request
        scores = {
            each: ((8000 - at[0] - cpu) * 100 // 8000 + (32 * 2**30 - at[1] - memory) * 100 // (32 * 2**30))
            // 2
            for each, at in used.items()
        }
        found[name] = max(scores, key=scores.get)
        used[found[name]][0] += cpu
        used[found[name]][1] += memory
    return found


@pytest.mark.parametrize("is_packing", [False, True])
async def test_pods_that_a_scheduler_takes_in_an_order_of_its_own_are_timing(is_packing, tmp_path):
    """Another policy is not: no order explains it."""
    draw = random.Random(5)
    pods = {f"p{number}": draw.choice([100, 300, 500, 900]) for number in range(60)}
    order = draw.sample(list(pods), len(pods))
    where = spread(pods, order)
    bound = sorted(order, key=lambda name: order.index(name) + draw.uniform(0, 8))  # several at once
    profile = {"schedulerName": "default-scheduler", **({"pluginConfig": [PACKING]} if is_packing else {})}
    async with shadowing(tmp_path, profile=profile | ONLY_FIT) as world:
        await world.create(*(node(f"n{number}") for number in range(6)))
        await world.until(lambda: len(world.service.scheduler.cluster.nodes) == 6)
        await world.create(*(pod(name, f"{cpu}m") for name, cpu in pods.items()))
        await world.decided(list(pods)[-1])
        for name in bound:
            await world.bind(name, where[name])
        await world.until(lambda: len(world.verdicts) == len(pods), 90)
    found = Counter(each.result for each in world.verdicts)
    if is_packing:
        assert found["policy"] >= 50, found
    else:
        assert found["policy"] <= 2, found
        assert any("in another order of decisions" in each.reason for each in world.verdicts)


async def test_a_burst_is_compared_with_the_cluster_at_each_binding(tmp_path):
    """When they arrive the cluster is empty and all nodes are equal; the packing shows only later."""
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [PACKING], **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(*(node(f"n{number:02}", "64") for number in range(50)))
        await world.until(lambda: len(world.service.scheduler.cluster.nodes) == 50)
        await world.create(*(pod(f"p{number:02}") for number in range(50)))
        await world.decided("p49")
        for number in range(50):
            await world.bind(f"p{number:02}", f"n{number:02}")
        shadow = world.service.shadow
        await world.until(lambda: shadow.summary().judged == 50)
        results = shadow.summary().results
        assert results["policy"] > 40, results
        assert results["policy"] + results["timing"] + results["same"] + results["tie"] == 50


async def test_a_gated_pod_holds_up_no_verdict(tmp_path):
    async with shadowing(tmp_path) as world:
        await world.create(node("closed", unschedulable=True), node("open"))
        await world.known("open")
        await world.create(pod("gated", schedulingGates=[{"name": "example.com/wait"}]))
        await world.until(lambda: world.service.shadow.summary().pending == 1)
        found = await world.place(pod("web"), "closed")
        assert found.result == "policy"
        began = time.monotonic()
        assert (await world.place(pod("next"), "closed")).result == "policy"
        assert time.monotonic() - began < MAX_SETTLE_SECONDS
        patch = {"spec": {"schedulingGates": None}}
        kind = "application/merge-patch+json"
        await world.cluster.api.request("PATCH", f"{PODS}/gated", patch, content_type=kind)
        await world.decided("gated")
        await world.bind("gated", "open")
        assert (await world.verdict("gated")).result == "same"


async def test_a_sample_that_a_search_could_have_come_by_is_sample(tmp_path):
    profile = {"schedulerName": "default-scheduler", "percentageOfNodesToScore": 1, **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(*(node(f"n{number:03}", "8") for number in range(210)), node("best", "64"))
        await world.until(lambda: len(world.service.scheduler.cluster.nodes) == 211)
        results = [(await world.place(pod(f"p{number}"), f"n{number * 20:03}")).result for number in range(6)]
        assert set(results) <= {"tie", "sample", "same"}
        assert "sample" in results


async def test_both_find_no_node_and_then_the_same(tmp_path):
    async with shadowing(tmp_path) as world:
        await world.create(node("tiny", "1"))
        await world.known("tiny")
        await world.create(pod("big", "4"))
        await world.decided("big")
        await world.reject("big")
        found = await world.verdict("big")
        assert (found.result, found.live, found.chosen) == ("same", "", "")
        await world.create(node("large", "16"))
        await world.known("large")
        await world.bind("big", "large")
        assert (await world.verdict("big", 2)).result == "same"


async def test_a_pod_that_the_live_scheduler_rejects_and_fits_here_is_policy(tmp_path):
    async with shadowing(tmp_path) as world:
        await world.create(node("a"))
        await world.known("a")
        await world.create(pod("web"))
        await world.decided("web")
        await world.reject("web")
        found = await world.verdict("web")
        assert (found.result, found.live, found.chosen) == ("policy", "", "a")


async def test_a_pod_that_is_rejected_in_a_burst_and_bound_later_is_judged_twice(tmp_path):
    """What explains the rejection does not explain the node."""
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [PACKING], **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(node("a", "1"), node("b", "2"), node("c", "8"))
        await world.known("c")
        cluster = world.service.scheduler.cluster
        await world.create(pod("on-b", "2", nodeName="b"), pod("on-c", "8", nodeName="c"))
        await world.until(lambda: len(list(cluster.pods())) == 2)
        await world.create(pod("first"), pod("second"))
        await world.decided("second")
        await world.reject("first")
        await world.bind("second", "a")
        found = await world.verdict("first")
        assert (found.result, found.live) == ("timing", "")
        for name in ("on-b", "on-c"):
            await world.cluster.api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        await world.until(lambda: len(list(cluster.pods())) == 1)
        await world.bind("first", "c")
        found = await world.verdict("first", 2)
        assert (found.result, found.live, found.chosen) == ("policy", "c", "b")


async def test_nodes_that_are_removed_cost_no_verdict(tmp_path):
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [PACKING], **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(node("a", "2"), node("b"), node("c"))
        await world.known("c")
        await world.create(pod("web"))
        await world.decided("web")
        await world.resize("c", "16")
        await world.cluster.api.request("DELETE", "/api/v1/nodes/c")
        await world.until(lambda: world.service.scheduler.cluster.nodes.row_of("c") is None)
        await world.bind("web", "b")
        found = await world.verdict("web")
        assert (found.result, found.chosen) == ("policy", "a")


async def test_pods_that_are_deleted_or_come_with_a_node_are_counted_apart(tmp_path):
    async with shadowing(tmp_path) as world:
        await world.create(node("a"))
        await world.known("a")
        await world.create(
            pod("web"), pod("fixed", nodeName="a"), pod("gated", schedulingGates=[{"name": "x"}])
        )
        await world.decided("web")
        await world.cluster.api.request("DELETE", f"{PODS}/web", {"gracePeriodSeconds": 0})
        shadow = world.service.shadow
        await world.until(lambda: shadow.summary().gone == 1)
        summary = shadow.summary()
        assert (summary.judged, summary.unseen, summary.pending) == (0, 1, 1)
        assert not world.service.decisions.recent.of("default/gated")


async def test_pods_without_a_profile_are_said_to_be_left_out(tmp_path, caplog):
    async with shadowing(tmp_path, profile={"schedulerName": "other"}) as world:
        await world.create(node("a"))
        await world.create(pod("web"), pod("api"))
        await world.until(lambda: world.service.shadow.summary().unmatched == {"default-scheduler": 2})
        assert world.service.shadow.summary().profiles == ("other",)
    assert caplog.text.count("no profile has their schedulerName") == 1


async def test_names_of_schedulers_that_anybody_makes_up_do_not_fill_the_log(tmp_path, caplog):
    async with shadowing(tmp_path) as world:
        names = [f"mine-{number}" for number in range(MAX_NAMES + 5)]
        await world.create(*(pod(name, schedulerName=name) for name in names))
        await world.until(lambda: sum(world.service.shadow.summary().unmatched.values()) == len(names))
        assert world.service.shadow.summary().unmatched["(others)"] == 5
    messages = [each.getMessage() for each in caplog.records]
    assert messages.count("Pods are not judged: no profile has their schedulerName") == MAX_NAMES + 1


async def test_a_plugin_that_raises_is_an_error_and_the_next_pods_are_judged(tmp_path):
    (tmp_path / "raising.py").write_text(RAISING)
    profile = {
        "schedulerName": "default-scheduler",
        "plugins": {"filter": {"enabled": [{"name": "Raising"}]}},
    }
    async with shadowing(tmp_path, f"--plugin-dir={tmp_path}", profile=profile) as world:
        await world.create(node("a"))
        await world.known("a")
        for name in ("web", "api"):
            found = await world.place(pod(name), "a")
            assert (found.result, "out of order" in found.reason) == ("error", True)


async def test_verdicts_that_cannot_be_written_stop_nothing(tmp_path, caplog):
    def fill_disk(verdict):
        raise OSError(28, "No space left on device")

    profile = {"schedulerName": "default-scheduler", "pluginConfig": [PACKING], **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile, on_verdict=fill_disk) as world:
        await world.create(node("a", "4"), node("b", "16"))
        await world.known("b")
        for name in ("web", "next"):
            assert (await world.place(pod(name), "b")).result == "policy"
        assert world.service.shadow.summary().results["policy"] == 2
    assert "Cannot write comparison" in caplog.text


async def test_nothing_is_written_to_the_cluster(tmp_path):
    async with shadowing(tmp_path) as world:
        await world.create(node("a", "1"))
        await world.known("a")
        await world.create(pod("web"), pod("big", "9", priority=None))
        await world.decided("big")
        with pytest.raises(NotAllowed):
            await world.service.scheduler.shared.api.request("DELETE", f"{PODS}/web")
        seen = await world.cluster.api.get_json(PODS)
        assert [each["spec"].get("nodeName") for each in seen["items"]] == [None, None]
        assert all("conditions" not in each["status"] for each in seen["items"])
        events = await world.cluster.api.get_json("/api/v1/events")
        assert events["items"] == []


async def test_beside_a_scheduler_with_the_same_configuration_all_pods_agree(tmp_path):
    """Under load bindings overtake one another, so some may be a matter of timing, and none of policy."""
    async with shadowing(tmp_path) as world:
        await world.create(*(node(f"n{number}", "16") for number in range(12)))
        await world.known("n11")
        await world.cluster.schedule()
        for number in range(60):
            await world.create(pod(f"p{number}", f"{100 + number % 7 * 50}m"))
        shadow = world.service.shadow
        await world.until(lambda: shadow.summary().judged == 60)
        summary = shadow.summary()
        assert summary.results["policy"] == summary.results["error"] == 0, list(shadow.disagreements)
        page = world.service.metrics.render().decode()
        assert 'stowplan_shadow_pods_total{profile="default-scheduler",result="same"}' in page
        assert f"stowplan_shadow_agreement_ratio {summary.agreement:g}"[:38] in page


async def test_thousands_of_pending_pods_neither_block_nor_pile_up(tmp_path):
    profile = {"schedulerName": "default-scheduler", **ONLY_FIT}
    async with shadowing(tmp_path, "--decisions-memory=1Mi", profile=profile) as world:
        await world.create(node("a", "4"))
        await world.known("a")
        made = pod("p", "5")
        for number in range(2_000):
            made["metadata"]["name"] = f"p{number}"
            await world.create(made)
        shadow, service = world.service.shadow, world.service
        await world.until(lambda: shadow.summary().pending == 2_000, 60)
        await world.create(pod("small"))
        await world.bind("small", "a")
        assert (await world.verdict("small")).result == "same"
        assert service.decisions.recent.bytes <= 2**20


async def test_watches_that_break_lose_no_verdict(tmp_path):
    """What was bound meanwhile is found when the watch continues, or by the next list."""
    async with shadowing(tmp_path) as world:
        await world.create(node("a"))
        await world.known("a")
        for number in range(3):
            name = f"web-{number}"
            await world.create(pod(name))
            await world.decided(name)
            assert world.cluster.server.faults.drop_watches(Target("watch", "pods", user_agent="*"))
            await world.bind(name, "a")
            assert (await world.verdict(name)).result == "same"


async def test_a_new_configuration_is_used_from_then_on(tmp_path):
    """SIGHUP reads the file again; verdicts so far are kept."""
    async with shadowing(tmp_path, profile={"schedulerName": "other"}) as world:
        await world.create(node("a"))
        await world.create(pod("web"))
        shadow = world.service.shadow
        await world.until(lambda: shadow.summary().unmatched == {"default-scheduler": 1})
        (tmp_path / "b.yaml").write_text(yaml.safe_dump(V1))
        before = world.service.scheduler
        os.kill(os.getpid(), signal.SIGHUP)
        await world.until(lambda: world.service.scheduler is not before and world.service.is_synced)
        await world.decided("web")
        await world.bind("web", "a")
        assert (await world.verdict("web")).result == "same"
        assert shadow.summary().unmatched == {"default-scheduler": 1}


async def test_the_page_has_the_disagreements(tmp_path):
    profile = {"schedulerName": "default-scheduler", "pluginConfig": [PACKING], **ONLY_FIT}
    async with shadowing(tmp_path, profile=profile) as world:
        await world.create(node("empty"), node("used"))
        await world.known("used")
        await world.place(pod("first", "4"), "used")
        await world.place(pod("second"), "empty")
        pages = make_pages(make_source(world.service), world.service.shadow)
        async with serve_locally(answer_by_name(pages)) as link, aiohttp.ClientSession() as session:
            async with session.get(link) as response:
                assert 'href="#/shadow"' in await response.text()
            async with session.get(f"{link}api/shadow") as response:
                found = await response.json()
            async with session.post(f"{link}api/shadow") as response:
                assert response.status == 405
        assert found["summary"]["results"]["policy"] == 1
        assert next(each["pod"] for each in found["disagreements"]) == "default/second"
        assert "" in make_pages(make_source(world.service))
        assert "api/shadow" not in make_pages(make_source(world.service))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["--config=missing.yaml"], "missing.yaml: cannot be read", id="no such file"),
        pytest.param(["--config=b.yaml", "--for=0s"], "expected a duration above 0", id="no time"),
        pytest.param(["--config=b.yaml", "--for=soon"], "such as 500ms, 10s", id="not a duration"),
        pytest.param(["--config=b.yaml", "--wrong"], "unknown flag: --wrong", id="unknown flag"),
        pytest.param(["--config=b.yaml", "--kubeconfig=no"], "no: cannot be read", id="no kubeconfig"),
    ],
)
def test_bad_input_is_named(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(V1))
    done = CliRunner().invoke(stowplan, ["shadow", *words])
    assert done.exit_code != 0
    assert message in f"{done.output}{done.exception}"


@pytest.mark.parametrize("minor", ["35", "36"])
async def test_an_api_server_of_any_version_is_followed(tmp_path, monkeypatch, minor):
    """A standby that delays its cache until it leads would never see a pod."""
    monkeypatch.setitem(VERSION, "emulationMinor", minor)
    async with shadowing(tmp_path, delayCacheUntilActive=True) as world:
        await world.create(node("a"))
        assert (await world.place(pod("web"), "a")).result == "same"


async def test_a_policy_in_a_config_map_does_not_make_it_a_candidate_for_the_lease(tmp_path):
    """The live scheduler would lose its lease to one that schedules nothing."""
    policy = {"apiVersion": "v1", "kind": "Policy", "predicates": [{"name": "PodFitsResources"}]}
    argv = ["--policy-configmap=policy", "--secure-port=0"]
    async with EmbeddedCluster() as cluster:
        data = {"metadata": {"name": "policy"}, "data": {"policy.cfg": json.dumps(policy)}}
        await cluster.api.request("POST", "/api/v1/namespaces/kube-system/configmaps", data)
        service = ShadowService(
            parse(argv).options, Registry.installed(), cluster.connection, owns_process=False
        )
        task = asyncio.create_task(service.run())
        try:
            async with asyncio.timeout(20):
                while not (service.is_synced or task.done()):
                    await asyncio.sleep(0.01)
            assert service.leader is None
            leases = await cluster.api.get_json("/apis/coordination.k8s.io/v1/leases")
            names = [each["metadata"]["name"] for each in leases["items"]]
            assert "kube-scheduler" not in names
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
