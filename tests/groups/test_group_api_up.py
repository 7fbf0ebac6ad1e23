"""`stowplan up` with pod groups, as its user starts it."""

from __future__ import annotations

import subprocess

import pytest

from stowplan.client.api import ApiClient
from stowplan.client.errors import NotFound
from stowplan.client.kubeconfig import load
from up_process import STOWPLAN, running_up

ALL = "GenericWorkload=true,GangScheduling=true,WorkloadWithJob=true"
GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
KINDS = (
    "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
    "/apis/scheduling.x-k8s.io/v1alpha1/elasticquotas",
    "/apis/scheduling.volcano.sh/v1beta1/podgroups",
    "/apis/scheduling.volcano.sh/v1beta1/queues",
    "/apis/topology.volcano.sh/v1alpha1/hypernodes",
)


def client(up):
    return ApiClient(load(str(up.kubeconfig)), qps=0)


async def test_gates_and_kinds_of_groups(tmp_path):
    data = str(tmp_path / "data")
    with running_up(tmp_path, "--nodes=1", f"--data={data}", f"--feature-gates={ALL}", "--groups") as up:
        async with client(up) as api:
            group = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
            await api.request("POST", GROUPS, group)
            assert (await api.get_json(f"{GROUPS}/g"))["spec"]["disruptionMode"] == "Pod"
            for path in KINDS:
                assert "items" in await api.get_json(path)
    # Without the gate the objects are out of reach, and they are back with it.
    with running_up(tmp_path, f"--data={data}") as up:
        async with client(up) as api:
            with pytest.raises(NotFound):
                await api.get_json(f"{GROUPS}/g")
            assert "items" in await api.get_json(KINDS[0])
    with running_up(tmp_path, f"--data={data}", f"--feature-gates={ALL}") as up:
        async with client(up) as api:
            assert (await api.get_json(f"{GROUPS}/g"))["metadata"]["name"] == "g"


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        (
            "--feature-gates=GangScheduling=true",
            "GangScheduling is enabled, but depends on features that are disabled: [GenericWorkload]",
        ),
        ("--feature-gates=GenericWorkload=maybe", "invalid value of GenericWorkload=maybe"),
    ],
)
def test_gates_that_cannot_be_on_end_it_at_once(tmp_path, flag, text):
    command = [STOWPLAN, "up", "--kubeconfig", str(tmp_path / "up.kubeconfig"), flag]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert text in ended.stderr
