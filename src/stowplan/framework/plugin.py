"""The class a plugin derives from. Its methods are the extension points it takes part in."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan.api.custom import CustomResource
from stowplan.errors import StowplanError
from stowplan.framework.args import PluginArgs
from stowplan.framework.rights import Right

if TYPE_CHECKING:
    from stowplan.framework.handle import Handle

Mask = NDArray[np.bool_]
_serials = itertools.count()


TRUSTED = "stowplan.plugins.default."


class Reads(Enum):
    """What a plugin's answer for a node depends on besides the pod; less than ANYTHING lets it be kept."""

    ANYTHING = "anything"
    NODE = "the node object alone"
    USAGE = "the node object and what the pods on it take: requests, ports, how many they are"


class Reject(msgspec.Struct, gc=False):
    """Nodes that a filter refuses for one reason; `unresolvable` where evicting pods would not help."""

    mask: Mask
    reason: str
    unresolvable: bool | Mask = False


class FilterError(StowplanError):
    """Raised by `filter_nodes` where it fails on some nodes only: `texts` says why, by row.

    It ends the attempt, unless filters before it have rejected these nodes. What was yielded before counts
    for the other nodes.
    """

    def __init__(self, texts: Mapping[int, str]) -> None:
        super().__init__(next(iter(texts.values()), ""))
        self.texts = texts


class Nomination(NamedTuple):
    """What a post_filter achieved: once the victims are gone, the pod should fit on the node."""

    node_name: str
    victims: tuple[Any, ...] = ()


class Plugin:
    """Stores its arguments and its handle; everything else a plugin adds itself.

    Extension points, all optional, by the names of the methods: pre_enqueue, queue_sort, pre_filter,
    add_pod, remove_pod, filter or filter_nodes, post_filter, pre_score, score or score_nodes,
    normalize_score, reserve, unreserve, permit, pre_bind, bind, post_bind, events_to_register,
    queueing_hint, sign_pod, run.

    `filter_nodes` and `score_nodes` of a plugin that has `sign_pod` and sets `reads` are kept per signature
    and worked out again only for nodes that changed.
    """

    args: PluginArgs
    reads: ClassVar[Reads] = Reads.ANYTHING
    takes_rows: ClassVar[bool] = False
    """Whether `filter_nodes` and `score_nodes` also work on a NodeRow, which has numbers for columns."""
    watches: ClassVar[tuple[type[CustomResource], ...]] = ()
    """Kinds beyond those of every scheduler that the host watches for it; `handle.watched` has them."""
    budget: ClassVar[float] = 1.0
    """Seconds that a call may take, for all nodes together; then it is interrupted, and the attempt fails."""
    bind_budget: ClassVar[float] = 60.0
    """The same for `pre_bind`, `bind` and `post_bind`, which may wait without holding up others."""
    rights: ClassVar[tuple[Right, ...]] = ()
    """What it asks of `handle.api`, for `stowplan manifests`; what it `watches` need not be said again."""

    controllers: ClassVar[tuple[str, ...]] = ()
    """What the leader runs for it besides, as `module:Class`: called with the plugin's arguments and handle,
    then `async def run(self)`, which is started over if it fails."""

    def __init__(self, args: PluginArgs, handle: Handle) -> None:
        self.args, self.handle = args, handle
        self.serial = next(_serials)
        """A number no other instance has: a key for what it keeps in the memo of a pod's shape or labels."""

    @property
    def name(self) -> str:
        return type(self).__name__


def is_trusted(plugin: type[Plugin]) -> bool:
    """Whether it is one of the default profile's, which neither hang nor answer wrongly."""
    return plugin.__module__.startswith(TRUSTED)
