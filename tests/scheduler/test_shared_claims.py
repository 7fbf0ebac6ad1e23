"""Pods that use the same ResourceClaim: the others wait while it is allocated for the first of them."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from scheduler_staging import RecordingApi, Stage, node, pod, staged
from stowplan import Plugin, Status
from stowplan.api.resource import ResourceClaim
from stowplan.client.errors import Forbidden

GPU = {"kind": "DeviceClass", "metadata": {"name": "gpu"}}
SLICE = {
    "kind": "ResourceSlice",
    "metadata": {"name": "n1"},
    "spec": {
        "driver": "gpu.example.com",
        "nodeName": "n1",
        "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d0"}],
    },
}
CLAIM = {
    "kind": "ResourceClaim",
    "metadata": {"name": "shared", "namespace": "default", "uid": "uid-shared", "resourceVersion": "1"},
    "spec": {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "gpu"}}]}},
}
DISK = {
    "kind": "PersistentVolumeClaim",
    "metadata": {
        "name": "p0-v",
        "namespace": "default",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
        "ownerReferences": [{"kind": "Pod", "name": "p0", "uid": "uid-p0", "controller": True}],
    },
    "spec": {"volumeName": "disk", "accessModes": ["ReadWriteOnce"]},
}
VOLUME = {
    "kind": "PersistentVolume",
    "metadata": {"name": "disk"},
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "default", "name": "p0-v"},
    },
}
USES = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}


class ClaimApi(RecordingApi):
    """Takes writes of claims as well, which wait for `may_write`."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = asyncio.Event()
        self.refusals = 0
        self.written: list[ResourceClaim] = []

    async def update(self, item: ResourceClaim) -> ResourceClaim:
        return self.store(item)

    async def update_status(self, item: ResourceClaim) -> ResourceClaim:
        await self.may_write.wait()
        if self.refusals:
            self.refusals -= 1
            raise Forbidden(403, "Forbidden", "not today")
        self.written.append(item)
        return self.store(item)

    def store(self, item: ResourceClaim) -> ResourceClaim:
        version = str(int(item.metadata.resource_version) + 1)
        return replace(item, metadata=replace(item.metadata, resource_version=version))


def sharing(count: int) -> list[dict[str, Any]]:
    return [pod(f"p{number}", cpu="100m", **USES) for number in range(count)]


async def until_bound(stage: Stage, count: int) -> None:
    async with asyncio.timeout(10):
        while len(stage.api.bound) < count:
            await asyncio.sleep(0.01)


async def test_pods_wait_while_the_claim_is_written_for_another():
    api = ClaimApi()
    async with staged(api=api) as stage:
        stage.see(GPU, SLICE, node("n1"), CLAIM, *sharing(5))
        await stage.settle()
        assert stage.scheduler.queue.counts()["gated"] == 4
        api.may_write.set()
        await until_bound(stage, 5)
        await stage.settle()
        assert stage.notes("FailedScheduling") == []
        assert all(api.conditions(f"default/p{number}") == [] for number in range(5))
        assert sorted(each.uid for each in api.written[-1].status.reserved_for) == [
            f"uid-p{number}" for number in range(5)
        ]
        assert b"scheduler_pod_scheduling_attempts_sum 5" in stage.scheduler.metrics.render()


async def test_the_next_pod_is_attempted_if_the_claim_cannot_be_written():
    api = ClaimApi()
    async with staged(api=api) as stage:
        stage.see(GPU, SLICE, node("n1"), CLAIM, *sharing(2))
        await stage.settle()
        api.refusals = 1
        api.may_write.set()
        await until_bound(stage, 1)
        (found,) = api.bound
        (note,) = stage.notes("FailedScheduling")
        assert "not today" in note
        assert [f"default/{each.name}" for each in api.written[-1].status.reserved_for] == [found]


async def test_a_claim_that_cannot_be_written_wakes_each_pod_once():
    """Were all others held back for each of them, a failure would wake them all again."""
    api = ClaimApi()
    async with staged(api=api) as stage:
        stage.see(GPU, SLICE, node("n1", pods="30"), CLAIM, *sharing(20))
        await stage.settle()
        assert stage.scheduler.queue.counts()["gated"] == 19
        api.refusals = 20
        api.may_write.set()
        async with asyncio.timeout(10):
            while len(stage.notes("FailedScheduling")) < 20:
                await asyncio.sleep(0.01)
        assert stage.scheduler.queue.counts()["gated"] == 0
        assert api.refusals >= 17  # the others found the claim being written for one of the first


class SlowVolumes(Plugin):
    """Binds volumes before claims are written, as VolumeBinding may have to."""

    async def pre_bind(self, state, pod, node_name):
        await asyncio.Event().wait()


async def test_nobody_waits_for_a_pod_whose_volumes_are_bound_first():
    first = {"name": "SlowVolumes"}, {"name": "DynamicResources"}
    config = {
        "profiles": [
            {"plugins": {"preBind": {"enabled": list(first), "disabled": [{"name": "DynamicResources"}]}}}
        ]
    }
    volume = {"name": "v", "ephemeral": {}}
    async with staged(config, {"SlowVolumes": SlowVolumes}, api=ClaimApi()) as stage:
        pods = pod("p0", cpu="100m", volumes=[volume], **USES), pod("p1", cpu="100m", **USES)
        stage.see(GPU, SLICE, node("n1"), CLAIM, DISK, VOLUME, *pods)
        await stage.settle()
        (note,) = stage.notes("FailedScheduling")
        assert "resource claim default/shared is in the process of being allocated" in note


class Waiting(Plugin):
    def permit(self, state, pod, node_name):
        return Status.wait(60.0)


async def test_nobody_waits_for_a_pod_that_waits_on_permit():
    """It may wait for minutes: the others say meanwhile why they are pending."""
    config = {"profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": "Waiting"}]}}}]}
    async with staged(config, {"Waiting": Waiting}, api=ClaimApi()) as stage:
        stage.see(GPU, SLICE, node("n1"), CLAIM, *sharing(2))
        await stage.settle()
        (note,) = stage.notes("FailedScheduling")
        assert "resource claim default/shared is in the process of being allocated" in note
