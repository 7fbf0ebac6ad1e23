"""TenantQuota and HoldGroup, the examples of docs/tutorials/counting-pods.md, as their files are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_process import run_pytest
from stowplan import Plugin, Status
from stowplan.embedded import embedded_cluster
from stowplan.framework.plugin_audit import check_files
from stowplan.testing import a_cluster

ROOT = Path(__file__).parents[2]
QUOTA, HOLD = ROOT / "examples" / "tenant-quota", ROOT / "examples" / "hold-group"
TENANT = {"apiVersion": "example.com/v1", "kind": "Tenant"}
GROUP = {"hold-group": "training"}


def tenant(cpu: str) -> dict[str, Any]:
    return {**TENANT, "metadata": {"name": "shop"}, "spec": {"cpu": cpu}}


def a_pod(name: str, **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "600m"}}}
    metadata = {"name": name, "namespace": "shop", **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def quotas():
    cluster = a_cluster(config=QUOTA / "scheduler.yaml", plugin_dir=QUOTA).node("a", cpu="16")
    return cluster.add(QUOTA / "tenant.yaml")


@pytest.mark.parametrize(
    "file", [QUOTA / "tenant_quota.py", HOLD / "hold_group.py"], ids=lambda each: each.stem
)
def test_each_is_short_and_uses_no_private_names(file):
    text = file.read_text()
    assert text.count("\n") < 90
    attributes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    others = [
        node for node in attributes if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert not [node.attr for node in others if re.match(r"_(?!_)", node.attr)]
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imported} <= {"collections.abc", "typing", "stowplan"}
    assert not check_files([file]).faults
    page = (ROOT / "docs" / "tutorials" / "counting-pods.md").read_text()
    assert text in page, "the page shows another version of this file"


def test_the_quota_of_a_namespace_is_kept():
    cluster = quotas()
    cluster.place("one", namespace="shop", cpu="600m").lands_on("a")
    cluster.place("two", namespace="shop", cpu="600m").stays_pending("the CPU quota of shop is used up")
    cluster.place("three", namespace="shop", cpu="400m").lands_on("a")
    cluster.place("elsewhere", namespace="other", cpu="4").lands_on("a")
    cluster.delete("one", "shop").place("two", namespace="shop", cpu="600m").lands_on("a")


def test_pods_that_run_already_are_counted():
    cluster = quotas().pod("old", "a", namespace="shop", cpu="900m")
    cluster.place("new", namespace="shop", cpu="200m").stays_pending("quota")


def test_what_was_reserved_for_a_pod_that_is_rejected_later_is_free_again():
    class Never(Plugin):
        def permit(self, state, pod, node_name):
            return Status.unschedulable("not now") if pod.labels.get("late") else None

    plugin = check_files([QUOTA / "tenant_quota.py"]).classes["TenantQuota"]
    cluster = a_cluster(plugin, Never).node("a", cpu="16").add(QUOTA / "tenant.yaml")
    cluster.place("one", namespace="shop", cpu="1", labels={"late": "yes"}).stays_pending("not now")
    cluster.place("two", namespace="shop", cpu="1").lands_on("a")


async def test_waiting_pods_are_woken_by_the_resource_and_by_the_end_of_a_pod():
    manifests = [
        QUOTA / "tenant.yaml",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}},
    ]
    config = QUOTA / "scheduler.yaml"
    async with embedded_cluster(config=config, plugin_dirs=[QUOTA], manifests=manifests) as cluster:
        ends = {"kubelet.stowplan/run-seconds": "1"}
        first = a_pod("first", annotations=ends)
        first["spec"]["restartPolicy"] = "Never"
        await cluster.create(first)
        await cluster.bound("first", "shop")
        await cluster.create(a_pod("second"))
        assert "the CPU quota of shop is used up" in await cluster.rejected("second", "shop")
        await cluster.bound("second", "shop", seconds=30)  # the first one has ended
        await cluster.create(a_pod("third"))
        await cluster.rejected("third", "shop")
        await cluster.apply(tenant("2"))
        await cluster.bound("third", "shop", seconds=30)


def holds():
    cluster = a_cluster(config=HOLD / "scheduler.yaml", plugin_dir=HOLD)
    return cluster.node("a", cpu="16").add(HOLD / "pods.yaml")


def test_a_group_is_held_until_it_is_complete():
    cluster = holds()
    first = cluster.place("worker-1").is_held("HoldGroup")
    second = cluster.place("worker-2").is_held("HoldGroup")
    assert "Pod default/worker-1 has the node a and waits for a permit from HoldGroup." in first.explanation
    cluster.place("alone").lands_on("a")
    cluster.place("worker-3").lands_on("a")
    first.lands_on("a")
    second.lands_on("a")


def test_a_group_that_is_not_complete_in_time_is_rejected():
    cluster = holds()
    first, second = cluster.place("worker-1"), cluster.place("worker-2").is_held()
    cluster.clock = 31
    first.stays_pending("rejected due to timeout after waiting 30s at plugin HoldGroup")
    second.stays_pending("pod worker-1 of the same group was rejected")
    cluster.place("worker-3").is_held()


async def test_a_group_is_held_and_bound_in_a_cluster():
    async with embedded_cluster(nodes=2, config=HOLD / "scheduler.yaml", plugin_dirs=[HOLD]) as cluster:
        first, second, third = (a_pod(f"worker-{number}", labels=GROUP) for number in (1, 2, 3))
        for each in (first, second, third):
            each["metadata"]["namespace"] = "default"
        await cluster.create(first, second)

        async def both_held():
            assert cluster.scheduler is not None
            return len(list(cluster.scheduler.waiting)) == 2

        await cluster.until(both_held)
        assert "is held at permit" in cluster.explain("worker-1")
        assert "waits for a permit from HoldGroup" in cluster.explain("worker-1")
        await cluster.create(third)
        for number in (1, 2, 3):
            await cluster.bound(f"worker-{number}")


def test_the_tests_of_the_page_pass(tmp_path):
    page = (ROOT / "docs" / "tutorials" / "counting-pods.md").read_text()
    blocks = [each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def test_" in each]
    for number, text in enumerate(blocks):
        (tmp_path / f"test_page_{number}.py").write_text(text)
    for folder in (QUOTA, HOLD):
        for file in folder.glob("*.py"):
            (tmp_path / file.name).write_text(file.read_text())
    run = run_pytest(tmp_path, ".")
    assert "2 passed" in run.stdout, run.stdout
