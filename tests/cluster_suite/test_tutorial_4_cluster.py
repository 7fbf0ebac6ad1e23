"""The fourth tutorial on a real control plane, as printed: pods that no scheduler places, and its Policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually
from other_extender import other_extender

PRINTED = Path(__file__).parents[1] / "tutorials" / "printed_4"
NODES = ("master-node", "worker-node1", "worker-node2")


def kubectl_create(control_plane: ControlPlane, name: str) -> str:
    return control_plane.kubectl("create", f"--filename={PRINTED / name}")


def bind(control_plane: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stowplan.cli", "bind", *arguments]
    reached = f"--kubeconfig={control_plane.kubeconfig()}"
    return subprocess.run([*command, reached], capture_output=True, text=True, timeout=60, check=False)


def refusal(control_plane: ControlPlane, name: str) -> str:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        kubectl_create(control_plane, name)
    return refused.value.stderr


async def test_a_pod_with_a_node_name_needs_no_scheduler(control_plane, kubelets):
    add_nodes(control_plane, *map(node, NODES))
    kubectl_create(control_plane, "assigned-pod.yaml")
    assert placed(control_plane) == {"assigned-pod": "worker-node2"}
    await eventually(
        lambda: control_plane.kubectl("get", "pod", "assigned-pod", "--no-headers"),
        lambda text: "Running" in text,
    )


async def test_a_pod_of_nobody_waits_until_someone_creates_its_binding(control_plane, kubelets):
    add_nodes(control_plane, *map(node, NODES))
    assert "NotFound" in refusal(control_plane, "binding.yaml")
    with control_plane.stowplan():
        kubectl_create(control_plane, "unassigned-pod.yaml")
        create(control_plane, pod("witness"))
        await eventually(
            lambda: placed(control_plane), lambda each: each["witness"]
        )  # the scheduler is at work
        pending = control_plane.kubectl("get", "pods", "--field-selector=spec.nodeName=")
        assert "unassigned-pod   0/1     Pending" in pending
        assert "created" in kubectl_create(control_plane, "binding.yaml")
        assert placed(control_plane)["unassigned-pod"] == "worker-node2"
        await eventually(
            lambda: control_plane.kubectl("get", "pod", "unassigned-pod", "--no-headers"),
            lambda text: "Running" in text,
        )
        assert "Conflict" in refusal(control_plane, "binding.yaml")


async def test_the_api_servers_answers_to_a_binding(control_plane):
    """404 before the pod is there, 201 once, 409 twice."""
    add_nodes(control_plane, *map(node, NODES))
    body = yaml.safe_load((PRINTED / "binding.yaml").read_text())
    path = "/api/v1/namespaces/default/bindings"

    def answered() -> int:
        try:
            return control_plane.request("POST", path, body).get("code", 201)
        except HTTPError as error:
            return error.code

    codes = [answered()]
    kubectl_create(control_plane, "unassigned-pod.yaml")
    codes += [answered(), answered()]
    assert codes == [404, 201, 409]


async def test_stowplan_bind_looks_first(control_plane):
    add_nodes(control_plane, *map(node, NODES))
    assert 'pods "unassigned-pod" not found' in bind(control_plane, "unassigned-pod", "worker-node2").stderr
    kubectl_create(control_plane, "unassigned-pod.yaml")
    control_plane.kubectl("cordon", "worker-node1")
    refused = bind(control_plane, "unassigned-pod", "worker-node1")
    assert refused.returncode == 1
    assert "NodeUnschedulable: node(s) were unschedulable" in refused.stderr
    assert placed(control_plane) == {"unassigned-pod": ""}
    done = bind(control_plane, "unassigned-pod", "worker-node2")
    assert (done.returncode, done.stdout) == (0, "pod default/unassigned-pod bound to worker-node2\n")
    assert placed(control_plane) == {"unassigned-pod": "worker-node2"}
    again = bind(control_plane, "unassigned-pod", "worker-node1", "--force")
    assert again.returncode == 1
    assert "is already assigned to node" in again.stderr
    create(control_plane, pod("large", requests={"cpu": "64"}))
    assert "NodeResourcesFit: Insufficient cpu" in bind(control_plane, "large", "worker-node2").stderr
    assert bind(control_plane, "large", "worker-node2", "--force").returncode == 0
    assert placed(control_plane)["large"] == "worker-node2"


VERB = "my_new_priorities/image_score"


def image_score(body):
    names = [item["metadata"]["name"] for item in body["Nodes"]["items"]]
    return [{"Host": name, "Score": int(name == "worker-node2")} for name in names]


def create_policy(control_plane: ControlPlane, url: str) -> str:
    """Create the ConfigMap that config.yaml names, with the printed Policy; the extender is at `url`."""
    policy = json.loads((PRINTED / "policy.json").read_text())
    policy["extenders"][0]["urlPrefix"] = url
    name = yaml.safe_load((PRINTED / "config.yaml").read_text())["algorithmSource"]["policy"]["configMap"][
        "name"
    ]
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}}
    create(control_plane, {**config_map, "data": {"policy.cfg": json.dumps(policy)}})
    return name


async def test_the_printed_flags_work_outside_of_a_pod(control_plane, tmp_path):
    """--config with the printed file, which has no clientConnection, and --kubeconfig beside it."""
    add_nodes(control_plane, *map(node, NODES))
    program = Path(sys.executable).parent / "kube-scheduler"
    flags = [f"--config={PRINTED / 'config.yaml'}", f"--kubeconfig={control_plane.kubeconfig()}"]
    flags += ["--leader-elect=false", "--secure-port=0"]
    with other_extender(**{VERB: image_score}) as other:
        name = create_policy(control_plane, other.url)
        scheduler = Process(
            [program, *flags], tmp_path / "log", lambda: "Starting to schedule" in scheduler.output
        )
        try:
            scheduler.start()
            create(control_plane, pod("p", schedulerName="extended-scheduler"))
            found = await eventually(lambda: placed(control_plane), lambda each: each["p"])
            assert found == {"p": "worker-node2"}
        finally:
            scheduler.stop()
            control_plane.kubectl("delete", f"configmap/{name}")
    (warning,) = [line for line in scheduler.output.splitlines() if line.startswith("W")]
    assert "converted from componentconfig/v1alpha1 (Kubernetes 1.11 and before) to v1" in warning


async def test_the_extender_of_the_printed_policy_is_called(control_plane):
    """By the v1alpha1 file, which finds the Policy in a ConfigMap; only the extender's address is another."""
    add_nodes(control_plane, *map(node, NODES))
    with other_extender(**{VERB: image_score}) as other:
        config = yaml.safe_load((PRINTED / "config.yaml").read_text())
        name = create_policy(control_plane, other.url)
        role = f"--resource-name={name}", "--resource=configmaps", "--verb=get"
        control_plane.kubectl("create", "role", "policy-reader", *role)
        bound = "--role=policy-reader", "--user=system:kube-scheduler"
        control_plane.kubectl("create", "rolebinding", "policy-reader", *bound)
        try:
            with control_plane.stowplan("-v=5", **config) as scheduler:
                create(control_plane, pod("p", schedulerName="extended-scheduler"))
                found = await eventually(lambda: placed(control_plane), lambda each: each["p"])
                assert found == {"p": "worker-node2"}
                scores = [
                    line.partition('node="')[2].split('" score=')
                    for line in scheduler.output.splitlines()
                    if f'plugin="Extender {other.url}"' in line
                ]
                assert sorted(scores) == [["master-node", "0"], ["worker-node1", "0"], ["worker-node2", "10"]]
        finally:
            control_plane.kubectl(
                "delete", f"configmap/{name}", "role/policy-reader", "rolebinding/policy-reader"
            )
