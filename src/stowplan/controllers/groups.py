"""Pod groups: their protection, those of Jobs, and the status of those of scheduler-plugins and Volcano.

The scheduler decides about groups and needs none of this. All of it runs in any cluster.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from msgspec.structs import replace

from stowplan import log
from stowplan.api import quota
from stowplan.api.groups import (
    GROUP_NAME,
    TASK,
    VOLCANO_GROUP_NAME,
    CoschedulingPodGroup,
    VolcanoPodGroup,
)
from stowplan.api.meta import Json, Object, decode
from stowplan.api.quantity import NANO, Quantity
from stowplan.api.queues import ElasticQuota, Queue
from stowplan.client.errors import Conflict, NotFound
from stowplan.controllers.clock import wire_time
from stowplan.controllers.deployments import hash_of
from stowplan.controllers.engine import Controller
from stowplan.controllers.kinds import (
    COSCHEDULING_GROUPS,
    ELASTIC_QUOTAS,
    JOBS,
    PODS,
    QUEUES,
    VOLCANO_GROUPS,
    Kind,
    Known,
    Plain,
    PodView,
)
from stowplan.controllers.owned_pods import owner_of
from stowplan.controllers.stores import Store, Stores, by_namespace, owner_keys
from stowplan.errors import InputError
from stowplan.framework.handle import Handle
from stowplan.plugins.community.volcano_queue import PENDING, Commitments, QueueBook, VolcanoQueueArgs

V1ALPHA2 = "scheduling.k8s.io/v1alpha2"
POD_GROUPS = Kind(V1ALPHA2, "PodGroup", "podgroups", Plain)
WORKLOADS = Kind(V1ALPHA2, "Workload", "workloads", Plain)
PROTECTION = "scheduling.k8s.io/podgroup-protection"

DEFINITIONS = Kind(
    "apiextensions.k8s.io/v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    Known,
    namespaced=False,
)
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
DEFAULT_QUEUE = "default"
MAX_LABEL, MAX_NAME = 63, 253
PAUSE_SECONDS = 0.5
"""How long changes of pods are collected before the amounts of a namespace are summed up again."""


def named_group(pod: PodView) -> Iterable[str]:
    """For an Index: by the PodGroup that the pod's spec names."""
    group = pod.spec.scheduling_group
    return (f"{pod.namespace}/{group.pod_group_name}",) if group is not None else ()


def labelled_group(pod: PodView) -> Iterable[str]:
    """For an Index: by the PodGroup of scheduler-plugins that the pod's label names."""
    name = pod.labels.get(POD_GROUP_LABEL)
    return (f"{pod.namespace}/{name}",) if name else ()


class GroupProtection(Controller):
    """A deleted PodGroup stays until no pod that names it runs or waits."""

    component = "podgroup-protection-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._groups, pods = self.store(POD_GROUPS), self.store(PODS)
        self._members = pods.index(named_group)
        self._groups.listen(self._on_group)
        pods.listen(self._on_pod)

    def _on_group(self, old: Plain | None, new: Plain | None) -> None:
        if new is not None and new.is_terminating:
            self.queue.add(new.key)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        for key in named_group(old) if old is not None else ():
            if new is None or new.is_finished:
                self.queue.add(key)

    async def reconcile(self, key: str) -> None:
        group = self._groups.get(key)
        if group is None or not group.is_terminating or PROTECTION not in group.metadata.finalizers:
            return
        if all(pod.is_finished for pod in self._members.of(key)):
            others = [each for each in group.metadata.finalizers if each != PROTECTION]
            await self._groups.patch(group, {"metadata": {"finalizers": others}})


class JobGroups:
    """Workloads and PodGroups of Jobs whose pods all run at once."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._workloads, self._groups = controller.store(WORKLOADS), controller.store(POD_GROUPS)
        self._by_namespace = self._workloads.index(by_namespace)
        self._by_owner = self._groups.index(owner_keys)

    async def ensure(self, job: Plain, pods: list[PodView]) -> str:
        """The name of the PodGroup for the job's pods, made if need be; empty for a job without one."""
        if not is_gang(job):
            return ""
        is_new = not pods and not _has_begun(job)
        found = [each for each in self._by_namespace.of(job.namespace) if _is_for(each, job)]
        if not found and is_new:
            found = [await self._create_workload(job)]
        if len(found) != 1:
            return ""
        workload = found[0]
        owner, templates = workload.metadata.controller(), workload.spec.get("podGroupTemplates") or []
        if owner is None or owner.uid != job.uid or len(templates) != 1:
            return ""
        groups = self._by_owner.of(job.uid)
        if not groups and is_new:
            groups = [await self._create_group(job, workload, templates[0])]
        return groups[0].name if len(groups) == 1 else ""

    async def _create_workload(self, job: Plain) -> Plain:
        name = _short(job.name, hash_of({"uid": job.uid}), MAX_NAME)
        # Names of templates are labels, and so shorter than those of jobs may be.
        template = {
            "name": _short(job.name, "pgt-0", MAX_LABEL),
            "schedulingPolicy": {"gang": {"minCount": job.spec["parallelism"]}},
        }
        body: Json = {
            "metadata": {"name": name, "ownerReferences": [owner_of(JOBS, job)]},
            "spec": {
                "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": job.name},
                "podGroupTemplates": [template],
            },
        }
        made = await self._workloads.create(job.namespace, body)
        self._controller.record(JOBS, job, "WorkloadCreated", f"Created Workload {name} for Job {job.name}")
        return made

    async def _create_group(self, job: Plain, workload: Plain, template: Json) -> Plain:
        suffix = hash_of({"uid": job.uid, "template": template["name"]})
        reference = {"workloadName": workload.name, "podGroupTemplateName": template["name"]}
        from_workload = {
            "apiVersion": V1ALPHA2,
            "kind": "Workload",
            "name": workload.name,
            "uid": workload.uid,
        }
        body: Json = {
            "metadata": {
                "name": _short(f"{workload.name}-{template['name']}", suffix, MAX_NAME),
                "ownerReferences": [owner_of(JOBS, job), from_workload],
            },
            "spec": {
                "podGroupTemplateRef": {"workload": reference},
                "schedulingPolicy": template["schedulingPolicy"],
            },
        }
        return await self._groups.create(job.namespace, body)


def is_gang(job: Plain) -> bool:
    """Whether all pods of the job run at once, and none of them is in another group."""
    spec = job.spec
    parallelism = spec.get("parallelism", 1)
    return bool(
        spec.get("completionMode") == "Indexed"
        and parallelism > 1
        and spec.get("completions") == parallelism
        and not (spec["template"].get("spec") or {}).get("schedulingGroup")
    )


def _has_begun(job: Plain) -> bool:
    status = job.status
    conditions = {each["type"] for each in status.get("conditions") or ()}
    return bool(
        status.get("startTime")
        or status.get("succeeded")
        or status.get("failed")
        or "Suspended" in conditions
    )


def _is_for(workload: Plain, job: Plain) -> bool:
    reference = workload.spec.get("controllerRef") or {}
    return reference == {"apiGroup": "batch", "kind": "Job", "name": job.name}


def _short(name: str, suffix: str, limit: int) -> str:
    return f"{name[: limit - len(suffix) - 1].rstrip('-.')}-{suffix}"


# The dialects that are installed as CustomResourceDefinitions.


class GroupDialects(Controller):
    """Starts the controllers of scheduler-plugins' and Volcano's kinds once those are installed."""

    workers = 1

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._running: dict[str, tuple[Controller, asyncio.Task[None]]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._definitions = self.store(DEFINITIONS)
        self._definitions.listen_keys(self._on_definition)

    def _on_definition(self, key: str) -> None:
        if key in DIALECTS:
            self.queue.add(key)

    @property
    def is_idle(self) -> bool:
        return super().is_idle and all(controller.is_idle for controller, _ in self._running.values())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            await super().run()

    async def reconcile(self, key: str) -> None:
        is_installed = self._definitions.get(key) is not None
        if is_installed and key not in self._running and self._tasks is not None:
            controller = DIALECTS[key](self.stores)
            self._running[key] = (controller, self._tasks.create_task(controller.run()))
        elif not is_installed and key in self._running:
            self._running.pop(key)[1].cancel()


class GroupPhases(Controller):
    """Phases and counts of PodGroups of one kind, whose pods `groups_of` finds."""

    component = "podgroup-controller"
    kind: ClassVar[Kind[Plain]]
    struct: ClassVar[type[Object]]
    """What the scheduler reads such an object as."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._groups, pods = self.store(self.kind), self.store(PODS)
        self._members = pods.index(self.groups_of)
        self._groups.listen_keys(self.queue.add)
        pods.listen(self._on_pod)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        for key in {key for pod in (old, new) if pod is not None for key in self.groups_of(pod)}:
            self.queue.add(key)

    async def reconcile(self, key: str) -> None:
        group = self._groups.get(key)
        if group is None or group.is_terminating or not is_readable(self.struct, group):
            return
        status = self.compute_status(group, self._members.of(key))
        if status != group.status:
            await self.write_status(group, status)

    @staticmethod
    def groups_of(pod: PodView) -> Iterable[str]:
        raise NotImplementedError

    def compute_status(self, group: Plain, pods: list[PodView]) -> Json:
        raise NotImplementedError

    async def write_status(self, group: Plain, status: Json) -> None:
        await self._groups.patch_status(group, status)


def is_readable(struct: type[Object], item: Plain) -> bool:
    """Whether the fields of an object have values of the right types, which a definition need not ensure.

    The scheduler reports those that have not.
    """
    try:
        decode(struct, {"spec": item.spec})
    except InputError as error:
        log.log(2, "Status not written: the object cannot be read", object=item.key, err=error)
        return False
    return True


class CoschedulingGroups(GroupPhases):
    """Phases and counts of scheduler-plugins' PodGroups."""

    kind = COSCHEDULING_GROUPS
    struct = CoschedulingPodGroup
    groups_of = staticmethod(labelled_group)

    def compute_status(self, group: Plain, pods: list[PodView]) -> Json:
        return phase_status(group, pods)


def phase_status(group: Plain, pods: list[PodView]) -> Json:
    """The status of a PodGroup of scheduler-plugins after its pods have changed."""
    status, least = dict(group.status), max(group.spec.get("minMember") or 1, 1)
    phase = status.get("phase") or "Pending"
    if phase in ("Finished", "Failed"):
        return status
    if phase == "Pending" and len(pods) >= least:
        phase = "Scheduling"
        if owners := occupants(pods):
            status["occupiedBy"] = owners
    if phase != "Pending":
        phases = [pod.phase for pod in pods]
        counts = {name.lower(): phases.count(name) for name in ("Running", "Succeeded", "Failed")}
        status |= counts
        running, succeeded, failed = counts.values()
        if len(pods) < least:
            phase = "Pending"
        else:
            phase = "Running" if succeeded + running >= least else "Scheduling"
            if failed and failed + running + succeeded >= least:
                phase = "Failed"
            if succeeded >= least:
                phase = "Finished"
    return {**status, "phase": phase}


def occupants(pods: list[PodView]) -> str:
    """The owners of the group's first pod."""
    if not pods:
        return ""
    first = min(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.name))
    return ",".join(sorted(f"{first.namespace}/{each.name}" for each in first.metadata.owner_references))


class ElasticQuotas(Controller):
    """What the running pods of a namespace use of its ElasticQuotas. Keys are namespaces."""

    component = "elasticquota-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._quotas, pods = self.store(ELASTIC_QUOTAS), self.store(PODS)
        self._of_namespace = self._quotas.index(by_namespace)
        self._quotas.listen_keys(lambda key: self.queue.add(key.partition("/")[0]))
        pods.listen(self._on_pod)

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        phases = [None if pod is None else pod.phase for pod in (old, new)]
        if phases[0] != phases[1] and "Running" in phases:
            pod = new if new is not None else old
            assert pod is not None
            if self._of_namespace.of(pod.namespace):
                self.queue.add_after(pod.namespace, PAUSE_SECONDS)

    async def reconcile(self, key: str) -> None:
        quotas = [
            each
            for each in self._of_namespace.of(key)
            if not each.is_terminating and is_readable(ElasticQuota, each)
        ]
        if not quotas:
            return
        total: quota.Amounts = {}
        found = await self.stores.api.get_json(f"/api/v1/namespaces/{key}/pods")
        for pod in found["items"]:
            if (pod.get("status") or {}).get("phase") == "Running":
                for name, amount in (
                    quota.pod_amounts(pod["spec"], "requests") | {"pods": quota.ONE}
                ).items():
                    total[name] = quota.add(total[name], amount) if name in total else amount
        for item in quotas:
            names = {*(item.spec.get("min") or {}), *(item.spec.get("max") or {})}
            used = quota.write({name: total.get(name, Quantity(0)) for name in names})
            before = item.status.get("used") or {}
            if used != before:
                await self._quotas.patch_status(item, {"used": {**dict.fromkeys(before), **used}})
                self.record(ELASTIC_QUOTAS, item, "Synced", f"Elastic Quota {item.key} synced successfully")


PHASES = ("Pending", "Running", "Unknown", "Inqueue", "Completed")


def annotated_group(pod: PodView) -> Iterable[str]:
    """For an Index: by the PodGroup of Volcano that the pod's annotation names."""
    annotations = pod.metadata.annotations
    name = annotations.get(GROUP_NAME) or annotations.get(VOLCANO_GROUP_NAME)
    return (f"{pod.namespace}/{name}",) if name else ()


class VolcanoGroups(GroupPhases):
    """Phases and counts of Volcano's PodGroups. The scheduler admits them (`Inqueue`)."""

    kind = VOLCANO_GROUPS
    struct = VolcanoPodGroup
    groups_of = staticmethod(annotated_group)

    def compute_status(self, group: Plain, pods: list[PodView]) -> Json:
        return volcano_status(group, pods, self.clock.now())

    async def write_status(self, group: Plain, status: Json) -> None:
        await self._groups.patch(group, {"status": status})  # the kind has no status subresource


def volcano_status(group: Plain, pods: list[PodView], now: float) -> Json:
    """The status of a PodGroup of Volcano after its pods have changed."""
    status, spec = dict(group.status), group.spec
    least, by_task = max(spec.get("minMember") or 0, 0), spec.get("minTaskMember") or {}
    phases = [pod.phase for pod in pods]
    running, succeeded, failed = (phases.count(name) for name in ("Running", "Succeeded", "Failed"))
    for name, count in (("running", running), ("succeeded", succeeded), ("failed", failed)):
        if count or name in status:
            status[name] = count
    conditions = list(status.get("conditions") or ())
    tasks = Counter(map(_task_of, pods))
    if pods and len(pods) - failed < least:
        text = f"Not enough valid tasks for gang-scheduling, valid: {len(pods) - failed}, min: {least}"
        _set_unschedulable(conditions, "NotEnoughTasks", text, now)
    elif pods and sum(by_task.values()) <= least and any(tasks[name] < by_task[name] for name in by_task):
        text = "Not enough valid pods of each task for gang-scheduling"
        _set_unschedulable(conditions, "NotEnoughPodsOfTask", text, now)
    else:
        for number, each in enumerate(conditions):
            if each.get("reason") in ("NotEnoughTasks", "NotEnoughPodsOfTask") and each["status"] == "True":
                conditions[number] = {**each, "status": "False", "lastTransitionTime": wire_time(now)}
    if conditions:
        status["conditions"] = conditions
    is_short = any(
        each.get("type") == "Unschedulable" and each.get("status") == "True" for each in conditions
    )
    scheduled = sum(1 for pod in pods if pod.node or pod.is_finished)
    phase = status.get("phase") or "Pending"
    if running and is_short:
        phase = "Unknown"
    elif scheduled and scheduled >= least:
        phase = "Completed" if succeeded + failed == scheduled else "Running"
    elif phase != "Inqueue":
        phase = "Pending"
    return {**status, "phase": phase}


def _task_of(pod: PodView) -> str:
    return pod.metadata.annotations.get(TASK) or pod.labels.get(TASK, "")


def _set_unschedulable(conditions: list[Json], reason: str, message: str, now: float) -> None:
    """Set the condition; it keeps its time while nothing else of it changes."""
    made = {"type": "Unschedulable", "status": "True", "reason": reason, "message": message}
    known = next((each for each in conditions if each.get("type") == "Unschedulable"), None)
    if known is not None and made.items() <= known.items():
        return
    if known is not None:
        conditions.remove(known)
    conditions.append({**made, "lastTransitionTime": wire_time(now), "transitionID": f"{now:.6f}"})


class Queues(Controller):
    """The state of Volcano's Queues, and how many PodGroups each has in which phase."""

    component = "queue-controller"

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores)
        self._queues: Store[Plain] = self.store(QUEUES)
        self._groups = self.store(VOLCANO_GROUPS)
        self._of_queue = self._groups.index(queue_of)
        self._queues.listen_keys(self.queue.add)
        self._groups.listen(self._on_group)
        self.queue.add(DEFAULT_QUEUE)

    def _on_group(self, old: Plain | None, new: Plain | None) -> None:
        for group in (old, new):
            for key in queue_of(group) if group is not None else ():
                self.queue.add(key)

    async def reconcile(self, key: str) -> None:
        item = self._queues.get(key)
        if item is None:
            if key == DEFAULT_QUEUE:  # the one of groups that name none: it is always there
                await self._create_default()
            return
        groups = self._of_queue.of(key)
        phases = [group.status.get("phase") or "Pending" for group in groups]
        status = {**item.status, **{name.lower(): phases.count(name) for name in PHASES}}
        state = item.status.get("state") or "Open"
        status["state"] = "Closed" if state == "Closing" and not groups else state
        if status != item.status:
            await self._queues.patch_status(item, status)

    async def _create_default(self) -> None:
        try:
            await self._queues.read("", DEFAULT_QUEUE)
        except NotFound:
            await self._queues.create("", {"metadata": {"name": DEFAULT_QUEUE}, "spec": {"weight": 1}})


def queue_of(group: Plain) -> Iterable[str]:
    return (group.spec.get("queue") or DEFAULT_QUEUE,)


DIALECTS: dict[str, type[CoschedulingGroups | ElasticQuotas | Queues | VolcanoGroups]] = {
    f"{kind.plural}.{kind.api_version.partition('/')[0]}": controller
    for kind, controller in (
        (COSCHEDULING_GROUPS, CoschedulingGroups),
        (ELASTIC_QUOTAS, ElasticQuotas),
        (QUEUES, Queues),
        (VOLCANO_GROUPS, VolcanoGroups),
    )
}
"""The controller of each kind, by the name of its CustomResourceDefinition."""

PAUSE_BETWEEN_ADMISSIONS = 0.25
"""Seconds between two looks at the groups that wait to be admitted."""


class QueueAdmission:
    """Admits Volcano's PodGroups to their queues, and writes what queues use.

    The scheduler's leader runs it for its plugin VolcanoQueue, whose arguments it has.
    """

    def __init__(self, args: VolcanoQueueArgs, handle: Handle) -> None:
        self._handle, self._book = handle, QueueBook(args, handle)
        self._groups, self._queues = handle.watched(VolcanoPodGroup), handle.watched(Queue)
        self._admitted: dict[str, VolcanoPodGroup] = {}
        """Groups that were admitted; until the watch shows that, they count all the same."""
        self._refusals: dict[str, str] = {}

    async def run(self) -> None:
        while True:
            await self.admit_all()
            await self._write_allocated()
            await asyncio.sleep(PAUSE_BETWEEN_ADMISSIONS)

    async def admit_all(self) -> None:
        """Admit all groups that fit, in the order of their queues and their own."""
        waiting = {item.key: item for item in self._groups if item.status.phase in PENDING}
        self._admitted = {key: item for key, item in self._admitted.items() if waiting.get(key) is item}
        self._refusals = {key: text for key, text in self._refusals.items() if key in waiting}
        if len(self._admitted) == len(waiting):
            return
        known = Commitments(self._book, self._groups)
        for item in self._admitted.values():
            known.add(item)
        for item in sorted(waiting.values(), key=self._order):
            if item.key in self._admitted:
                continue
            text = known.refusal(item)
            if not text:
                known.add(item)
                self._admitted[item.key] = item
                status = replace(item.status, phase="Inqueue")
                if not await self._write(replace(item, status=status)):
                    del self._admitted[item.key]
            elif self._refusals.get(item.key) != text:
                self._refusals[item.key] = text
                self._handle.record_event(item, "Normal", "Unschedulable", text)

    def _order(self, item: VolcanoPodGroup) -> tuple[object, ...]:
        book, meta = self._book, item.metadata
        priority = book.priority_of(item.spec.priority_class_name)
        return (*book.rank(item.spec.queue), -priority, meta.creation_timestamp or "", item.key)

    async def _write_allocated(self) -> None:
        self._book.tree()
        for item in tuple(self._queues):
            used = quota.write(
                {
                    name: Quantity(amount * NANO // (1000 if name == "cpu" else 1))
                    if name != "memory"
                    else Quantity.binary(amount * NANO)
                    for name, amount in sorted(self._book.allocated(item.name).items())
                    if amount
                }
            )
            if used != item.status.allocated:
                await self._write(replace(item, status=replace(item.status, allocated=used)))

    async def _write(self, item: Queue | VolcanoPodGroup) -> bool:
        try:
            await self._handle.api.update_status(item)
        except (Conflict, NotFound) as error:  # someone else was faster, which the watch will show
            log.log(4, "Retrying", kind=item.definition.kind, key=item.key, err=error.message)
            return False
        return True
