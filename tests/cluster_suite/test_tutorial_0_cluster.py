"""Tutorial 0 on a real control plane: its files as printed, the placeholders filled in, end as it says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from custom_objects import install

from controlplane.control_plane import ControlPlane, free_ports
from controlplane.objects import node
from controlplane.pages import ask
from controlplane.pods import add_nodes, placed
from controlplane.process import Process
from controlplane.waiting import eventually
from stowplan.cli import stowplan

PRINTED = Path(__file__).parents[1] / "tutorials" / "printed_0"
NODES = ["aaa", "bbb", "ccc", "ddd", "eee", "fff"]
NODE_NAME, KUBECONFIG = "REPLACE_ME_WITH_NODE_NAME", "REPLACE_ME_WITH_KUBE_CONFIG_PATH"


@pytest.mark.parametrize("kind", ["ClusterScopedResources", "ClusterScopedResource"])
async def test_nginx_is_bound_to_a_node_with_a_custom_resource(control_plane, tmp_path, kind):
    """The manifests have the first kind, the Go type the second; a CRD of either will do."""
    add_nodes(control_plane, *map(node, NODES))
    printed = CliRunner().invoke(stowplan, ["crd", "--kind", kind], catch_exceptions=False).stdout
    install(control_plane, yaml.safe_load(printed))
    resources = (PRINTED / "clusterscopedresources-cr.yaml").read_text()
    resources = resources.replace("kind: ClusterScopedResources", f"kind: {kind}")
    for name in NODES[-2:]:
        resources = resources.replace(NODE_NAME, name, 1)
    apply(control_plane, tmp_path / "clusterscopedresources-cr.yaml", resources)
    with kube_scheduler(control_plane, tmp_path) as scheduler:
        apply(control_plane, tmp_path / "simple-pod.yaml", (PRINTED / "simple-pod.yaml").read_text())
        found = await eventually(lambda: placed(control_plane), lambda each: bool(each["nginx"]))
        assert found["nginx"] in NODES[-2:]
        last = ("Successfully bound pod to node", "Add event for scheduled pod")
        text = await eventually(lambda: scheduler.output, lambda text: all(each in text for each in last))
    refused = re.findall('node="(.*)" status="CRD for node not found"', text)
    assert sorted(refused) == NODES[:4]
    assert re.findall('plugin="NodeCRDResourceFit" node="(.*)" score=(.*)', text) == [
        ("eee", "55"),
        ("fff", "55"),
    ]
    bound = f'pod="default/nginx" node="{found["nginx"]}" evaluatedNodes=6 feasibleNodes=2'
    assert f'"Successfully bound pod to node" {bound}' in text
    steps = re.findall(
        r'"((?:Add event for unscheduled|About to try|Attempting to) .*?)".* pod="default/nginx"', text
    )
    assert steps == [
        "Add event for unscheduled pod",
        "About to try and schedule pod",
        "Attempting to schedule pod",
        "Attempting to bind pod to node",
    ]
    assert '"Delete event for unscheduled pod" pod="default/nginx"' in text


def apply(control_plane: ControlPlane, file: Path, text: str) -> None:
    file.write_text(text)
    control_plane.kubectl("apply", "-f", str(file))


@contextmanager
def kube_scheduler(control_plane: ControlPlane, folder: Path) -> Iterator[Process]:
    """`kube-scheduler --config scheduler-config.yaml -v=5`, as the tutorial runs it, on a port of its own."""
    config = folder / "scheduler-config.yaml"
    printed = (PRINTED / "scheduler-config.yaml").read_text()
    config.write_text(printed.replace(KUBECONFIG, str(control_plane.kubeconfig())))
    (port,) = free_ports(1)
    program = Path(sys.executable).parent / "kube-scheduler"
    flags = ["--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}"]
    server = f"https://127.0.0.1:{port}"
    scheduler = Process(
        [program, "--config", str(config), "-v=5", *flags], folder / "scheduler.log", lambda: is_ready(server)
    )
    try:
        scheduler.start()
        yield scheduler
    finally:
        scheduler.stop()


def is_ready(server: str) -> bool:
    try:
        return ask(server, "/readyz")[0] == 200
    except OSError:
        return False
