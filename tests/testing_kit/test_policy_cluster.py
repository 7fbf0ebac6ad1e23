"""The kit for tests of policies, tried on a few small policies."""

import inspect
import re
from pathlib import Path
from typing import ClassVar

import pytest

from stowplan import (
    CustomResource,
    Definition,
    Plugin,
    PluginArgs,
    Status,
    Wire,
    scale_to_max,
)
from stowplan.api.meta import ObjectMeta
from stowplan.errors import ConfigError, InputError
from stowplan.testing import a_cluster, a_node, a_pod

DEMO = Path(__file__).parents[2] / "examples" / "demo"


class TierArgs(PluginArgs):
    label: str = "tier"


class Tier(Plugin):
    """Prefers the higher number in a label."""

    args: TierArgs

    def score(self, state, pod, node):
        return int(node.labels.get(self.args.label, "0"))

    def normalize_score(self, state, pod, scores):
        return scale_to_max(scores)


class Quota(Wire, frozen=True):
    cpu: int = 0


class NodeQuota(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "nodequotas", "NodeQuota", namespaced=False)
    spec: Quota = Quota()


class Quotas(Plugin):
    """Keeps pods off nodes without a quota."""

    watches = (NodeQuota,)

    def pre_enqueue(self, pod):
        return Status.unschedulable("not today") if "later" in pod.labels else None

    def filter(self, state, pod, node):
        store = self.handle.watched(NodeQuota)
        if not store.is_served:
            return Status.unschedulable("nodequotas.example.com is not installed")
        quota = store.get(node.name)
        if quota is None or self.handle.now() > 100:
            return Status.unschedulable("node(s) had no quota")
        return None


def tiers():
    return a_cluster(Tier).node("a", labels={"tier": "10"}).node("b", labels={"tier": "5"})


def test_a_cluster_in_three_lines():
    cluster = a_cluster(Tier)
    cluster.node("a", labels={"tier": "10"}).node("b", labels={"tier": "5"})
    cluster.place("web", cpu="1").lands_on("a").has_scores("Tier", {"a": 100, "b": 50})


def test_what_is_placed_takes_room_and_what_is_decided_does_not():
    cluster = a_cluster().node("a", cpu="1")
    cluster.decide("one", cpu="1").lands_on("a")
    cluster.place("two", cpu="1").lands_on("a")
    cluster.place("three", cpu="1").stays_pending("0/1 nodes are available: 1 Insufficient cpu.")


def test_pods_that_run_take_room():
    cluster = a_cluster().node("a", cpu="2").node("b", cpu="1").pod("old", "a", cpu="2")
    cluster.decide("new", cpu="1").lands_on("b").is_rejected(
        "a", by="NodeResourcesFit", reason="Insufficient"
    )


def test_weights_and_arguments():
    cluster = a_cluster().plugin(Tier, weight=7, args={"label": "rank"})
    cluster.node("a", labels={"rank": "1"}).node("b", labels={"rank": "2"})
    outcome = cluster.decide("web").lands_on("b").has_scores("Tier", {"a": 50, "b": 100})
    assert [column.weight for column in outcome.decision.scores if column.plugin == "Tier"] == [7]


def test_default_plugins_can_be_left_out():
    cluster = a_cluster().without("NodeResourcesFit").node("a", cpu="1")
    cluster.place("web", cpu="50").lands_on("a")


def test_a_configuration_of_ones_own_with_plugins_in_files(tmp_path):
    score = "    def score(self, state, pod, node): return 7\n"
    (tmp_path / "kit_mine.py").write_text(f"from stowplan import Plugin\nclass KitMine(Plugin):\n{score}")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {"schedulerName": "mine", "plugins": {"multiPoint": {"enabled": [{"name": "KitMine"}]}}}
        ],
    }
    cluster = a_cluster(config=config, plugin_dir=tmp_path).node("a").node("b")
    cluster.decide("web", schedulerName="mine").has_scores("KitMine", {"a": 7, "b": 7})
    with pytest.raises(InputError, match="name its plugins there"):
        cluster.plugin(Tier)


def test_manifests_and_pods_they_name():
    cluster = a_cluster().add(DEMO)
    assert "worker-c1" in cluster.decide("web-4").lands_on("worker-c1").explanation


def test_plain_manifests_get_an_api_servers_defaults():
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
    room = {"status": {"allocatable": {"cpu": "1", "pods": "5"}}}
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    cluster = a_cluster().add(node | room, high | {"value": 10})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": []}}
    assert cluster.decide(pod).lands_on("a").decision.pod.namespace == "default"


def test_a_manifest_that_is_none_is_refused():
    with pytest.raises(InputError, match="is not a Kubernetes object"):
        a_cluster().add({"metadata": {}})


def test_custom_resources_as_structs_and_as_manifests():
    cluster = a_cluster(Quotas).node("a").node("b").node("c")
    cluster.add({"apiVersion": "example.com/v1", "kind": "NodeQuota", "metadata": {"name": "a"}})
    outcome = cluster.decide("web").lands_on("a")
    outcome.is_rejected("b", by="Quotas", reason="node(s) had no quota")
    cluster.add(NodeQuota(metadata=ObjectMeta(name="b")))
    cluster.decide("web").fits_on("a", "b").is_rejected("c")
    cluster.not_served(NodeQuota)
    cluster.decide("web").stays_pending("3 nodequotas.example.com is not installed")


def test_time_is_what_the_test_says():
    cluster = a_cluster(Quotas).node("a")
    cluster.add({"apiVersion": "example.com/v1", "kind": "NodeQuota", "metadata": {"name": "a"}})
    cluster.decide("web").lands_on("a")
    cluster.clock = 101.0
    cluster.decide("web").is_rejected("a", by="Quotas")


def test_a_pod_that_is_held_back_stays_pending():
    cluster = a_cluster(Quotas).node("a")
    outcome = cluster.place("web", labels={"later": ""}).stays_pending("not today")
    assert outcome.node is None
    assert list(cluster.cluster.pods()) == []


def test_the_instance_that_runs_can_be_told_what_run_would_find():
    cluster = tiers()
    cluster.instance(Tier).args = TierArgs(label="other")
    cluster.decide("web").has_scores("Tier", {"a": 0, "b": 0})


def test_an_error_of_a_plugin_is_an_outcome():
    cluster = a_cluster(Tier).node("a", labels={"tier": "ten"}).node("b")
    outcome = cluster.decide("web").fails("invalid literal for int")
    assert "node a" in outcome.explanation
    with pytest.raises(AssertionError, match="expected to land on a"):
        outcome.lands_on("a")


def test_preemption():
    cluster = a_cluster().node("a", cpu="1").pod("low", "a", cpu="1", priority=0)
    cluster.decide("high", cpu="1", priority=10).preempts("a", "low").stays_pending()


@pytest.mark.parametrize(
    ("check", "words"),
    [
        pytest.param(lambda found: found.lands_on("b", "c"), "expected to land on b or c", id="lands"),
        pytest.param(lambda found: found.stays_pending(), "expected to stay pending", id="pending"),
        pytest.param(
            lambda found: found.is_rejected("b", by="Tier", reason="x"),
            "expected to be rejected on b by Tier for 'x'",
            id="refused",
        ),
        pytest.param(lambda found: found.fits_on("a", "z"), "expected to fit on a, z", id="fits"),
        pytest.param(
            lambda found: found.has_scores("Tier", {"b": 1}),
            "expected Tier to give {'b': 1}, not {'b': 50}",
            id="scores",
        ),
        pytest.param(
            lambda found: found.scores("Nope"), "Nope gave no scores; plugins with scores:", id="nobody"
        ),
        pytest.param(lambda found: found.fails("x"), "expected an error with 'x'", id="error"),
        pytest.param(
            lambda found: found.preempts("a", "old"), "expected to preempt old on a", id="preemption"
        ),
    ],
)
def test_a_check_that_fails_shows_the_whole_explanation(check, words):
    with pytest.raises(AssertionError) as caught:
        check(tiers().decide("web"))
    text = str(caught.value)
    assert text.startswith(f"pod default/web: {words}")
    assert "Pod default/web goes to a (profile default-scheduler)." in text
    assert "It beats b by" in text


def test_nodes_and_pods_in_plain_words():
    node = a_node(
        "a", resources={"nvidia.com/gpu": "2"}, taints=["gpu=yes:NoSchedule"], annotations={"x": "y"}
    )
    assert (node.allocatable["nvidia.com/gpu"], node.metadata.annotations) == (2, {"x": "y"})
    pod = a_pod("web", resources={"nvidia.com/gpu": "1"}, tolerations=["gpu"])
    a_cluster().add(node).decide(pod).lands_on("a")
    assert a_pod("web").uid != a_pod("web").uid


class Misspelt(Plugin):
    def filter(self, state, pod, node):
        return None

    def scoer(self, state, pod, node):
        return 1


def test_a_class_is_checked_as_plugin_check_does():
    line = inspect.getsourcelines(Misspelt)[1] + 4
    with pytest.raises(ConfigError) as failed:
        a_cluster(Misspelt).node("a").place("web")
    assert f"test_policy_cluster.py:{line}: Misspelt.scoer is not an extension point" in str(failed.value)
    assert "did you mean score?" in str(failed.value)


class Looping(Plugin):
    budget = 0.02

    def _loop(self):
        while True:
            pass

    def filter(self, state, pod, node):
        if pod.name == "filter":
            self._loop()

    def reserve(self, state, pod, node_name):
        if pod.name == "reserve":
            self._loop()

    def pre_enqueue(self, pod):
        if pod.name == "pre-enqueue":
            self._loop()


@pytest.mark.parametrize("point", ["filter", "reserve", "pre-enqueue"])
def test_a_plugin_that_loops_is_interrupted(point):
    cluster = a_cluster(Looping).node("a")
    line = inspect.getsourcelines(Looping._loop)[1]
    failed = cluster.place(point).fails(
        "OfflineOverdueError: took more than 10 times its budget, in CPU time"
    )
    assert re.search(rf"test_policy_cluster\.py:{line + 1}|test_policy_cluster\.py:{line + 2}", failed.error)
    cluster.place("web").lands_on("a")


def test_a_plugin_object_has_nothing_but_what_its_author_gave_it():
    cluster = a_cluster(Looping).node("a")
    cluster.place("web").lands_on("a")
    assert vars(cluster.instance(Looping)).keys() == {"args", "handle", "serial"}


class Hold(Plugin):
    def permit(self, state, pod, node_name):
        return Status.wait(60) if "hold" in pod.labels else None


def test_pods_may_share_a_claim_for_devices():
    """It counts as allocated once the first of them is permitted."""
    devices = {
        "driver": "gpu.example.com",
        "nodeName": "n2",
        "pool": {"name": "n2", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d0"}],
    }
    cluster = a_cluster(Hold).node("n1").node("n2")
    version = {"apiVersion": "resource.k8s.io/v1"}
    cluster.add(version | {"kind": "DeviceClass", "metadata": {"name": "gpu"}})
    cluster.add(version | {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": devices})
    for name in ("shared", "other"):
        request = {"name": "one", "exactly": {"deviceClassName": "gpu"}}
        metadata, spec = {"name": name, "uid": f"uid-{name}"}, {"devices": {"requests": [request]}}
        cluster.add(version | {"kind": "ResourceClaim", "metadata": metadata, "spec": spec})
    shared, other = ([{"name": "gpu", "resourceClaimName": name}] for name in ("shared", "other"))
    first = cluster.place("first", resourceClaims=shared, labels={"hold": ""})
    waiting = cluster.place("second", resourceClaims=shared)
    assert waiting.node is None
    assert "resource claim default/shared is in the process of being allocated" in waiting.message
    first.held.allow("Hold")
    assert [cluster.place(name, resourceClaims=shared).node for name in ("second", "third")] == ["n2", "n2"]
    assert cluster.place("fourth", resourceClaims=other).node is None
