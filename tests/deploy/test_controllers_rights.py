"""The rights that `stowplan manifests --controllers` grants are those that the controllers need."""

from __future__ import annotations

import asyncio

import yaml
from click.testing import CliRunner

from stowplan.api.group_crds import PUBLISHED
from stowplan.cli import stowplan
from stowplan.client.api import ApiClient
from stowplan.config import Duration, LeaderElection
from stowplan.controllers.elected import run_group_controllers
from stowplan.embedded import objects
from stowplan.embedded.cluster import EmbeddedCluster
from stowplan.embedded.pool import InProcess

ACCOUNT = "system:serviceaccount:stowplan:stowplan-controllers"
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
LEASE = LeaderElection(
    resource_name="stowplan-controllers",
    resource_namespace="stowplan",
    lease_duration=Duration(3),
    renew_deadline=Duration(2),
    retry_period=Duration(0.1),
)
X, VOLCANO = "scheduling.x-k8s.io/v1alpha1", "scheduling.volcano.sh/v1beta1"


class AsController(InProcess):
    """Every request is made as the service account of the controllers."""

    async def headers(self):
        return [("Impersonate-User", ACCOUNT)]


def custom(api_version, kind, name, **spec):
    meta = {"name": name} | ({} if kind == "Queue" else {"namespace": "default"})
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}


def rendered(tmp_path):
    (tmp_path / "config.yaml").write_text(f"{HEAD}profiles: [{{schedulerName: ours}}]\n")
    words = ["manifests", f"--config={tmp_path / 'config.yaml'}", "--image=x", "--controllers"]
    done = CliRunner().invoke(stowplan, words)
    assert done.exit_code == 0, done.output
    kinds = ("Namespace", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    return [
        each
        for each in yaml.safe_load_all(done.stdout)
        if each["kind"] in kinds
        and ("controllers" in each["metadata"]["name"] or each["kind"] == "Namespace")
    ]


async def test_the_controllers_work_with_these_rights_alone(tmp_path):
    cluster = EmbeddedCluster(rbac=True)  # not entered: only its API server answers
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "default",
            "labels": {"scheduling.x-k8s.io/pod-group": "g"},
            "annotations": {"scheduling.k8s.io/group-name": "v"},
        },
        "spec": {"containers": [{"name": "c", "image": "x"}], "nodeName": "n"},
        "status": {"phase": "Running"},
    }
    async with ApiClient(cluster.connection, qps=0) as api:
        for item in (*rendered(tmp_path), *PUBLISHED.values()):
            await objects.apply(cluster.server, api, item)
        for item in (
            custom(X, "PodGroup", "g", minMember=1),
            custom(X, "ElasticQuota", "e", max={"cpu": "1"}),
            custom(VOLCANO, "Queue", "q"),
            custom(VOLCANO, "PodGroup", "v", minMember=1, queue="q"),
            pod,
        ):
            await objects.apply(cluster.server, api, item)
        working = asyncio.create_task(run_group_controllers(AsController(cluster.server), LEASE))

        async def status(path):
            return (await api.get_json(path)).get("status") or {}

        async def is_done():
            x_group = await status(f"/apis/{X}/namespaces/default/podgroups/g")
            quota = await status(f"/apis/{X}/namespaces/default/elasticquotas/e")
            group = await status(f"/apis/{VOLCANO}/namespaces/default/podgroups/v")
            queue = await status(f"/apis/{VOLCANO}/queues/q")
            return x_group.get("phase") and quota.get("used") and group.get("phase") and queue.get("state")

        try:
            async with asyncio.timeout(20):
                while not await is_done():
                    assert not working.done(), working.exception()
                    await asyncio.sleep(0.05)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
