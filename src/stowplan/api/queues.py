"""Quotas, queues and network topology: the kinds of scheduler-plugins and Volcano beside their pod groups."""

from __future__ import annotations

from typing import Any, ClassVar

from stowplan.api.custom import CustomResource, Definition
from stowplan.api.groups import COSCHEDULING, VOLCANO
from stowplan.api.meta import EMPTY, LabelSelector, Wire
from stowplan.api.quantity import Quantity


class ElasticQuotaSpec(Wire, frozen=True):
    min: dict[str, Quantity] = EMPTY
    max: dict[str, Quantity] = EMPTY


class ElasticQuota(CustomResource, frozen=True):
    """What the pods of its namespace may use, and how much of it is guaranteed."""

    definition: ClassVar = Definition(
        COSCHEDULING, "v1alpha1", "elasticquotas", "ElasticQuota", short_names=("eq", "eqs")
    )
    missing_advice: ClassVar = (
        "install it: stowplan crd elasticquotas.scheduling.x-k8s.io | kubectl apply -f -; "
        "until then no namespace has a quota"
    )
    spec: ElasticQuotaSpec = ElasticQuotaSpec()


class Guarantee(Wire, frozen=True):
    resource: dict[str, Quantity] = EMPTY


class QueueSpec(Wire, frozen=True):
    weight: int = 1
    capability: dict[str, Quantity] = EMPTY
    deserved: dict[str, Quantity] = EMPTY
    guarantee: Guarantee = Guarantee()
    reclaimable: bool | None = None
    parent: str = ""
    priority: int = 0


class QueueStatus(Wire, frozen=True):
    state: str = ""
    allocated: dict[str, Any] = EMPTY


class Queue(CustomResource, frozen=True):
    """A queue of Volcano's, with its share of the cluster."""

    definition: ClassVar = Definition(
        VOLCANO, "v1beta1", "queues", "Queue", namespaced=False, short_names=("q",)
    )
    missing_advice: ClassVar = (
        "install it: stowplan crd queues.scheduling.volcano.sh | kubectl apply -f -; "
        "until then no queue has a limit"
    )
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class NameMatch(Wire, frozen=True):
    name: str = ""


class PatternMatch(Wire, frozen=True):
    pattern: str = ""


class MemberSelector(Wire, frozen=True):
    exact_match: NameMatch | None = None
    regex_match: PatternMatch | None = None
    label_match: LabelSelector | None = None


class HyperNodeMember(Wire, frozen=True):
    type: str = "Node"
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(Wire, frozen=True):
    tier: int = 0
    tier_name: str = ""
    members: tuple[HyperNodeMember, ...] = ()


class HyperNode(CustomResource, frozen=True):
    """Nodes, or HyperNodes of a lower tier, that are close to each other in the network."""

    definition: ClassVar = Definition(
        "topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", namespaced=False, short_names=("hn",)
    )
    is_optional: ClassVar = True
    spec: HyperNodeSpec = HyperNodeSpec()
