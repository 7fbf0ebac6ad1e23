"""A small world for sticky pods: nodes, an API server's objects, the plugin, its controllers, and a clock."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from make import REGISTRY, Json, make_node
from stowplan.api.meta import Condition, ObjectMeta, decode
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.client.errors import Conflict, NotFound
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle.preempt import preempt
from stowplan.cycle.schedule import first_by_name, schedule
from stowplan.framework import Decision, Handle
from stowplan.framework.profile import Profile
from stowplan.framework.resolve import resolve_profiles
from stowplan.sticky.controllers import StickyJobs, StickyRecords
from stowplan.sticky.memory import wire_time
from stowplan.sticky.resources import JOB_LABEL, JobPod, StickyJob, StickyRecord

TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "web"}]}}


def node_with_uid(name: str, *, uid: str = "", ready: str = "True", **fields: Any) -> NodeObject:
    node = make_node(name, **fields)
    plain = msgspec.to_builtins(node.metadata) | {"uid": uid or f"uid-of-{name}"}
    status = msgspec.structs.replace(node.status, conditions=(Condition(type="Ready", status=ready),))
    return msgspec.structs.replace(node, metadata=msgspec.convert(plain, ObjectMeta), status=status)


class World:
    """All that is written shows at once, unless `is_watching` is off."""

    def __init__(self, *nodes: NodeObject, args: Json | None = None) -> None:
        self.now = 1_800_000_000.0
        self.cluster = Cluster()
        self.pods: dict[str, Json] = {}
        """As the API server has them, by name."""
        self.events: list[tuple[str, str, str]] = []
        """The object's name, the reason, the text."""
        self.activated: list[str] = []
        self.refuse: dict[str, Exception] = {}
        """By what is written (`create`, `apply`, `update_status`): how it fails."""
        self.is_watching = True
        self._objects: dict[tuple[type, str], Any] = {}
        self.version = 0
        for node in nodes:
            self.cluster.apply(node)
        self.handle = Handle(
            self.cluster,
            now=lambda: self.now,
            api=self,  # type: ignore[arg-type]
            activate=lambda pods: self.activated.extend(pod.name for pod in pods),
            record_event=lambda item, kind, reason, text: self.events.append((item.name, reason, text)),
        )
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [
                {
                    "schedulerName": "sticky-scheduler",
                    "plugins": {"multiPoint": {"enabled": [{"name": "Sticky", "weight": 100}]}},
                    "pluginConfig": [{"name": "Sticky", "args": args or {}}],
                }
            ],
        }
        (resolved,) = resolve_profiles(load(config, REGISTRY).config, REGISTRY)
        self._resolved = resolved
        self.restart_scheduler()
        self.restart_controllers()

    def restart_scheduler(self) -> None:
        """A new plugin, which knows nothing but what the API has."""
        self.profile = Profile(self._resolved, self.handle)
        self.handle.preempt = partial(preempt, self.profile)
        self.plugin: Any = self.profile.plugins["Sticky"]

    def restart_controllers(self) -> None:
        """New ones, which know nothing but what the API has."""
        self.jobs = StickyJobs(self.plugin.args, self.handle)
        self.records = StickyRecords(self.plugin.args, self.handle)

    # What users do

    def add_job(
        self, name: str = "job", *, status: Json | None = None, spec: Json | None = None, **stickiness: Any
    ) -> None:
        self.version += 1
        plain = {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}", "generation": 1},
            "spec": {"template": TEMPLATE, **(spec or {}), "stickiness": stickiness},
            "status": status or {},
        }
        plain["metadata"]["resourceVersion"] = str(self.version)
        self.store(decode(StickyJob, plain))

    def add_pod(
        self, name: str, *, annotations: Json | None = None, owner: Json | None = None, **fields: Any
    ) -> None:
        """A pod that no StickyJob has made."""
        metadata = {
            "name": name,
            "namespace": "default",
            "annotations": annotations or {},
            "labels": fields.pop("labels", {}),
            "ownerReferences": [owner | {"controller": True}] if owner else [],
        }
        containers = [{"name": "main", "resources": {"requests": fields.pop("requests", {})}}]
        self._put_pod(
            {
                "metadata": metadata,
                "spec": {"containers": containers, "schedulerName": "sticky-scheduler", **fields},
            }
        )

    def delete_pod(self, name: str) -> None:
        self.show_pod(self.pods.pop(name), gone=True)

    def end_pod(self, name: str, phase: str, *, told_to: bool = False) -> None:
        """By itself, or since it was deleted and has some time left."""
        self.pods[name]["status"]["phase"] = phase
        if told_to:
            self.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        self.show_pod(self.pods[name])

    def change_node(self, node: NodeObject) -> None:
        self.cluster.apply(node)

    def delete_node(self, name: str) -> None:
        self.cluster.remove_node(name)

    # What is seen

    def job(self, name: str = "job") -> Any:
        return self._objects[StickyJob, f"default/{name}"]

    def record(self, name: str) -> Any:
        return self._objects[StickyRecord, f"default/{name}"]

    @property
    def records_kept(self) -> list[Any]:
        return [item for (kind, _), item in self._objects.items() if kind is StickyRecord]

    def condition(self, kind: str, name: str = "job") -> tuple[str, str]:
        found = {each.type: (each.status, each.reason) for each in self.job(name).status.conditions}
        return found.get(kind, ("", ""))

    def where(self, name: str) -> str:
        return str(self.pods[name]["spec"].get("nodeName", ""))

    def reasons(self, name: str = "job") -> list[str]:
        return [reason for each, reason, _ in self.events if each == name]

    def pod(self, name: str) -> Pod:
        return Pod.decode(self.pods[name])

    # What the scheduler and the controllers do

    async def reconcile(self) -> None:
        for _ in range(3):
            await self.jobs.reconcile_all()

    def decide(self, name: str) -> Decision:
        decision = schedule(self.profile, self.pod(name), self.cluster.nodes, first_by_name, None)
        assert decision.error is None, decision.error
        return decision

    async def schedule(self, name: str, *, crash_after_bind: bool = False) -> Decision:
        """Decides a pod and binds it, if it fits."""
        decision = self.decide(name)
        if decision.chosen is None:
            return decision
        placed = self.cluster.assume_pod(self.pod(name), decision.chosen)
        assert decision.state is not None
        assert self.plugin.reserve(decision.state, placed, decision.chosen) is None
        self.pods[name]["spec"]["nodeName"] = decision.chosen
        self.pods[name]["status"] = {"phase": "Running"}
        if not crash_after_bind:
            await self.plugin.post_bind(decision.state, placed, decision.chosen)
        self.show_pod(self.pods[name])
        return decision

    async def come_and_go(self, name: str) -> str:
        """A pod of the job is bound, seen, and deleted; where it was."""
        await self.reconcile()
        await self.schedule(name)
        await self.reconcile()
        found = self.where(name)
        self.delete_pod(name)
        await self.reconcile()
        return found

    # The API server: what a plugin may ask of it

    async def create(self, item: Any) -> Any:
        self._check("create")
        if item.name in self.pods:
            raise Conflict(409, "AlreadyExists", f'pods "{item.name}" already exists')
        self._put_pod(msgspec.to_builtins(item))
        return item

    async def apply(self, item: Any, *, field_manager: str, subresource: str = "") -> Any:
        self._check("apply")
        known = self._objects.get((type(item), item.key))
        if isinstance(item, StickyJob):
            if known is None or known.metadata.uid != item.metadata.uid:
                raise NotFound(404, "NotFound", "no such job")
            slots = {slot.index: msgspec.to_builtins(slot) for slot in known.status.slots}
            for slot in item.status.slots:
                slots.setdefault(slot.index, {}).update(msgspec.to_builtins(slot))
            status = msgspec.to_builtins(known.status) | {"slots": list(slots.values())}
            if item.status.last_node:
                status["lastNode"] = item.status.last_node
            item = msgspec.structs.replace(known, status=msgspec.convert(status, type(known.status)))
        return self.store(item)

    async def update_status(self, item: Any) -> Any:
        self._check("update_status")
        known = self._objects[type(item), item.key]
        if known.metadata.resource_version != item.metadata.resource_version:
            raise Conflict(409, "Conflict", "the object has been modified")
        return self.store(msgspec.structs.replace(known, status=item.status))

    async def delete(self, item: Any) -> None:
        self._check("delete")
        if isinstance(item, JobPod):
            self.delete_pod(item.name)
        else:
            del self._objects[type(item), item.key]
            self.cluster.remove(item)

    def _check(self, what: str) -> None:
        if what in self.refuse:
            raise self.refuse[what]

    def store(self, item: Any) -> Any:
        self.version += 1
        meta = msgspec.structs.replace(item.metadata, resource_version=str(self.version))
        item = self._objects[type(item), item.key] = msgspec.structs.replace(item, metadata=meta)
        if self.is_watching:
            self.cluster.apply(item)
        return item

    def _put_pod(self, plain: Json) -> None:
        self.version += 1
        name = plain["metadata"]["name"]
        made = {"uid": f"uid-{self.version}", "creationTimestamp": wire_time(self.now)}
        self.pods[name] = {**plain, "metadata": {**plain["metadata"], **made}, "status": {"phase": "Pending"}}
        self.show_pod(self.pods[name])

    def show_pod(self, plain: Json, *, gone: bool = False) -> None:
        if not self.is_watching:
            return
        self.version += 1
        plain["metadata"]["resourceVersion"] = str(self.version)
        pod, seen = Pod.decode(plain), decode(JobPod, plain)
        known = self.cluster.pod(pod.uid)
        if known is not None:
            self.cluster.remove_pod(known)
        if JOB_LABEL in pod.labels:
            (self.cluster.remove if gone else self.cluster.apply)(seen)
        if not gone:
            self.cluster.apply(pod)
