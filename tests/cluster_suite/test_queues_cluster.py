"""Queues and quotas on a real control plane, with no more rights than `stowplan manifests` grants."""

from __future__ import annotations

import subprocess
import sys
import urllib.error

import pytest

from controlplane.control_plane import SCHEDULER
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.process import wait_until
from controlplane.waiting import eventually
from stowplan.api.group_crds import PUBLISHED
from stowplan.deploy.rights import plugin_rights, render_role, rules
from stowplan.plugins.community.capacity_scheduling import CapacityScheduling
from stowplan.plugins.community.coscheduling import Coscheduling
from stowplan.plugins.community.volcano_queue import VolcanoQueue

VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"
QUOTAS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/elasticquotas"
PLUGINS = (Coscheduling, CapacityScheduling, VolcanoQueue)
PROFILE = {
    "plugins": {
        "multiPoint": {"enabled": [{"name": each.__name__} for each in PLUGINS]},
        "queueSort": {"disabled": [{"name": "*"}], "enabled": [{"name": "VolcanoQueue"}]},
        "postFilter": {"disabled": [{"name": "DefaultPreemption"}]},
    },
    "pluginConfig": [{"name": "VolcanoQueue", "args": {"policy": "capacity"}}],
}


@pytest.fixture
def plane(control_plane, tmp_path):
    """The kinds are installed, and the scheduler may use them."""
    command = [sys.executable, "-m", "stowplan.cli", "crd", *PUBLISHED]
    definitions = tmp_path / "crds.yaml"
    definitions.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    control_plane.kubectl("apply", "-f", str(definitions))
    control_plane.kubectl("wait", "--for=condition=Established", *(f"crd/{name}" for name in PUBLISHED))
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": SCHEDULER}]
    for item in render_role("queues", rules(plugin_rights(PLUGINS)), subjects):
        path = f"/apis/{item['apiVersion']}/{item['kind'].lower()}s"
        try:
            control_plane.request("POST", path, item)
        except urllib.error.HTTPError as error:
            if error.code != 409:  # from the test before
                raise
    for path in (f"{VOLCANO}/podgroups", f"{VOLCANO}/queues", QUOTAS):
        wait_until(lambda path=path: is_served(control_plane, path), lambda: "not served", seconds=30)
        for each in control_plane.request("GET", path)["items"]:
            meta = each["metadata"]
            scope = f"{VOLCANO}/namespaces/{meta['namespace']}/podgroups" if "podgroups" in path else path
            control_plane.request("DELETE", f"{scope}/{meta['name']}")
    return control_plane


def is_served(plane, path):
    try:
        return "items" in plane.request("GET", path)
    except urllib.error.HTTPError:
        return False


def of_volcano(kind, name, **spec):
    version = "scheduling.volcano.sh/v1beta1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def task(name, group="g", cpu="1"):
    plain = pod(name, requests={"cpu": cpu})
    plain["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}
    return plain


def phase_of(plane, name="g"):
    group = plane.request("GET", f"{VOLCANO}/namespaces/default/podgroups/{name}")
    return (group.get("status") or {}).get("phase")


def bound(plane):
    return {name for name, node_name in placed(plane).items() if node_name}


def notes(plane, name):
    items = plane.request("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [each["note"] for each in items if each["regarding"]["name"] == name]


async def test_groups_are_admitted_to_queues_and_placed(plane):
    groups = f"{VOLCANO}/namespaces/default/podgroups"
    add_nodes(plane, node("n1"))
    with plane.stowplan(profiles=[PROFILE]):
        plane.request("POST", f"{VOLCANO}/queues", of_volcano("Queue", "q", capability={"cpu": "2"}))
        plane.request("POST", groups, of_volcano("PodGroup", "g", minMember=2, queue="q"))
        huge = of_volcano("PodGroup", "huge", minMember=1, queue="q", minResources={"cpu": "3"})
        plane.request("POST", groups, huge)
        await eventually(lambda: phase_of(plane), lambda phase: phase == "Inqueue")
        await eventually(
            lambda: notes(plane, "huge"),
            lambda found: "queue resource quota insufficient: insufficient cpu" in found,
        )
        assert phase_of(plane, "huge") in (None, "", "Pending")
        create(plane, task("p0"), task("p1"), task("p2"))
        await eventually(lambda: bound(plane), lambda found: len(found) == 2)
        (short,) = {"p0", "p1", "p2"} - bound(plane)
        text = 'queue "q" has no room; cpu: used 2, requested 1, limit 2'
        await eventually(lambda: condition(plane, short), lambda found: found and text in found["message"])
        path = f"{VOLCANO}/queues/q"
        await eventually(
            lambda: (plane.request("GET", path).get("status") or {}).get("allocated"),
            lambda found: found == {"cpu": "2", "pods": "2"},
        )
        group = plane.request("GET", f"{groups}/g")
        assert group["status"]["conditions"][0]["type"] == "Scheduled"


async def test_a_quota_limits_its_namespace(plane):
    add_nodes(plane, node("n1"))
    quota = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "ElasticQuota",
        "metadata": {"name": "q"},
        "spec": {"min": {"cpu": "2"}, "max": {"cpu": "2"}},
    }
    with plane.stowplan(profiles=[PROFILE]):
        plane.request("POST", QUOTAS, quota)
        await eventually(lambda: plane.request("GET", QUOTAS)["items"], bool)
        create(plane, pod("first", requests={"cpu": "1500m"}))
        await eventually(lambda: bound(plane), lambda found: "first" in found)
        create(plane, pod("second", requests={"cpu": "1"}))
        text = "is rejected in PreFilter because ElasticQuota default is more than Max"
        await eventually(lambda: condition(plane, "second"), lambda found: found and text in found["message"])
