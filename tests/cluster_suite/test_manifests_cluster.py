"""Rendered manifests on a real control plane: taken by the API server, and enough to schedule with."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from deployed import applied, mount, process_of, rendered, scheduler
from test_page_cluster import asked, page

from controlplane.control_plane import ADMIN, NOBODY, SCHEDULER, ControlPlane, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import PODS, add_nodes, condition, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

Json = dict[str, Any]

CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: ours
"""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/stowplan/leases/stowplan"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CLAIMS, VOLUMES = "/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/persistentvolumes"
RESOURCE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def deployed(control_plane: ControlPlane, config: Path, tmp_path: Path) -> Iterator[Process]:
    """The scheduler at work with the rendered rights; in the end nothing may have been forbidden to it."""
    with applied(control_plane, rendered(config), tmp_path) as objects:
        process = scheduler(control_plane, objects, tmp_path)
        process.start()
        try:
            yield process
        finally:
            process.stop()
    assert "orbidden" not in process.output
    assert process.exit_status == 0


def ours(name: str, **spec: Any) -> Json:
    return pod(name, schedulerName="ours", **spec)


async def bound(control_plane: ControlPlane, name: str) -> str:
    found = await eventually(lambda: placed(control_plane), lambda each: bool(each.get(name)))
    return found[name]


def reasons(control_plane: ControlPlane) -> set[tuple[str, str]]:
    return {
        (each["regarding"]["name"], each["reason"]) for each in control_plane.request("GET", EVENTS)["items"]
    }


def can(control_plane: ControlPlane, *question: str) -> str:
    """Kubectl's yes; its no is an error."""
    try:
        return control_plane.kubectl(*question, user=NOBODY).strip()
    except subprocess.CalledProcessError:
        return "no"


# What the API server says to them


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="a namespace of its own"),
        pytest.param(("--namespace=kube-system", "--name=packer", "--replicas=1"), id="in kube-system"),
        pytest.param(("--journal",), id="a journal"),
        pytest.param(("--journal-claim=decisions", "--replicas=1"), id="a journal in a claim"),
    ],
)
def test_the_api_server_takes_them(control_plane, config, tmp_path, options):
    text = rendered(config, *options)
    path = tmp_path / "rendered.yaml"
    path.write_text(text)
    documents = list(yaml.safe_load_all(text))
    for each in documents:
        if each["kind"] == "Namespace":
            create(control_plane, each)  # or a dry run finds none for what is to be in it
    tried = control_plane.kubectl("apply", "--dry-run=server", "--validate=strict", f"--filename={path}")
    assert len(tried.splitlines()) == len(documents)
    with applied(control_plane, text, tmp_path):
        again = control_plane.kubectl("apply", f"--filename={path}").splitlines()
        assert [line for line in again if not line.endswith(("unchanged", "configured"))] == []
        assert control_plane.kubectl("diff", f"--filename={path}") == ""


@pytest.mark.parametrize("options", [(), ("--journal",)], ids=["alone", "a journal"])
def test_the_api_server_takes_the_static_pod(control_plane, tmp_path, options):
    path = tmp_path / "config.yaml"
    path.write_text(f"{CONFIG}clientConnection: {{kubeconfig: /etc/kubernetes/scheduler.conf}}\n")
    (tmp_path / "pod.yaml").write_text(rendered(path, "--static-pod", *options))
    said = control_plane.kubectl("apply", "--dry-run=server", f"--filename={tmp_path / 'pod.yaml'}")
    assert said == "pod/kube-scheduler created (server dry run)\n"


# With the rendered rights and no others


async def test_it_leads_schedules_and_tells(control_plane, deployed):
    add_nodes(control_plane, node("n1"))
    create(control_plane, ours("p"), ours("big", requests={"cpu": "100"}), pod("theirs"))
    assert await bound(control_plane, "p") == "n1"
    why = await eventually(lambda: condition(control_plane, "big"), bool)
    assert "Insufficient cpu" in why["message"]
    wanted = {("p", "Scheduled"), ("big", "FailedScheduling")}
    await eventually(lambda: reasons(control_plane), lambda found: wanted <= found)
    assert placed(control_plane)["theirs"] == ""
    assert control_plane.request("GET", LEASE)["spec"]["holderIdentity"]
    told = control_plane.request("GET", "/api/v1/namespaces/stowplan/events")["items"]
    # The API server may write events of its own, about the address of the service.
    own = [each for each in told if each["involvedObject"]["kind"] == "Lease"]
    assert [each["reason"] for each in own] == ["LeaderElection"]
    status, page = ask(deployed.server, "/metrics", token_of(ADMIN))
    assert (status, "scheduler_schedule_attempts_total" in page) == (200, True)
    assert ask(deployed.server, "/metrics")[0] == 403


async def test_people_with_the_role_for_it_see_the_page(control_plane, deployed, tmp_path):
    add_nodes(control_plane, node("n1"))
    create(control_plane, ours("p"))
    assert await bound(control_plane, "p") == "n1"
    documented = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    (command,) = re.findall(r"^kubectl (create clusterrolebinding .*)$", documented, re.MULTILINE)
    words = command.replace("jane", NOBODY).split()
    stranger = control_plane.kubectl("create", "token", "stowplan", "--namespace=stowplan").strip()
    control_plane.kubectl(*words)
    try:
        may = ("auth", "can-i", "get", "/page/")
        await eventually(lambda: can(control_plane, *may), lambda said: said == "yes")
        with page(deployed.server, control_plane.kubeconfig(NOBODY), tmp_path / "page.log") as link:
            _, told = asked(link, "api/decisions?pod=default%2Fp")
            assert told["decision"]["node"] == "n1"
            status, found = asked(link, "api/what-if", {"lose": ["n1"]})
            assert status == 200, found
            assert [each["outcome"] for each in found["pods"]] == ["gone"]
        paths = ("/page", "/debug/decisions", "/metrics", "/metrics/resources", "/configz")
        given = {path: ask(deployed.server, path, token_of(NOBODY))[0] for path in paths}
        assert given == dict.fromkeys(paths, 200) | {"/configz": 403}
        assert {ask(deployed.server, path, stranger)[0] for path in ("/page/", *paths)} == {403}
    finally:
        control_plane.kubectl("delete", *words[1:3])


async def test_its_journal_is_where_the_volume_is(control_plane, config, tmp_path):
    add_nodes(control_plane, node("n1"))
    with applied(control_plane, rendered(config, "--journal"), tmp_path) as objects:
        process = scheduler(control_plane, objects, tmp_path)
        process.start()
        try:
            create(control_plane, ours("p"))
            assert await bound(control_plane, "p") == "n1"
        finally:
            process.stop()
    (file,) = (tmp_path / "journal").glob("*.parquet")
    assert pq.read_table(file)["pod"].to_pylist() == ["default/p"]


async def test_it_preempts(control_plane, deployed):
    add_nodes(control_plane, node("n1"))
    urgent = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    filling = {"requests": {"cpu": "4"}, "terminationGracePeriodSeconds": 0}
    create(control_plane, urgent, pod("victim", nodeName="n1", **filling))
    create(control_plane, ours("high", requests={"cpu": "3"}, priorityClassName="urgent"))
    assert await bound(control_plane, "high") == "n1"
    assert "victim" not in placed(control_plane)
    await eventually(lambda: reasons(control_plane), lambda found: ("victim", "Preempted") in found)


async def test_it_binds_volumes(control_plane, deployed):
    add_nodes(control_plane, node("n1"), node("n2"))
    local = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}
    create(
        control_plane,
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "late"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "disk"},
            "spec": {
                "capacity": {"storage": "5Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "late",
                "local": {"path": "/disk"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [local]}},
            },
        },
        claim_of("data", "late"),
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "made"},
            "provisioner": "example.com/disk",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        claim_of("to-be-made", "made"),
    )
    control_plane.request("PATCH", f"{VOLUMES}/disk/status", {"status": {"phase": "Available"}})
    create(control_plane, ours("p", volumes=[volume_of("data")]))
    create(control_plane, ours("q", volumes=[volume_of("to-be-made")]))
    await eventually(
        lambda: control_plane.request("GET", f"{VOLUMES}/disk")["spec"].get("claimRef", {}),
        lambda found: found.get("name") == "data",
    )
    found = await eventually(
        lambda: control_plane.request("GET", f"{CLAIMS}/to-be-made")["metadata"].get("annotations", {}), bool
    )
    assert found["volume.kubernetes.io/selected-node"] in ("n1", "n2")
    control_plane.request("DELETE", f"{PODS}/q", {"gracePeriodSeconds": 0})  # nobody makes its volume
    done = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    change = {"metadata": {"annotations": done}, "spec": {"volumeName": "disk"}}
    control_plane.request("PATCH", f"{CLAIMS}/data", change)
    control_plane.request("PATCH", f"{CLAIMS}/data/status", {"status": {"phase": "Bound"}})
    assert await bound(control_plane, "p") == "n2"


def claim_of(name: str, storage_class: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def volume_of(claim: str) -> Json:
    return {"name": "data", "persistentVolumeClaim": {"claimName": claim}}


async def test_it_hands_out_devices(control_plane, deployed):
    add_nodes(control_plane, node("n1"), node("n2"))
    create(
        control_plane,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "gpu"},
            "spec": {
                "selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}],
                "extendedResourceName": "example.com/gpu",
            },
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "of-n2"},
            "spec": {
                "driver": "gpu.example.com",
                "nodeName": "n2",
                "pool": {"name": "n2", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}],
            },
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "one", "namespace": "default"},
            "spec": {
                "devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu", "count": 1}}]}
            },
        },
    )
    create(control_plane, ours("a", resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}]))
    assert await bound(control_plane, "a") == "n2"
    assert control_plane.request("GET", f"{RESOURCE_CLAIMS}/one")["status"]["allocation"]
    extended = ours("b", requests={"cpu": "1", "example.com/gpu": "1"})
    extended["spec"]["containers"][0]["resources"]["limits"] = {"example.com/gpu": "1"}
    if int(control_plane.request("GET", "/version")["minor"]) >= 36:  # DRAExtendedResource is on
        create(control_plane, extended)
        assert await bound(control_plane, "b") == "n2"


# With plugins in files

PLUGIN = '''\
"""Votes: prefers the nodes that objects of its kind vote for."""

from typing import ClassVar

from stowplan import CustomResource, Definition, Node, Plugin, Wire


class VoteSpec(Wire, frozen=True):
    node: str = ""


class Vote(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "votes", "Vote", namespaced=False)
    spec: VoteSpec = VoteSpec()


class Votes(Plugin):
    watches = (Vote,)

    def score(self, state, pod, node: Node) -> int:
        return 100 if any(vote.spec.node == node.name for vote in self.handle.watched(Vote)) else 0
'''


async def test_a_plugin_is_updated_by_its_config_map(control_plane, config, tmp_path):
    config.write_text(f"{CONFIG}  plugins: {{multiPoint: {{enabled: [{{name: Votes, weight: 50}}]}}}}\n")
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/votes.py").write_text(PLUGIN)
    text = rendered(config, f"--plugin-dir={tmp_path / 'plugins'}")
    add_nodes(control_plane, node("n1"), node("n2"))
    with applied(control_plane, text, tmp_path) as objects:
        vote = {"apiVersion": "example.com/v1", "kind": "Vote", "metadata": {"name": "v"}}
        control_plane.kubectl("wait", "--for=condition=Established", "crd/votes.example.com")
        create(control_plane, vote | {"spec": {"node": "n2"}})
        process = scheduler(control_plane, objects, tmp_path)
        process.start()
        try:
            # Not before the kind is watched, which takes a moment after the start.
            await eventually(lambda: process.output, lambda said: "Starting to schedule" in said)
            create(control_plane, ours("before"))
            assert await bound(control_plane, "before") == "n2"
            data = next(each["data"] for each in objects if each["kind"] == "ConfigMap")
            mounted = {
                path.name: path.read_text() for path in (tmp_path / "mounted").iterdir() if path.is_file()
            }
            assert mounted.keys() == data.keys()
            turned = PLUGIN.replace("return 100 if any", "return 0 if any").replace("else 0", "else 100")
            mount(tmp_path / "mounted", mounted | {"votes.py": turned})
            await eventually(lambda: process.output, lambda said: "reloaded" in said)
            create(control_plane, ours("after"))
            assert await bound(control_plane, "after") == "n1"
        finally:
            process.stop()
    assert "orbidden" not in process.output


async def test_plugins_with_kinds_and_controllers_have_the_rights_they_need(control_plane, config, tmp_path):
    names = ("sticky.plugin:Sticky", "plugins.community.node_crd_resource_fit:NodeCRDResourceFit")
    enabled = [{"name": f"stowplan.{name}"} for name in names]
    config.write_text(f"{CONFIG}  plugins: {json.dumps({'multiPoint': {'enabled': enabled}})}\n")
    add_nodes(control_plane, node("n1"))
    with applied(control_plane, rendered(config), tmp_path) as objects:
        control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all")
        offer = {"apiVersion": "scheduling.sigs.k8s.io/v1alpha1", "kind": "ClusterScopedResource"}
        amounts = {"resourcesFilter": {"cpu": True}, "resourcesScore": {"cpu": 50}}
        job = {"apiVersion": "example.com/v1", "kind": "StickyJob"}
        template = {"spec": ours("unnamed", requests={"cpu": "1"})["spec"]}
        create(
            control_plane,
            offer | {"metadata": {"name": "n1"}, "spec": amounts},
            job | {"metadata": {"name": "job", "namespace": "default"}, "spec": {"template": template}},
        )
        process = scheduler(control_plane, objects, tmp_path)
        process.start()
        try:
            found = await eventually(lambda: placed(control_plane), lambda each: any(each.values()))
            assert set(found.values()) == {"n1"}
            where = "/apis/example.com/v1/namespaces/default/stickyjobs/job"
            status = await eventually(
                lambda: control_plane.request("GET", where).get("status", {}),
                lambda each: each.get("lastNode") == "n1",
            )
            assert status
        finally:
            process.stop()
    assert "orbidden" not in process.output


# In the place of kube-scheduler

KUBEADM = Path(__file__).parent / "kubeadm-kube-scheduler.yaml"
"""What kubeadm writes, with the changes that the first tutorial names: image, --config, volume and mount."""


async def test_a_manifest_of_kubeadm_with_the_tutorials_changes_starts_it(control_plane, tmp_path):
    (manifest,) = yaml.safe_load_all(KUBEADM.read_text())
    (container,) = manifest["spec"]["containers"]
    etc = tmp_path / "etc-kubernetes"
    etc.mkdir()
    (etc / "scheduler.conf").write_bytes(control_plane.kubeconfig(SCHEDULER).read_bytes())
    (etc / "networktraffic-config.yaml").write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\n"
        "kind: KubeSchedulerConfiguration\n"
        "clientConnection:\n"
        f"  kubeconfig: {etc / 'scheduler.conf'}\n"
    )
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert mounts == {each["hostPath"]["path"] for each in manifest["spec"]["volumes"]}
    assert {word.partition("=")[2] for word in container["command"] if "=/etc/" in word} <= mounts
    process = process_of(container, {"/etc/kubernetes": etc}, tmp_path)
    add_nodes(control_plane, node("n1"))
    process.start()
    try:
        create(control_plane, pod("p"))
        assert await bound(control_plane, "p") == "n1"
        paths = {
            container[probe]["httpGet"]["path"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        }
        assert {path: ask(process.server, path)[0] for path in paths} == dict.fromkeys(paths, 200)
    finally:
        process.stop()
    assert process.exit_status == 0


async def test_the_rendered_static_pod_starts_it(control_plane, tmp_path):
    etc = tmp_path / "etc-kubernetes"
    (etc / "stowplan").mkdir(parents=True)
    (etc / "scheduler.conf").write_bytes(control_plane.kubeconfig(SCHEDULER).read_bytes())
    path = etc / "stowplan/config.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\n"
        "kind: KubeSchedulerConfiguration\n"
        "clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}\n"
    )
    (manifest,) = yaml.safe_load_all(rendered(path, "--static-pod"))
    path.write_text(path.read_text().replace("/etc/kubernetes", str(etc)))
    (container,) = manifest["spec"]["containers"]
    process = process_of(container, {"/etc/kubernetes": etc}, tmp_path)
    add_nodes(control_plane, node("n1"))
    process.start()
    try:
        create(control_plane, pod("p"))
        assert await bound(control_plane, "p") == "n1"
        assert control_plane.request("GET", f"{PODS}/p")["spec"]["schedulerName"] == "default-scheduler"
    finally:
        process.stop()
