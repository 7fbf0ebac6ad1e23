"""The third tutorial on a real control plane: kube-scheduler places one pod, the custom scheduler another."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from controlplane.control_plane import SCHEDULER, ControlPlane, free_ports
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import add_nodes, create, placed
from controlplane.process import Process
from controlplane.waiting import eventually

PRINTED = Path(__file__).parents[1] / "tutorials" / "printed_3"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


async def test_each_scheduler_places_its_pod(control_plane, tmp_path):
    filling = {"requests": {"cpu": "2", "memory": "4Gi"}}
    add_nodes(control_plane, node("empty"), node("fuller"))
    create(control_plane, pod("running", nodeName="fuller", **filling))
    custom = custom_scheduler(control_plane, tmp_path)
    with control_plane.kube_scheduler():
        custom.start()
        try:
            control_plane.kubectl("apply", f"--filename={PRINTED / 'pods.yaml'}")
            found = await eventually(
                lambda: placed(control_plane), lambda each: len(each) == 3 and all(each.values())
            )
            assert (found["nginx-default"], found["nginx-custom"]) == ("empty", "fuller")
            by = await eventually(lambda: scheduled_by(control_plane), lambda each: len(each) == 2)
            assert by == {"nginx-default": "default-scheduler", "nginx-custom": "my-custom-scheduler"}
            assert 'pod="default/nginx-custom"' in custom.output
            assert '"Attempting to schedule pod" pod="default/nginx-default"' not in custom.output
        finally:
            custom.stop()


def custom_scheduler(control_plane: ControlPlane, folder: Path) -> Process:
    """What the tutorial's Deployment runs, with its ConfigMap for a file and the account for a kubeconfig."""
    (config_map,) = yaml.safe_load_all((PRINTED / "configmap.yaml").read_text())
    ((name, text),) = config_map["data"].items()
    kubeconfig = control_plane.kubeconfig(SCHEDULER)
    (folder / name).write_text(f"{text}clientConnection: {{kubeconfig: {kubeconfig}}}\n")
    (deployment,) = yaml.safe_load_all((PRINTED / "deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    program, *flags = (word.replace(mount["mountPath"], str(folder / name)) for word in container["command"])
    (port,) = free_ports(1)
    server = f"https://127.0.0.1:{port}"
    return Process(
        [Path(sys.executable).parent / program, *flags, "--bind-address=127.0.0.1", f"--secure-port={port}"],
        folder / "custom.log",
        lambda: answers(server),
    )


def answers(server: str) -> bool:
    try:
        return ask(server, "/readyz")[0] == 200
    except OSError:
        return False


def scheduled_by(control_plane: ControlPlane) -> dict[str, str]:
    events = control_plane.request("GET", EVENTS)["items"]
    return {
        event["regarding"]["name"]: event["reportingController"]
        for event in events
        if event["reason"] == "Scheduled"
    }
