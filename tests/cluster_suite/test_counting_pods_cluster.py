"""TenantQuota and HoldGroup, the examples that count pods, on a real control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from custom_objects import install_kind, readable

from controlplane.control_plane import ControlPlane
from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually
from stowplan.framework.plugin_audit import check_files

EXAMPLES = Path(__file__).parents[2] / "examples"
QUOTA, HOLD = EXAMPLES / "tenant-quota", EXAMPLES / "hold-group"
HALF = {"requests": {"cpu": "600m"}}


def enabled(name: str, **args: Any) -> dict[str, Any]:
    profile = {"plugins": {"multiPoint": {"enabled": [{"name": name}]}}}
    return {"profiles": [{**profile, "pluginConfig": [{"name": name, "args": args}] if args else []}]}


def a_tenant(cpu: str) -> dict[str, Any]:
    meta = {"name": "default"}
    return {"apiVersion": "example.com/v1", "kind": "Tenant", "metadata": meta, "spec": {"cpu": cpu}}


async def bound(control_plane: ControlPlane, name: str) -> str:
    return (await eventually(lambda: placed(control_plane), lambda found: bool(found.get(name))))[name]


async def test_a_quota_wakes_pods_when_it_is_raised_and_when_a_pod_is_deleted(control_plane):
    (kind,) = check_files([QUOTA / "tenant_quota.py"]).classes["TenantQuota"].watches
    add_nodes(control_plane, node("n1"))
    install_kind(control_plane, kind)
    create(control_plane, a_tenant("1"))
    with (
        readable(control_plane, kind),
        control_plane.stowplan(f"--plugin-dir={QUOTA}", **enabled("TenantQuota")),
    ):
        create(control_plane, pod("first", **HALF))
        assert await bound(control_plane, "first") == "n1"
        create(control_plane, pod("second", **HALF))
        await eventually(
            lambda: condition(control_plane, "second"),
            lambda found: "the CPU quota of default is used up" in str(found),
        )
        control_plane.kubectl("delete", "pod", "first", "--grace-period=0", "--force")
        assert await bound(control_plane, "second") == "n1"
        create(control_plane, pod("third", **HALF))
        await eventually(lambda: condition(control_plane, "third"), lambda found: "quota" in str(found))
        control_plane.kubectl("apply", "-f", "-", objects=[a_tenant("2")])
        assert await bound(control_plane, "third") == "n1"


async def test_a_group_is_bound_once_it_is_complete(control_plane):
    add_nodes(control_plane, node("n1"), node("n2"))
    labels = {"hold-group": "training"}
    flags = (f"--plugin-dir={HOLD}",)
    with control_plane.stowplan(*flags, **enabled("HoldGroup", size=3)) as ours:
        create(control_plane, pod("one", labels=labels), pod("two", labels=labels))
        await eventually(lambda: ours.output, lambda found: "2 of 3 pods have a node" in found)
        assert 'plugin="HoldGroup"' in ours.output
        create(control_plane, pod("three", labels=labels))
        for name in ("one", "two", "three"):
            assert await bound(control_plane, name) in ("n1", "n2")
