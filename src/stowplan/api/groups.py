"""Pod groups: one internal `Group`, and the kinds of each API that describe one.

Everything but this module knows only `Group`. A kind knows how to read itself (`groups`) and under which
condition its users look for the outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple

import msgspec

from stowplan.api.custom import CustomResource, Definition
from stowplan.api.meta import EMPTY, Condition, Wire
from stowplan.api.pod import Pod, Shape, shape_of
from stowplan.api.quantity import Quantity, faults_of

IN_TREE, COSCHEDULING, VOLCANO = "scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
GROUP_NAME, VOLCANO_GROUP_NAME = "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"
TASK, QUEUE_NAME = "volcano.sh/task-spec", "scheduling.volcano.sh/queue-name"
DEFAULT_QUEUE = "default"


class GroupKey(NamedTuple):
    """Names a group. `family` is the API group of its object: equal names in two of them are two groups."""

    family: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class GroupClaim(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class Topology(msgspec.Struct, frozen=True):
    """Where the members must, or should, be close to each other."""

    keys: tuple[str, ...] = ()
    """Node labels, the widest domain first. All members go into one domain of the last one."""
    highest_tier: int | None = None
    """With HyperNodes: the widest tier that may hold all members."""
    tier_name: str = ""
    is_required: bool = True


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A pod group as the scheduler sees it, whichever API described it."""

    key: GroupKey
    api_version: str
    uid: str = ""
    policy: Literal["gang", "basic"] = "gang"
    """With `basic` each member counts for itself."""
    min_count: int = 1
    """How many members must be placed together."""
    min_by_task: Mapping[str, int] = EMPTY
    """Volcano: how many members of each task must be placed together."""
    min_resources: Mapping[str, Quantity] = EMPTY
    topology: Topology | None = None
    disruption: Literal["one", "all"] = "one"
    """Whether preemption may evict single members, or only all of them."""
    priority: int = 0
    """The priority in preemption, if the API has one for groups."""
    never_preempts: bool = False
    claims: tuple[GroupClaim, ...] = ()
    queue: str = ""
    created: str = ""
    was_scheduled: bool = False
    """Whether its status says that the minimum has been placed before."""
    limits_note: str = ""
    """The fields that are not supported, so that the group must wait; empty if there are none."""
    schedule_timeout: int | None = None
    faults: tuple[str, ...] = ()
    """Values that are impossible, and what counts instead."""


class GroupObject(CustomResource, frozen=True):
    """An object that describes groups."""

    condition_type: ClassVar[str] = ""
    """The condition that says whether the group was placed; empty for kinds without one."""
    family: ClassVar[str] = ""

    def groups(self) -> Iterator[Group]:
        """The groups that it describes."""
        raise NotImplementedError


class GangPolicy(Wire, frozen=True):
    min_count: int = 1


class BasicPolicy(Wire, frozen=True):
    pass


class SchedulingPolicy(Wire, frozen=True):
    basic: BasicPolicy | None = None
    gang: GangPolicy | None = None


class TopologyConstraint(Wire, frozen=True):
    key: str = ""


class SchedulingConstraints(Wire, frozen=True):
    topology: tuple[TopologyConstraint, ...] = ()


class GroupStatus(Wire, frozen=True):
    conditions: tuple[Condition, ...] = ()


class InTreeSpec(Wire, frozen=True):
    """The fields that v1alpha2 and v1beta1 share."""

    scheduling_policy: SchedulingPolicy = SchedulingPolicy()
    scheduling_constraints: SchedulingConstraints | None = None
    resource_claims: tuple[GroupClaim, ...] = ()
    priority_class_name: str = ""
    priority: int | None = None


class V1alpha2Spec(InTreeSpec, frozen=True):
    disruption_mode: str | None = None


class DisruptionMode(Wire, frozen=True):
    all: BasicPolicy | None = None
    single: BasicPolicy | None = None


class V1beta1Spec(InTreeSpec, frozen=True):
    disruption_mode: DisruptionMode | None = None
    preemption_policy: str | None = None
    parent_composite_pod_group_name: str = ""


class PodGroupV1alpha2(GroupObject, frozen=True):
    """The PodGroup of Kubernetes 1.36."""

    definition: ClassVar = Definition(IN_TREE, "v1alpha2", "podgroups", "PodGroup")
    missing_advice: ClassVar = (
        "start kube-apiserver with --feature-gates=GenericWorkload=true and "
        "--runtime-config=scheduling.k8s.io/v1alpha2=true; until then pods without a group are scheduled"
    )
    condition_type: ClassVar = "PodGroupScheduled"
    family: ClassVar = IN_TREE
    spec: V1alpha2Spec = V1alpha2Spec()
    status: GroupStatus = GroupStatus()

    def groups(self) -> Iterator[Group]:
        yield _in_tree(self, self.spec, is_whole=self.spec.disruption_mode == "PodGroup")


class PodGroupV1beta1(GroupObject, frozen=True):
    """The PodGroup of Kubernetes 1.37."""

    definition: ClassVar = Definition(IN_TREE, "v1beta1", "podgroups", "PodGroup")
    is_optional: ClassVar = True
    condition_type: ClassVar = "PodGroupInitiallyScheduled"
    family: ClassVar = IN_TREE
    spec: V1beta1Spec = V1beta1Spec()
    status: GroupStatus = GroupStatus()

    def groups(self) -> Iterator[Group]:
        mode = self.spec.disruption_mode
        yield _in_tree(
            self,
            self.spec,
            is_whole=mode is not None and mode.all is not None,
            never_preempts=self.spec.preemption_policy == "Never",
        )


def _in_tree(
    item: PodGroupV1alpha2 | PodGroupV1beta1,
    spec: InTreeSpec,
    *,
    is_whole: bool,
    never_preempts: bool = False,
) -> Group:
    gang, constraints = spec.scheduling_policy.gang, spec.scheduling_constraints
    topology = None
    if constraints is not None:  # an empty object constrains nothing, but rules out preemption
        topology = Topology(tuple(each.key for each in constraints.topology))
    return Group(
        key=GroupKey(IN_TREE, item.namespace, item.name),
        api_version=item.definition.api_version,
        uid=item.metadata.uid,
        policy="basic" if gang is None else "gang",
        min_count=1 if gang is None else gang.min_count,
        topology=topology,
        disruption="all" if is_whole else "one",
        priority=spec.priority or 0,
        never_preempts=never_preempts,
        claims=spec.resource_claims,
        created=item.metadata.creation_timestamp or "",
        was_scheduled=any(
            each.type == item.condition_type and each.status == "True" for each in item.status.conditions
        ),
    )


class WorkloadPodGroup(Wire, frozen=True):
    name: str = ""
    policy: SchedulingPolicy = SchedulingPolicy()


class WorkloadSpec(Wire, frozen=True):
    pod_groups: tuple[WorkloadPodGroup, ...] = ()


class WorkloadV1alpha1(GroupObject, frozen=True):
    """The Workload of Kubernetes 1.35. Pods name it, one of its groups, and a replica of that group."""

    definition: ClassVar = Definition(IN_TREE, "v1alpha1", "workloads", "Workload")
    is_optional: ClassVar = True
    family: ClassVar = IN_TREE
    spec: WorkloadSpec = WorkloadSpec()

    def groups(self) -> Iterator[Group]:
        for each in self.spec.pod_groups:
            yield Group(
                key=GroupKey(IN_TREE, self.namespace, f"{self.name}/{each.name}/"),
                api_version=self.definition.api_version,
                uid=self.metadata.uid,
                policy="basic" if each.policy.gang is None else "gang",
                min_count=1 if each.policy.gang is None else each.policy.gang.min_count,
                created=self.metadata.creation_timestamp or "",
            )


class CoschedulingSpec(Wire, frozen=True):
    min_member: int = 1
    min_resources: dict[str, Quantity] = EMPTY
    schedule_timeout_seconds: int | None = None


class PhaseStatus(Wire, frozen=True):
    phase: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class CoschedulingPodGroup(GroupObject, frozen=True):
    """The PodGroup of scheduler-plugins, which kubeflow, KubeRay and the Spark operator write."""

    definition: ClassVar = Definition(
        COSCHEDULING, "v1alpha1", "podgroups", "PodGroup", short_names=("pg", "pgs")
    )
    missing_advice: ClassVar = "install the CustomResourceDefinitions of scheduler-plugins"
    family: ClassVar = COSCHEDULING
    spec: CoschedulingSpec = CoschedulingSpec()
    status: PhaseStatus = PhaseStatus()

    def groups(self) -> Iterator[Group]:
        yield Group(
            key=GroupKey(COSCHEDULING, self.namespace, self.name),
            api_version=self.definition.api_version,
            uid=self.metadata.uid,
            min_count=max(self.spec.min_member, 1),
            min_resources=self.spec.min_resources,
            faults=_faults(self.spec, 1),
            created=self.metadata.creation_timestamp or "",
            schedule_timeout=self.spec.schedule_timeout_seconds,
        )


class NetworkTopology(Wire, frozen=True):
    mode: str = "hard"
    highest_tier_allowed: int | None = None
    highest_tier_name: str = ""


class SubGroupPolicy(Wire, frozen=True):
    name: str = ""
    min_sub_groups: int = 0


class VolcanoSpec(Wire, frozen=True):
    min_member: int = 0
    min_task_member: dict[str, int] = EMPTY
    queue: str = DEFAULT_QUEUE
    priority_class_name: str = ""
    min_resources: dict[str, Quantity] | None = None
    network_topology: NetworkTopology | None = None
    sub_group_policy: tuple[SubGroupPolicy, ...] = ()


class VolcanoCondition(Condition, frozen=True):
    transition_id: str = msgspec.field(default="", name="transitionID")


class VolcanoStatus(PhaseStatus, frozen=True):
    conditions: tuple[VolcanoCondition, ...] = ()


class VolcanoPodGroup(GroupObject, frozen=True):
    """The PodGroup of Volcano. It has no status subresource: the phase is written with the object."""

    definition: ClassVar = Definition(VOLCANO, "v1beta1", "podgroups", "PodGroup", has_status=False)
    is_optional: ClassVar = True
    family: ClassVar = VOLCANO
    spec: VolcanoSpec = VolcanoSpec()
    status: VolcanoStatus = VolcanoStatus()

    def groups(self) -> Iterator[Group]:
        spec, by_task = self.spec, self.spec.min_task_member
        yield Group(
            key=GroupKey(VOLCANO, self.namespace, self.name),
            api_version=self.definition.api_version,
            uid=self.metadata.uid,
            min_count=max(spec.min_member, 0),
            faults=_faults(spec, 0),
            # Volcano's rule: minimums of tasks that add up to more than the group's are not meant seriously.
            min_by_task=EMPTY if spec.min_member < sum(by_task.values()) else by_task,
            min_resources=EMPTY if spec.min_resources is None else spec.min_resources,
            topology=_network_topology(spec.network_topology),
            queue=spec.queue or DEFAULT_QUEUE,
            created=self.metadata.creation_timestamp or "",
            limits_note=_unsupported(spec),
        )


def _faults(spec: CoschedulingSpec | VolcanoSpec, least: int) -> tuple[str, ...]:
    found = list(faults_of("spec.minResources", spec.min_resources or {}))
    if spec.min_member < least:
        text = f"spec.minMember is {spec.min_member}, which counts as {least}; set it to {least} or more"
        found.insert(0, text)
    return tuple(found)


def _unsupported(spec: VolcanoSpec) -> str:
    """What the group asks for and would not get; it waits rather than being placed without it."""
    for each in spec.sub_group_policy:
        if each.min_sub_groups > 0:
            return f"spec.subGroupPolicy[{each.name}].minSubGroups is not supported; set it to 0"
    return ""


def _network_topology(given: NetworkTopology | None) -> Topology | None:
    if given is None or (
        given.mode == "hard" and given.highest_tier_allowed is None and not given.highest_tier_name
    ):
        return None
    return Topology(
        highest_tier=given.highest_tier_allowed,
        tier_name=given.highest_tier_name,
        is_required=given.mode == "hard",
    )


KINDS_OF_FAMILY: Mapping[str, tuple[type[GroupObject], ...]] = {
    IN_TREE: (PodGroupV1beta1, PodGroupV1alpha2, WorkloadV1alpha1),
    COSCHEDULING: (CoschedulingPodGroup,),
    VOLCANO: (VolcanoPodGroup,),
}
"""The kinds of each API group; the first that has an object of the name counts."""


def named_groups(pod: Pod) -> Iterator[GroupKey]:
    """The groups that a pod names, the one that counts first."""
    if pod.group_name:
        yield GroupKey(IN_TREE, pod.namespace, pod.group_name)
    if name := pod.labels.get(POD_GROUP_LABEL):
        yield GroupKey(COSCHEDULING, pod.namespace, name)
    if name := pod.annotations.get(GROUP_NAME) or pod.annotations.get(VOLCANO_GROUP_NAME):
        yield GroupKey(VOLCANO, pod.namespace, name)


def with_priority(pod: Pod, priority: int) -> Pod:
    """The same pod with another priority: that of its group, which counts in preemption."""
    if pod.priority == priority:
        return pod
    found: Shape | None = pod.shape.memo.get(("priority", priority))
    if found is None:
        found = shape_of(msgspec.structs.replace(pod.spec, priority=priority))
        pod.shape.memo["priority", priority] = found
    return msgspec.structs.replace(pod, shape=found)


def task_of(pod: Pod) -> str:
    """The task that a pod has in a Volcano group."""
    return pod.annotations.get(TASK) or pod.labels.get(TASK, "")
