"""Queueing hints: what the change of an object means to waiting pods, and which plugins are asked about it.

`object_changes` lists the events that the change of an object stands for. `QueueingHints` knows, for one
profile, the plugins that registered for an event, and asks them whether a pod is worth another attempt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from stowplan import log
from stowplan.api.custom import CustomResource
from stowplan.api.groups import GroupObject
from stowplan.api.meta import Object
from stowplan.api.node import NodeObject
from stowplan.api.pod import Pod
from stowplan.api.resource import DeviceClass, ResourceClaim, ResourceSlice
from stowplan.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from stowplan.cluster.pod_table import PodQuery
from stowplan.framework.answers import events_of, hint_of, join_with_or, plugin_error, raise_interrupt
from stowplan.framework.events import Action, ClusterEvent, Hint, Resource
from stowplan.framework.observer import Observer
from stowplan.framework.plugin import AwaitingPlugin, Plugin, overrides
from stowplan.framework.profile import Profile

RESOURCES: Mapping[type[Object], Resource] = {
    PersistentVolume: Resource.PERSISTENT_VOLUME,
    PersistentVolumeClaim: Resource.PERSISTENT_VOLUME_CLAIM,
    StorageClass: Resource.STORAGE_CLASS,
    CSINode: Resource.CSI_NODE,
    CSIDriver: Resource.CSI_DRIVER,
    CSIStorageCapacity: Resource.CSI_STORAGE_CAPACITY,
    VolumeAttachment: Resource.VOLUME_ATTACHMENT,
    ResourceClaim: Resource.RESOURCE_CLAIM,
    ResourceSlice: Resource.RESOURCE_SLICE,
    DeviceClass: Resource.DEVICE_CLASS,
}
"""Kinds whose events only say that an object was added, updated or deleted."""

EVERYTHING = tuple(
    ClusterEvent(resource, Action.ALL)
    for resource in (
        Resource.POD,
        Resource.NODE,
        Resource.PERSISTENT_VOLUME,
        Resource.PERSISTENT_VOLUME_CLAIM,
        Resource.CSI_NODE,
        Resource.CSI_DRIVER,
        Resource.CSI_STORAGE_CAPACITY,
        Resource.STORAGE_CLASS,
        Resource.RESOURCE_CLAIM,
        Resource.DEVICE_CLASS,
    )
)
"""The events of a plugin that registers for none."""
HINT_FAULT_SECONDS = 10.0
"""Between two log lines about the queueing hint of one plugin."""
REJECTING_POINTS = ("preEnqueue", "preFilter", "filter", "reserve", "permit")

AskHint = Callable[[Pod, ClusterEvent, Any, Any], Hint]


class ObjectChange(NamedTuple):
    """An event with its object, before and after: None if it did not exist yet, or does not any more."""

    event: ClusterEvent
    old: Any
    new: Any


def object_changes(old: Any, new: Any) -> Iterator[ObjectChange]:
    """The events for the change of an object; none if it cannot help any pod."""
    kind = type(old if new is None else new)
    if kind is Pod:
        yield from _of_pod(old, new)
    elif kind is NodeObject:
        for action in _came_or_went(old, new) or _node_updates(old, new):
            yield ObjectChange(ClusterEvent(Resource.NODE, action), old, new)
    elif kind in RESOURCES:
        for action in _came_or_went(old, new) or (Action.UPDATE,):
            yield ObjectChange(ClusterEvent(RESOURCES[kind], action), old, new)
    elif issubclass(kind, CustomResource):
        for action in _came_or_went(old, new) or (Action.UPDATE,):
            yield ObjectChange(ClusterEvent(kind.definition.event_resource, action), old, new)


class QueueingHints:
    """Which plugins of a profile registered for which events. Built once, asked for every event."""

    def __init__(self, profile: Profile) -> None:
        rejecting = {name for point in REJECTING_POINTS for name in profile.points.get(point, ())}
        self._registered: dict[str, list[tuple[ClusterEvent, AskHint]]] = {}
        self.by_spec = frozenset(_plugins_with(profile, "hints_by_spec", by_default=True))
        """Plugins that give pods that are alike the same hint."""
        self._by_group = frozenset(_plugins_with(profile, "hints_by_group"))
        self._groups = profile.handle.cluster.groups
        self._by_claim = frozenset(_plugins_with(profile, "hints_by_claim"))
        for name, plugin in profile.plugins.items():
            if overrides(plugin, "events_to_register"):
                wanted = _read_events(name, plugin)
            elif name in rejecting:
                wanted = EVERYTHING
            else:
                continue
            self._registered[name] = _register(wanted, _make_asker(name, plugin, profile.observer))
        self._listeners: dict[ClusterEvent, dict[str, AskHint]] = {}
        self._awaiting = {
            name: plugin
            for name, plugin in profile.plugins.items()
            if isinstance(plugin, AwaitingPlugin)
            and "awaited_pods" in vars(_first_with(plugin, "awaited_pods", "queueing_hint"))
        }

    def events_of(self, plugin: str) -> tuple[ClusterEvent, ...]:
        """What a plugin registered for; nothing if it does not reject pods."""
        return tuple(event for event, _ in self._registered.get(plugin, ()))

    def listeners(self, event: ClusterEvent) -> Mapping[str, AskHint]:
        """The plugins that registered for such an event, each with how to ask it."""
        found = self._listeners.get(event)
        if found is None:
            found = {}
            for name, registered in self._registered.items():
                ask = next((ask for wanted, ask in registered if wanted.covers(event)), None)
                if ask is not None:
                    found[name] = ask
            self._listeners[event] = found
        return found

    def helped_by(self, change: ObjectChange) -> tuple[Iterable[str], Iterable[Pod]]:
        """The plugins to ask about all pods that they rejected, and the pods to ask the others about."""
        event, old, new = change
        names, item = self.listeners(event), old if new is None else new
        if not isinstance(item, GroupObject) or self._by_group.isdisjoint(names):
            return names, ()
        return names.keys() - self._by_group, self._groups.members_of(item)

    def by_claim(self, change: ObjectChange) -> frozenset[str]:
        """The plugins to ask only about pods that name the claim that has changed."""
        event, old, new = change
        if event.resource is not Resource.RESOURCE_CLAIM or new is None or new.has_lost_allocation(old):
            return frozenset()
        return self._by_claim & self.listeners(event).keys()

    def awaited_pods(self, plugin: str, pod: Pod) -> tuple[PodQuery, ...] | None:
        """The pods of which one must change for the plugin to be asked about a pod that it rejected.

        None if it is asked about all changes of pods.
        """
        found = self._awaiting.get(plugin)
        if found is None:
            return None
        try:
            queries = found.awaited_pods(pod)
            return None if queries is None else tuple(queries)
        except Exception:  # its hint fails as well, and will be reported
            return None

    def answers(self, pod: Pod, change: ObjectChange) -> dict[str, Hint]:
        """For each plugin that registered for it: whether it would queue a pod that it rejected."""
        event, old, new = change
        if event.resource is Resource.UNSCHEDULABLE_POD and new.uid != pod.uid:
            return {}
        return {name: ask(pod, event, old, new) for name, ask in self.listeners(event).items()}


def _plugins_with(profile: Profile, what: str, *, by_default: bool = False) -> Iterator[str]:
    """The plugins that promise something of their hints; a class that overrides the hint must say so itself.

    `by_default` holds for plugins without a hint.
    """
    for name, plugin in profile.plugins.items():
        decisive = _first_with(plugin, what, "queueing_hint")
        if by_default if decisive is Plugin else vars(decisive).get(what):
            yield name


def _first_with(plugin: Plugin, *names: str) -> type[object]:
    """The first class of the plugin's, from its own on, that defines one of these names."""
    return next(each for each in type(plugin).__mro__ if not vars(each).keys().isdisjoint(names))


def _read_events(name: str, plugin: Any) -> Iterable[ClusterEvent]:
    try:
        return events_of(plugin.events_to_register())
    except BaseException as error:
        raise plugin_error(
            f'running EventsToRegister of plugin "{name}"', error, method=(plugin, "events_to_register")
        ) from error


def _register(wanted: Iterable[ClusterEvent], ask: AskHint) -> list[tuple[ClusterEvent, AskHint]]:
    found = [(event, ask) for event in wanted]
    of_nodes = [event.action for event, _ in found if event.resource is Resource.NODE]
    if any(action & Action.ADD for action in of_nodes) and not any(
        action & Action.UPDATE_NODE_TAINT for action in of_nodes
    ):
        # parity: a plugin that registers for new nodes gets every change of taints too, without its hint
        found.insert(0, (ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT), _always))
    return found


def _make_asker(name: str, plugin: Plugin, observer: Observer) -> AskHint:
    hint = plugin.queueing_hint if overrides(plugin, "queueing_hint") else None
    if hint is None:
        return _always
    silent_until = -math.inf

    def ask(pod: Pod, event: ClusterEvent, old: object, new: object) -> Hint:
        nonlocal silent_until
        observer.enter("QueueingHint", plugin)
        try:
            return hint_of(hint(pod, event, old, new))
        except BaseException as error:
            raise_interrupt(error)
            if time.monotonic() >= silent_until:  # it may be asked about thousands of pods at once
                silent_until = time.monotonic() + HINT_FAULT_SECONDS
                fault = plugin_error(
                    f'running QueueingHint of plugin "{name}"', error, pod, method=(plugin, "queueing_hint")
                )
                log.error("Plugin failed; its pod is requeued", fault, pod=pod, stacktrace=fault.stack)
            return Hint.QUEUE  # one attempt too many does no harm
        finally:
            observer.leave("QueueingHint", plugin)

    return ask


def _always(pod: Pod, event: ClusterEvent, old: object, new: object) -> Hint:
    return Hint.QUEUE


def _came_or_went(old: object, new: object) -> tuple[Action, ...]:
    if old is None:
        return (Action.ADD,)
    return (Action.DELETE,) if new is None else ()


def _of_pod(old: Any, new: Any) -> Iterator[ObjectChange]:
    """A pod without a node only concerns itself, unless it gives up a nomination."""
    if new is not None and new.node_name and (old is None or not old.node_name):
        yield ObjectChange(ClusterEvent(Resource.ASSIGNED_POD, Action.ADD), None, new)
    elif new is None and (old.node_name or old.nominated_node_name):
        yield ObjectChange(ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE), old, None)
    elif old is not None and new is not None:
        resource = Resource.ASSIGNED_POD if old.node_name else Resource.UNSCHEDULABLE_POD
        for action in tuple(_pod_updates(old, new)) or (Action.UPDATE,):
            yield ObjectChange(ClusterEvent(resource, action), old, new)
        if not old.node_name and old.nominated_node_name not in ("", new.nominated_node_name):
            yield ObjectChange(ClusterEvent(Resource.ASSIGNED_POD, Action.DELETE), old, None)


def _pod_updates(old: Pod, new: Pod) -> Iterator[Action]:
    if old.labels != new.labels:
        yield Action.UPDATE_POD_LABEL
    if _is_scaled_down(old, new):
        yield Action.UPDATE_POD_SCALE_DOWN
    if old.spec.scheduling_gates and not new.spec.scheduling_gates:
        yield Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
    # parity: a toleration that was only changed goes unnoticed
    if len(old.spec.tolerations) != len(new.spec.tolerations):
        yield Action.UPDATE_POD_TOLERATION
    if old.resource_claim_statuses != new.resource_claim_statuses:
        yield Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM


def _is_scaled_down(old: Pod, new: Pod) -> bool:
    before, after = ((each.assigned or each.shape.assigned).requests for each in (old, new))
    return any(name not in after or amount > after[name] for name, amount in before.items())


def _node_updates(old: NodeObject, new: NodeObject) -> Iterator[Action]:
    if old.status.allocatable != new.status.allocatable:
        yield Action.UPDATE_NODE_ALLOCATABLE
    if old.labels != new.labels:
        yield Action.UPDATE_NODE_LABEL
    if old.spec.taints != new.spec.taints or (old.unschedulable and not new.unschedulable):
        yield Action.UPDATE_NODE_TAINT
    if _conditions(old) != _conditions(new):
        yield Action.UPDATE_NODE_CONDITION
    if old.annotations != new.annotations:
        yield Action.UPDATE_NODE_ANNOTATION
    if old.declared_features != new.declared_features:
        yield Action.UPDATE_NODE_DECLARED_FEATURE


def _conditions(node: NodeObject) -> dict[str, str]:
    return {condition.type: condition.status for condition in node.status.conditions}


# Events in words, for people

SUBJECTS = {
    Resource.POD: "a pod",
    Resource.ASSIGNED_POD: "a pod with a node",
    Resource.UNSCHEDULABLE_POD: "the pod itself",
    Resource.NODE: "a node",
    Resource.WILDCARD: "any object",
}
PASSIVE = {Action.ADD: "added", Action.DELETE: "deleted", Action.UPDATE: "changed"}
ACTIVE = {
    Action.UPDATE_POD_SCALE_DOWN: "lowers its requests",
    Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED: "loses its scheduling gates",
    Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM: "gets a resource claim",
}
OWN = (
    Action.UPDATE_POD_TOLERATION
    | Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
    | Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM
)
CHANGING = {
    Action.UPDATE_NODE_ALLOCATABLE: "allocatable resources",
    Action.UPDATE_NODE_LABEL: "labels",
    Action.UPDATE_NODE_TAINT: "taints",
    Action.UPDATE_NODE_CONDITION: "conditions",
    Action.UPDATE_NODE_ANNOTATION: "annotations",
    Action.UPDATE_NODE_DECLARED_FEATURE: "declared features",
    Action.UPDATE_POD_LABEL: "labels",
    Action.UPDATE_POD_TOLERATION: "tolerations",
}


def wakes(profile: Profile, plugins: Iterable[str]) -> dict[str, str]:
    """By plugin that rejected a pod, what would make it worth another attempt."""
    hints = QueueingHints(profile)
    return {name: event_text(events) for name in sorted(plugins) if (events := hints.events_of(name))}


def event_text(events: Iterable[ClusterEvent]) -> str:
    """Such as `a node is added or changes its labels; a pod is deleted`; each resource once."""
    actions: dict[str, Action] = {}
    for resource, action in (part for event in events for part in _parts(event)):
        actions[resource] = actions.get(resource, Action(0)) | action
    return "; ".join(f"{_subject(resource)} {_actions(action)}" for resource, action in actions.items())


def _parts(event: ClusterEvent) -> Iterator[tuple[str, Action]]:
    """Split off the changes that can only happen to the waiting pod itself."""
    resource, action = event
    if resource == Resource.POD and Action.UPDATE not in action and action & OWN:
        yield Resource.UNSCHEDULABLE_POD, action & OWN
        action &= ~OWN
    if action:
        yield resource, action


def _subject(resource: str) -> str:
    kind = resource.rpartition("/")[2]
    if kind.count(".") > 1:  # a custom resource: plural, version and group
        plural, _, group = kind.split(".", 2)
        return f"one of {plural}.{group}"
    article = "an" if kind[:1] in "AEIO" else "a"
    return SUBJECTS.get(resource) or f"{article} {kind}"  # type: ignore[call-overload]


def _actions(action: Action) -> str:
    passive = [text for each, text in PASSIVE.items() if each in action]
    verbs = [f"is {join_with_or(passive)}"] if passive else []
    if Action.UPDATE not in action:
        verbs += [text for each, text in ACTIVE.items() if each in action]
        if changed := [text for each, text in CHANGING.items() if each in action]:
            verbs.append(f"changes its {' or '.join(changed)}")
    return join_with_or(verbs)
