"""Cluster events in words: what a plugin that refused a pod waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stowplan.framework.events import Action, ClusterEvent, Resource
from stowplan.framework.hints import QueueingHints
from stowplan.framework.profile import Profile

SUBJECTS = {
    Resource.POD: "a pod",
    Resource.ASSIGNED_POD: "a pod that has a node",
    Resource.UNSCHEDULABLE_POD: "the pod itself",
    Resource.NODE: "a node",
    Resource.WILDCARD: "anything",
}
COMING = {Action.ADD: "comes", Action.DELETE: "goes"}
HAPPENING = {
    Action.UPDATE_POD_SCALE_DOWN: "asks for less",
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
    """By plugin that refused a pod, what would make it worth another try."""
    hints = QueueingHints(profile)
    return {name: event_text(events) for name in sorted(plugins) if (events := hints.events_of(name))}


def event_text(events: Iterable[ClusterEvent]) -> str:
    """Such as `a node comes or changes its labels; a pod goes`; each resource once."""
    actions: dict[str, Action] = {}
    for resource, action in (part for event in events for part in _parts(event)):
        actions[resource] = actions.get(resource, Action(0)) | action
    return "; ".join(f"{_subject(resource)} {_actions(action)}" for resource, action in actions.items())


def _parts(event: ClusterEvent) -> Iterator[tuple[str, Action]]:
    """Of what can happen to pods, some can only happen to the one that waits."""
    resource, action = event
    if resource == Resource.POD and Action.UPDATE not in action and action & OWN:
        yield Resource.UNSCHEDULABLE_POD, action & OWN
        action &= ~OWN
    if action:
        yield resource, action


def _subject(resource: str) -> str:
    kind = resource.rpartition("/")[2]
    article = "an" if kind[:1] in "AEIO" else "a"
    return SUBJECTS.get(resource) or f"{article} {kind}"  # type: ignore[call-overload]


def _actions(action: Action) -> str:
    verbs = [text for each, text in COMING.items() if each in action]
    if Action.UPDATE in action:
        verbs.append("changes")
    else:
        verbs += [text for each, text in HAPPENING.items() if each in action]
        if changed := [text for each, text in CHANGING.items() if each in action]:
            verbs.append(f"changes its {' or '.join(changed)}")
    *others, last = verbs
    return f"{', '.join(others)} or {last}" if others else last
