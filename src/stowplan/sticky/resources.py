"""The kinds of sticky pods: StickyJob, StickyRecord, and the parts of Pod and Job that they need."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from stowplan.api.custom import Column, CustomResource, Definition, keyed_by
from stowplan.api.meta import Condition, ObjectMeta, Wire

GROUP, VERSION = "example.com", "v1"
PREFIX = "sticky.example.com"
JOB_LABEL, INDEX_LABEL = f"{PREFIX}/job", f"{PREFIX}/index"
KEY, MODE, GRACE, SCOPE = (f"{PREFIX}/{name}" for name in ("key", "mode", "grace-seconds", "scope"))
ENABLED = f"{PREFIX}/enabled"
NODE = "Node"

Mode = Literal["Preferred", "Required", "RequiredThenPreferred"]
OnNodeDeleted = Literal["Forget", "Wait"]
Seconds = Annotated[int, Meta(ge=0)]
POD_TEMPLATE: dict[str, object] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "metadata": {
            "type": "object",
            "properties": {
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
                "finalizers": {"type": "array", "items": {"type": "string"}},
            },
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "spec": {
            "type": "object",
            "required": ["containers"],
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string", "minLength": 1}},
                        "x-kubernetes-preserve-unknown-fields": True,
                    },
                }
            },
            "x-kubernetes-preserve-unknown-fields": True,
        },
    },
}


class Stickiness(Wire, frozen=True):
    """How strongly a pod returns to the place of its predecessor."""

    mode: Mode = "Preferred"
    grace_seconds: Seconds = 0
    scope: Annotated[str, Meta(min_length=1)] = NODE
    history_limit: Annotated[int, Meta(ge=1, le=10)] = 3
    forget_after_seconds: Seconds | None = None
    on_node_deleted: OnNodeDeleted = "Forget"
    weight: Annotated[int, Meta(ge=1, le=100)] = 100
    half_life_seconds: Annotated[int, Meta(ge=1)] | None = None
    trust_node_name: bool = False


class Stay(Wire, frozen=True):
    """One pod's time on a node."""

    node: str = ""
    node_uid: str = msgspec.field(name="nodeUID", default="")
    pod_uid: str = msgspec.field(name="podUID", default="")
    bound_at: str = ""
    finished_at: str = ""
    outcome: str = ""


class Place(Wire, frozen=True):
    """Where the last pod was bound, and its predecessors, the latest first."""

    last_node: str = ""
    last_node_uid: str = msgspec.field(name="lastNodeUID", default="")
    domain: str = ""
    last_bind_time: str = ""
    pod_name: str = ""
    pod_uid: str = msgspec.field(name="podUID", default="")
    history: tuple[Stay, ...] = ()

    @property
    def finished_at(self) -> str:
        """When that pod ended; empty if it has not, or if its end is not recorded yet."""
        head = self.history[0] if self.history else Stay()
        return head.finished_at if head.pod_uid == self.pod_uid else ""


class Slot(Place, frozen=True, kw_only=True):
    """One pod of a StickyJob; `endedPodUID` is the last pod whose end was counted."""

    index: int
    ended_pod_uid: str = msgspec.field(name="endedPodUID", default="")
    ended_at: str = ""
    outcome: str = ""
    failures: int = 0
    returned: bool | None = None


class StickyJobSpec(Wire, frozen=True):
    """A pod template, the number of pods, and their stickiness."""

    template: Annotated[dict[str, Any], Meta(extra_json_schema=POD_TEMPLATE)] = {}
    replicas: Annotated[int, Meta(ge=0)] = 1
    run_policy: Literal["Once", "Always"] = "Once"
    backoff_limit: Annotated[int, Meta(ge=0)] = 6
    stickiness: Stickiness = Stickiness()


class StickyJobStatus(Wire, frozen=True):
    """`lastNode` is that of slot 0."""

    last_node: str = ""
    slots: Annotated[tuple[Slot, ...], keyed_by("index")] = ()
    active: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    conditions: tuple[Condition, ...] = ()
    observed_generation: int = 0


class StickyJob(CustomResource, frozen=True):
    """Pods that return to their node."""

    definition: ClassVar[Definition] = Definition(
        GROUP,
        VERSION,
        "stickyjobs",
        "StickyJob",
        columns=(
            Column("Active", ".status.active", "integer"),
            Column("Succeeded", ".status.succeeded", "integer"),
            Column("Last-Node", ".status.lastNode"),
            Column("Sticky", '.status.conditions[?(@.type=="Sticky")].status'),
        ),
    )
    # The template has a default so that objects without it can be read; the schema requires it.
    spec: Annotated[StickyJobSpec, Meta(extra_json_schema={"required": ["template"]})] = StickyJobSpec()
    status: StickyJobStatus = StickyJobStatus()


class RecordSpec(Place, frozen=True):
    """Where the last pod with this key was bound."""

    key: str = ""


class StickyRecord(CustomResource, frozen=True):
    """The place of pods that are sticky by annotation, written by the scheduler in their namespace."""

    definition: ClassVar[Definition] = Definition(
        GROUP,
        VERSION,
        "stickyrecords",
        "StickyRecord",
        columns=(Column("Key", ".spec.key"), Column("Last-Node", ".spec.lastNode")),
    )
    spec: RecordSpec = RecordSpec()


class PodMeta(ObjectMeta, frozen=True):
    finalizers: tuple[str, ...] = ()


class JobPodStatus(Wire, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class JobPod(CustomResource, frozen=True):
    """A pod of a StickyJob, including finished ones, which schedulers do not watch."""

    definition: ClassVar[Definition] = Definition("", "v1", "pods", "Pod", label_selector=JOB_LABEL)
    metadata: PodMeta = PodMeta()
    spec: dict[str, Any] = {}
    status: JobPodStatus = JobPodStatus()

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def node_name(self) -> str:
        return str(self.spec.get("nodeName", ""))

    @property
    def is_finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def scheduled(self) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == "PodScheduled"), None)


class BatchJob(CustomResource, frozen=True):
    """A Kubernetes Job, which may enable stickiness for its pods."""

    definition: ClassVar[Definition] = Definition("batch", "v1", "jobs", "Job")


class Kinds(NamedTuple):
    job: type[StickyJob]
    record: type[StickyRecord]


@lru_cache(maxsize=16)
def kinds_in(group: str, version: str) -> Kinds:
    """The two kinds, under any group and version."""
    if (group, version) == (GROUP, VERSION):
        return Kinds(StickyJob, StickyRecord)

    class OtherJob(StickyJob, frozen=True):
        definition: ClassVar[Definition] = msgspec.structs.replace(
            StickyJob.definition, group=group, version=version
        )

    class OtherRecord(StickyRecord, frozen=True):
        definition: ClassVar[Definition] = msgspec.structs.replace(
            StickyRecord.definition, group=group, version=version
        )

    return Kinds(OtherJob, OtherRecord)
