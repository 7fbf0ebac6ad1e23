"""Sticky pods on a real control plane: `stowplan run` with the plugin, its controllers and their rights."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from custom_objects import install, install_kind
from deployed import applied, rendered, scheduler

from controlplane.control_plane import SCHEDULER, ControlPlane
from controlplane.objects import NODE_TEMPLATE
from controlplane.pods import condition, placed
from controlplane.waiting import eventually
from stowplan.cli import stowplan
from stowplan.cluster import Cluster
from stowplan.deploy.rights import plugin_rights, render_role, rules
from stowplan.framework.handle import Handle
from stowplan.framework.plugin import Right
from stowplan.sticky.memory import StickyArgs, record_name
from stowplan.sticky.plugin import Sticky
from stowplan.sticky.resources import StickyJob, StickyRecord

Json = dict[str, Any]

EXAMPLES = Path(__file__).parents[2] / "examples" / "sticky"
(CONFIG,) = yaml.safe_load_all((EXAMPLES / "scheduler.yaml").read_text())
PRINTED = Path(__file__).parents[1] / "tutorials" / "printed_3" / "stickyjob-crd.yaml"
JOBS = "/apis/example.com/v1/namespaces/default/stickyjobs"
RECORDS = "/apis/example.com/v1/namespaces/default/stickyrecords"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
TEMPLATE = {
    "metadata": {"annotations": {"kubelet.stowplan/run-seconds": "3600"}},
    "spec": {
        "automountServiceAccountToken": False,
        "containers": [{"name": "main", "image": "web"}],
        "terminationGracePeriodSeconds": 0,
    },
}


def job(name: str = "job", *, replicas: int = 1, **stickiness: Any) -> Json:
    return {
        "apiVersion": "example.com/v1",
        "kind": "StickyJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": TEMPLATE, "replicas": replicas, "stickiness": stickiness},
    }


@contextmanager
def sticky_scheduler(control_plane: ControlPlane, *, but: tuple[Right, ...] = ()) -> Iterator[Any]:
    """Our scheduler with kube-scheduler's rights and those that the plugin asks for, except some."""
    plugin = Sticky(StickyArgs(), Handle(Cluster()))
    allowed = rules(right for right in plugin_rights([plugin]) if right not in but)
    user = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": SCHEDULER}
    objects = list(render_role("stowplan-tests-sticky", allowed, [user]))
    control_plane.kubectl("apply", "-f", "-", objects=objects)
    try:
        with control_plane.stowplan(profiles=CONFIG["profiles"]) as running:
            yield running
    finally:
        control_plane.kubectl("delete", "-f", "-", objects=objects)


@pytest.fixture
def definitions(control_plane):
    install_kind(control_plane, StickyJob)
    install_kind(control_plane, StickyRecord)


def status(control_plane: ControlPlane, name: str = "job") -> Json:
    return control_plane.request("GET", f"{JOBS}/{name}").get("status", {})


def conditions(control_plane: ControlPlane, name: str = "job") -> dict[str, tuple[str, str]]:
    found = status(control_plane, name).get("conditions", ())
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def events(control_plane: ControlPlane, name: str) -> dict[str, str]:
    """Reasons with their texts, of one object."""
    items = control_plane.request("GET", EVENTS)["items"]
    return {each["reason"]: each["note"] for each in items if each["regarding"]["name"] == name}


def uid(control_plane: ControlPlane, name: str) -> str:
    items = control_plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    return next((each["metadata"]["uid"] for each in items if each["metadata"]["name"] == name), "")


async def another_pod(control_plane: ControlPlane, name: str, old: str) -> None:
    await eventually(lambda: uid(control_plane, name), lambda found: found not in ("", old))


async def bound(control_plane: ControlPlane, name: str = "job-0") -> str:
    found = await eventually(lambda: placed(control_plane), lambda each: each.get(name))
    return found[name]


async def test_a_deleted_pod_comes_back_to_its_node(control_plane, definitions, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2", "n3"])
    with sticky_scheduler(control_plane):
        control_plane.kubectl("create", "-f", "-", objects=[job(replicas=2)])
        where = {name: await bound(control_plane, name) for name in ("job-0", "job-1")}
        for round_ in range(3):
            for name, node in where.items():
                old = uid(control_plane, name)
                control_plane.kubectl("delete", "pod", name)
                await another_pod(control_plane, name, old)
                assert await bound(control_plane, name) == node, round_
        await eventually(
            lambda: conditions(control_plane), lambda each: each["Sticky"] == ("True", "Returned")
        )
        found = await eventually(
            lambda: status(control_plane),
            lambda each: each["active"] == 2 and [len(slot["history"]) for slot in each["slots"]] == [3, 3],
        )
        assert found["lastNode"] == where["job-0"]
        assert [slot["lastNode"] for slot in found["slots"]] == list(where.values())
        assert [entry["outcome"] for entry in found["slots"][0]["history"][1:]] == ["Deleted"] * 2
        assert (found["active"], found["succeeded"], found["failed"]) == (2, 0, 0)
        shown = control_plane.kubectl("get", "stickyjobs").splitlines()
        assert shown[0].split() == ["NAME", "ACTIVE", "SUCCEEDED", "LAST-NODE", "STICKY", "AGE"]
        assert shown[1].split()[:5] == ["job", "2", "0", where["job-0"], "True"]
        assert "Returned" in control_plane.kubectl("describe", "stickyjob", "job")


async def test_a_scheduler_killed_between_bind_and_patch_loses_nothing(control_plane, definitions, kubelets):
    patching = next(right for right in Sticky.rights if right.resource == "stickyjobs/status")
    with sticky_scheduler(control_plane):
        control_plane.kubectl("create", "-f", "-", objects=[job(mode="Required")])
        await eventually(lambda: conditions(control_plane), bool)
        await eventually(lambda: uid(control_plane, "job-0"), bool)
    with sticky_scheduler(control_plane, but=(patching,)) as running:
        await kubelets.register(NODE_TEMPLATE, ["n1", "n2", "n3"])
        node = await bound(control_plane)
        await eventually(lambda: running.output, lambda text: "PostBind plugin failed" in text)
        running.kill()
    assert "lastNode" not in status(control_plane)
    with sticky_scheduler(control_plane):
        await eventually(lambda: status(control_plane).get("lastNode"), lambda found: found == node)
        old = uid(control_plane, "job-0")
        control_plane.kubectl("delete", "pod", "job-0")
        await another_pod(control_plane, "job-0", old)
        assert await bound(control_plane) == node


async def test_required_waits_for_a_cordoned_node_and_says_why(control_plane, definitions, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2"])
    with sticky_scheduler(control_plane):
        control_plane.kubectl("create", "-f", "-", objects=[job(mode="Required"), job("free")])
        node = await bound(control_plane)
        other = await bound(control_plane, "free-0")
        control_plane.kubectl("cordon", "n1", "n2")
        control_plane.kubectl("uncordon", "n2" if other == "n1" else "n1")
        control_plane.kubectl("cordon", node)
        old, gone = uid(control_plane, "job-0"), uid(control_plane, "free-0")
        control_plane.kubectl("delete", "pod", "job-0", "free-0")
        await another_pod(control_plane, "job-0", old)
        await another_pod(control_plane, "free-0", gone)
        found = await eventually(lambda: condition(control_plane, "job-0"), bool)
        assert found["message"].startswith(
            "0/2 nodes are available: 1 node(s) didn't satisfy plugin(s) [Sticky], "
            "1 node(s) were unschedulable."
        )
        await eventually(
            lambda: conditions(control_plane), lambda each: each["Degraded"] == ("True", "NodeUnschedulable")
        )
        control_plane.kubectl("uncordon", node)
        assert await bound(control_plane) == node
        await eventually(lambda: conditions(control_plane), lambda each: each["Degraded"][0] == "False")


async def test_preferred_moves_from_a_cordoned_node(control_plane, definitions, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2"])
    with sticky_scheduler(control_plane):
        control_plane.kubectl("create", "-f", "-", objects=[job()])
        node = await bound(control_plane)
        control_plane.kubectl("cordon", node)
        old = uid(control_plane, "job-0")
        control_plane.kubectl("delete", "pod", "job-0")
        await another_pod(control_plane, "job-0", old)
        assert await bound(control_plane) != node
        await eventually(lambda: conditions(control_plane), lambda each: each["Sticky"] == ("False", "Moved"))
        assert f"was on node {node}" in events(control_plane, "job")["Moved"]


async def test_pods_stick_by_annotation(control_plane, definitions, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2", "n3"])
    annotations = {"sticky.example.com/key": "Cache of web/0"}
    with sticky_scheduler(control_plane):
        where = []
        for name in ("a", "b", "c"):
            made = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "default", "annotations": annotations},
                "spec": {**TEMPLATE["spec"], "schedulerName": "sticky-scheduler"},
            }
            control_plane.kubectl("create", "-f", "-", objects=[made])
            where.append(await bound(control_plane, name))
            control_plane.kubectl("delete", "pod", name)
        assert len(set(where)) == 1
        record = control_plane.request("GET", f"{RECORDS}/{record_name('Cache of web/0')}")
        assert (record["spec"]["key"], record["spec"]["lastNode"]) == ("Cache of web/0", where[0])
        ended = await eventually(
            lambda: control_plane.request("GET", f"{RECORDS}/{record['metadata']['name']}")["spec"][
                "history"
            ][0],
            lambda head: "finishedAt" in head,
        )
        assert ended["outcome"] == "Deleted"


async def test_pods_of_a_stateful_set_stick_by_their_number(control_plane, definitions, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2", "n3"])
    control_plane.kubectl("apply", f"--filename={EXAMPLES / 'statefulset.yaml'}")
    found = control_plane.request("GET", "/apis/apps/v1/namespaces/default/statefulsets/models")
    owner = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "models",
        "uid": found["metadata"]["uid"],
        "controller": True,
    }
    template = found["spec"]["template"]
    with sticky_scheduler(control_plane):
        where = []
        for _ in range(3):  # what the controller of StatefulSets does, which does not run here
            made = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": "models-1",
                    "namespace": "default",
                    "labels": template["metadata"]["labels"] | {"apps.kubernetes.io/pod-index": "1"},
                    "annotations": template["metadata"]["annotations"],
                    "ownerReferences": [owner],
                },
                "spec": {**template["spec"], **TEMPLATE["spec"]},
            }
            control_plane.kubectl("create", "-f", "-", objects=[made])
            where.append(await bound(control_plane, "models-1"))
            control_plane.kubectl("delete", "pod", "models-1")
        assert len(set(where)) == 1
        (record,) = control_plane.request("GET", RECORDS)["items"]
        assert record["spec"]["key"] == "StatefulSet/models/1"
        assert [each["uid"] for each in record["metadata"]["ownerReferences"]] == [owner["uid"]]


async def test_the_rights_that_manifests_render_are_enough(control_plane, kubelets, tmp_path):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2", "n3"])
    with applied(control_plane, rendered(EXAMPLES / "scheduler.yaml"), tmp_path) as objects:
        process = scheduler(control_plane, objects, tmp_path)
        process.start()
        try:
            control_plane.kubectl("apply", f"--filename={EXAMPLES / 'stickyjob.yaml'}")
            node = await bound(control_plane, "cache-0")
            old = uid(control_plane, "cache-0")
            control_plane.kubectl("delete", "pod", "cache-0")
            await another_pod(control_plane, "cache-0", old)
            assert await bound(control_plane, "cache-0") == node
            await eventually(
                lambda: conditions(control_plane, "cache"),
                lambda each: each["Sticky"] == ("True", "Returned"),
            )
            control_plane.kubectl("apply", f"--filename={EXAMPLES / 'pods.yaml'}")
            await eventually(lambda: control_plane.request("GET", RECORDS)["items"], bool)
            await eventually(lambda: events(control_plane, "cache"), lambda each: "Returned" in each)
            assert "forbidden" not in process.output
        finally:
            process.stop()


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        pytest.param(
            {"template": {**TEMPLATE, "metadata": {"labels": {"a": 1}}}}, "labels.a: Invalid", id="labels"
        ),
        pytest.param({}, "spec.template: Required value", id="no template"),
        pytest.param(
            {"template": {"spec": {}}}, "spec.template.spec.containers: Required", id="no containers"
        ),
        pytest.param(
            {"template": TEMPLATE, "replicas": -1}, "spec.replicas: Invalid", id="fewer than no pods"
        ),
        pytest.param(
            {"template": TEMPLATE, "stickiness": {"mode": "Hard"}},
            "mode: Unsupported value",
            id="no such mode",
        ),
        pytest.param(
            {"template": TEMPLATE, "stickiness": {"historyLimit": 11}}, "historyLimit: Invalid", id="history"
        ),
    ],
)
def test_the_schema_refuses(control_plane, definitions, spec, fault):
    with pytest.raises(subprocess.CalledProcessError) as refused:
        control_plane.kubectl("create", "-f", "-", objects=[{**job(), "spec": spec}])
    assert fault in refused.value.stderr


async def test_the_tutorials_definition_is_told_of_and_replaced(control_plane, kubelets):
    await kubelets.register(NODE_TEMPLATE, ["n1", "n2", "n3"])
    (printed,) = yaml.safe_load_all(PRINTED.read_text())
    install(control_plane, printed)
    with sticky_scheduler(control_plane):
        plain = {**job(), "spec": {"template": TEMPLATE}}
        with pytest.raises(subprocess.CalledProcessError) as refused:
            control_plane.kubectl("apply", "-f", "-", objects=[plain])
        assert 'unknown field "spec.template.spec"' in refused.value.stderr
        # Who does not ask for what is unknown to be refused, loses it without a word.
        control_plane.kubectl("apply", "--validate=false", "-f", "-", objects=[plain])
        told = await eventually(lambda: events(control_plane, "job"), lambda each: "TemplateMissing" in each)
        assert "stowplan crd Sticky | kubectl apply -f -" in told["TemplateMissing"]
        assert placed(control_plane) == {}
        ours = CliRunner().invoke(stowplan, ["crd", "Sticky"])
        assert ours.exit_code == 0, ours.output
        control_plane.kubectl("apply", "-f", "-", objects=list(yaml.safe_load_all(ours.stdout)))
        await eventually(
            lambda: conditions(control_plane),
            lambda each: each.get("Degraded") == ("True", "TemplateMissing"),
        )
        control_plane.kubectl("apply", "-f", "-", objects=[plain])
        node = await bound(control_plane)
        await eventually(lambda: status(control_plane).get("lastNode"), lambda found: found == node)
        old = uid(control_plane, "job-0")
        control_plane.kubectl("delete", "pod", "job-0")
        await another_pod(control_plane, "job-0", old)
        assert await bound(control_plane) == node
