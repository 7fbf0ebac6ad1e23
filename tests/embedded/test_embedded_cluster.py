"""A whole cluster in this process: ready at once, and it does what a cluster does."""

from __future__ import annotations

import pytest

from stowplan import CycleState, Node, Plugin, Pod
from stowplan.client.errors import NotFound
from stowplan.embedded import Behaviour, NodeTemplate, embedded_cluster

V1 = "kubescheduler.config.k8s.io/v1"


def pod(name, *, cpu="100m", **spec):
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def deployment(name, replicas):
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "web:1"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def cluster():
    async with embedded_cluster(nodes=3) as made:
        yield made


async def test_it_is_ready_with_its_nodes():
    async with embedded_cluster(nodes=3) as cluster:
        assert [node["metadata"]["name"] for node in await cluster.list("Node")] == [
            "node-1",
            "node-2",
            "node-3",
        ]


async def test_a_pod_gets_a_node_and_runs(cluster):
    await cluster.create(pod("web"))
    node = await cluster.bound("web")

    async def runs():
        return (await cluster.get("Pod", "web"))["status"]["phase"] == "Running"

    await cluster.until(runs)
    assert f"Pod default/web went to {node}" in cluster.explain("web")


async def test_a_pod_that_fits_nowhere_is_told_why(cluster):
    await cluster.create(pod("giant", cpu="1000"))
    assert (await cluster.rejected("giant")).startswith("0/3 nodes are available: 3 Insufficient cpu.")
    assert "NodeResourcesFit: Insufficient cpu" in cluster.explain("giant")


async def test_a_new_node_brings_a_waiting_pod_its_place(cluster):
    await cluster.create(pod("giant", cpu="60"))
    await cluster.rejected("giant")
    await cluster.add_nodes(NodeTemplate(name="huge", cpu="64"))
    assert await cluster.bound("giant") == "huge"


async def test_a_deployment_becomes_pods_that_are_available(cluster):
    await cluster.create(deployment("web", 4))

    async def available():
        return (await cluster.get("Deployment", "web")).get("status", {}).get("availableReplicas") == 4

    await cluster.until(available, "all are available")
    assert {each["status"]["phase"] for each in await cluster.list("Pod")} == {"Running"}


async def test_plugins_of_the_test_decide():
    class LastByName(Plugin):
        def score(self, state: CycleState, pod: Pod, node: Node) -> int:
            return int(node.name.rpartition("-")[2])

    points = {"score": {"enabled": [{"name": "LastByName"}], "disabled": [{"name": "*"}]}}
    config = {"apiVersion": V1, "kind": "KubeSchedulerConfiguration", "profiles": [{"plugins": points}]}
    async with embedded_cluster(nodes=5, config=config, plugins=[LastByName]) as cluster:
        await cluster.create(pod("web"))
        assert await cluster.bound("web") == "node-5"


async def test_what_others_need_comes_first():
    later = [
        {**pod("web"), "metadata": {"name": "web", "namespace": "shop"}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
    ]
    async with embedded_cluster(manifests=later) as cluster:
        assert await cluster.bound("web", "shop") == "node-1"


async def test_time_can_run_faster():
    behaviour = Behaviour(run_seconds=60)
    async with embedded_cluster(speed=200, behaviour=behaviour) as cluster:
        await cluster.create(pod("batch", restartPolicy="Never"))

        async def ended():
            return (await cluster.get("Pod", "batch"))["status"]["phase"] == "Succeeded"

        await cluster.until(ended)


async def test_waiting_has_an_end(cluster):
    with pytest.raises(TimeoutError, match=r"pod nobody has a node: not within 0\.05 seconds"):
        await cluster.bound("nobody", seconds=0.05)


async def test_what_is_deleted_is_gone(cluster):
    await cluster.create(pod("web"))
    await cluster.bound("web")
    await cluster.delete("Pod", "web")

    async def gone():
        try:
            await cluster.get("Pod", "web")
        except NotFound:
            return True
        return False

    await cluster.until(gone)


async def test_many_writes_in_a_row_let_others_have_their_turn(cluster):
    """Memory answers at once; the scheduler must be heard meanwhile, not only at the end."""
    for number in range(500):
        await cluster.create(pod(f"web-{number}", cpu="1m"))
    assert any(each["spec"].get("nodeName") for each in await cluster.list("Pod"))


async def test_pods_of_a_dead_node_come_back_elsewhere():
    async with embedded_cluster(nodes=2, speed=300) as cluster:
        await cluster.create(deployment("web", 2))

        async def nodes():
            return [each["spec"].get("nodeName") for each in await cluster.list("Pod")]

        async def all_placed():
            return sorted(map(str, await nodes())) == ["node-1", "node-2"]

        await cluster.until(all_placed)
        cluster.kubelets.kill("node-1")

        async def moved():
            return (await nodes()).count("node-2") == 2

        await cluster.until(moved, "its pod is on the other node")


async def test_a_policy_says_that_it_was_looked_at(cluster):
    rules = [{"apiGroups": [""], "apiVersions": ["*"], "resources": ["pods"], "operations": ["*"]}]
    spec = {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": "true"}]}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"},
        "spec": spec,
    }
    await cluster.create(policy)

    async def status(generation):
        found = (await cluster.get("ValidatingAdmissionPolicy", "p")).get("status", {})
        return found if found.get("observedGeneration") == generation else None

    assert await cluster.until(lambda: status(1)) == {"observedGeneration": 1, "typeChecking": {}}
    spec["validations"] = [{"expression": "1 > 0"}]
    await cluster.apply(policy)
    assert await cluster.until(lambda: status(2)) == {"observedGeneration": 2, "typeChecking": {}}


async def test_what_belongs_to_an_object_of_a_new_kind_goes_with_it(cluster):
    """The kind is known to the garbage collector only after its object was deleted."""
    names = {"kind": "Box", "plural": "boxes", "singular": "box"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    await cluster.create(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "boxes.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": names,
                "versions": [version],
            },
        }
    )
    box = {"apiVersion": "example.com/v1", "kind": "Box"}
    (made,) = await cluster.create({**box, "metadata": {"name": "box"}})
    owner = {**box, "name": "box", "uid": made["metadata"]["uid"]}
    inside = {"name": "inside", "ownerReferences": [owner]}
    await cluster.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": inside})
    await cluster.settle()
    await cluster.delete("Box", "box")
    await cluster.wait_for("configmap/inside", "deleted", timeout=20)
