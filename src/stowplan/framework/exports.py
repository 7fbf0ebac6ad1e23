"""All that a plugin author imports, by the names of `stowplan` and `stowplan.framework`."""

from stowplan.api.custom import Column, CustomResource, Definition, keyed_by
from stowplan.api.groups import Group
from stowplan.api.meta import Wire
from stowplan.api.pod import Pod
from stowplan.api.quantity import Quantity
from stowplan.cluster import ClusterView, Node, NodeTable
from stowplan.framework.args import PluginArgs
from stowplan.framework.decision import Decision
from stowplan.framework.events import QUEUE, SKIP_HINT, Action, ClusterEvent, Hint, Resource
from stowplan.framework.handle import Api, Handle, WaitingPod
from stowplan.framework.plugin import (
    FilterError,
    Mask,
    Nomination,
    Placement,
    Plugin,
    Queued,
    Reads,
    Reject,
    Right,
    SortKey,
)
from stowplan.framework.scores import MAX_SCORE, Scores, scale_to_max
from stowplan.framework.state import CycleState, StateMissing
from stowplan.framework.status import Code, Status

__all__ = [
    "MAX_SCORE",
    "QUEUE",
    "SKIP_HINT",
    "Action",
    "Api",
    "ClusterEvent",
    "ClusterView",
    "Code",
    "Column",
    "CustomResource",
    "CycleState",
    "Decision",
    "Definition",
    "FilterError",
    "Group",
    "Handle",
    "Hint",
    "Mask",
    "Node",
    "NodeTable",
    "Nomination",
    "Placement",
    "Plugin",
    "PluginArgs",
    "Pod",
    "Quantity",
    "Queued",
    "Reads",
    "Reject",
    "Resource",
    "Right",
    "Scores",
    "SortKey",
    "StateMissing",
    "Status",
    "WaitingPod",
    "Wire",
    "keyed_by",
    "scale_to_max",
]
