"""Plugins that say which pods can help are not asked about others, and no pod is left waiting by that."""

from __future__ import annotations

import random
from typing import Any

import pytest
from waiting_room import POD_ADD, POD_DELETE, Room

from example_share import share_of
from make import make_node, make_pod, planner
from stowplan.api.selectors import selector_of_map
from stowplan.cluster.pod_table import PodQuery, terms_of
from stowplan.framework import QUEUE, Action, ClusterEvent, Hint, Resource
from stowplan.framework.hints import ObjectChange, QueueingHints
from stowplan.framework.plugin import AwaitingPlugin

POD_LABEL = ClusterEvent(Resource.ASSIGNED_POD, Action.UPDATE_POD_LABEL)
HOST = "kubernetes.io/hostname"


class Friends(AwaitingPlugin):
    """Waits for pods that have the name in the pod's label; without that label, for any."""

    asked: tuple[str, ...] = ()

    def filter(self, state: Any, pod: Any, node: Any) -> None:
        return None

    def events_to_register(self) -> tuple[ClusterEvent, ...]:
        pods = ClusterEvent(Resource.POD, Action.ADD | Action.UPDATE_POD_LABEL | Action.DELETE)
        return (pods, ClusterEvent(Resource.NODE, Action.ADD))

    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Hint:
        self.asked = (*self.asked, pod.name)
        return Hint.SKIP

    def awaited_pods(self, pod: Any) -> Any:
        if "broken" in pod.labels:
            raise ValueError("no idea")
        if "friend" not in pod.labels:
            return None
        return [PodQuery(frozenset((pod.namespace,)), selector_of_map({"app": pod.labels["friend"]}))]


class Talkative(Friends):
    def queueing_hint(self, pod: Any, event: Any, old: Any, new: Any) -> Hint:
        return super().queueing_hint(pod, event, old, new)


def added(name: str = "new", **fields: Any) -> ObjectChange:
    return ObjectChange(POD_ADD, None, make_pod(name, node="n", **fields))


def asked_after(change: ObjectChange, plugin: type[Friends] = Friends) -> list[str]:
    """Which of four waiting pods the plugin is asked about."""
    room = Room(plugin)
    room.refused("any", plugin.__name__)
    room.refused("web", plugin.__name__, labels={"friend": "web"})
    room.refused("db", plugin.__name__, labels={"friend": "db"})
    room.refused("broken", plugin.__name__, labels={"broken": ""})
    room.queue.on_change(change)
    return sorted(room.plugin(plugin.__name__).asked)


ANTI = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": HOST}
        ]
    }
}
EVERYBODY = ["any", "broken", "db", "web"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(added(labels={"app": "web"}), ["any", "broken", "web"], id="a pod one waits for"),
        pytest.param(added(labels={"app": "else"}), ["any", "broken"], id="a pod nobody waits for"),
        pytest.param(added(labels={"app": "web"}, namespace="b"), ["any", "broken"], id="another namespace"),
        pytest.param(
            ObjectChange(
                POD_LABEL,
                make_pod("c", node="n", labels={"app": "web"}),
                make_pod("c", node="n", labels={"app": "db"}),
            ),
            EVERYBODY,
            id="labels before and after",
        ),
        pytest.param(
            ObjectChange(POD_DELETE, make_pod("c", node="n", labels={"app": "db"}), None),
            ["any", "broken", "db"],
            id="a deleted pod",
        ),
        pytest.param(
            ObjectChange(POD_DELETE, make_pod("c", node="n", affinity=ANTI), None),
            EVERYBODY,
            id="a deleted pod that kept others away",
        ),
        pytest.param(
            ObjectChange(ClusterEvent(Resource.NODE, Action.ADD), None, make_node("n")),
            EVERYBODY,
            id="a node",
        ),
    ],
)
def test_who_is_asked_about(change, expected):
    assert asked_after(change) == expected


def test_a_class_with_another_hint_must_say_itself_what_helps():
    assert asked_after(added(labels={"app": "web"}), Talkative) == EVERYBODY


def test_a_waiting_pod_that_changed_waits_for_other_pods():
    room = Room(Friends)
    pod = room.refused("p", "Friends", labels={"friend": "web"})
    room.queue.update(pod, make_pod("p", labels={"friend": "db"}))
    room.plugin("Friends").asked = ()
    room.queue.on_change(added(labels={"app": "web"}))
    assert room.plugin("Friends").asked == ()
    room.queue.on_change(added(labels={"app": "db"}))
    assert room.plugin("Friends").asked == ("p",)


def test_a_pod_that_left_is_not_asked_about():
    room = Room(Friends)
    room.queue.delete(room.refused("p", "Friends", labels={"friend": "web"}))
    room.queue.on_change(added(labels={"app": "web"}))
    assert room.plugin("Friends").asked == ()


def drawn_selector(draw: random.Random) -> dict[str, Any]:
    key, value = draw.choice("ab"), draw.choice("xy")
    return draw.choice(
        [
            {"matchLabels": {key: value}},
            {"matchExpressions": [{"key": key, "operator": "In", "values": ["x", "y"]}]},
            {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]},
            {"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]},
            {},
        ]
    )


def drawn_pod(draw: random.Random, name: str, **fields: Any) -> Any:
    affinity: dict[str, Any] = {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = [
            {"labelSelector": drawn_selector(draw), "topologyKey": HOST} for _ in range(draw.randrange(3))
        ]
        for term in terms:
            term |= draw.choice([{}, {}, {"namespaces": ["n2"]}, {"namespaceSelector": drawn_selector(draw)}])
        affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    spread = [
        {
            "maxSkew": 1,
            "topologyKey": HOST,
            "whenUnsatisfiable": draw.choice(["DoNotSchedule", "ScheduleAnyway"]),
            "labelSelector": drawn_selector(draw),
            "matchLabelKeys": draw.choice([[], ["c"]]),
        }
        for _ in range(draw.randrange(3))
    ]
    labels = {key: draw.choice("xy") for key in "abc" if draw.random() < 0.5}
    namespace = draw.choice(["n1", "n2"])
    if draw.random() < 0.5:
        affinity = {}
    return make_pod(
        name,
        namespace=namespace,
        labels=labels,
        affinity=affinity,
        topologySpreadConstraints=spread,
        **fields,
    )


@pytest.mark.parametrize("seed", share_of(range(20)))
def test_no_pod_is_left_out_that_the_hint_would_queue(seed):
    """As the queue does, but with both plugins of the default profile asked about every pod."""
    draw = random.Random(seed)
    spaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"a": value}}}
        for name, value in (("n1", "x"), ("n2", "y"))
    ]
    profile = planner(spaces).profiles["default-scheduler"]
    hints = QueueingHints(profile)
    queued = 0
    for number in range(200):
        pod, old = drawn_pod(draw, "waiting"), drawn_pod(draw, f"p{number}", node="n")
        new = drawn_pod(draw, f"p{number}", node="n")
        for event, before, after in ((POD_ADD, None, new), (POD_DELETE, old, None), (POD_LABEL, old, new)):
            answers = hints.answers(pod, ObjectChange(event, before, after))
            for name in ("InterPodAffinity", "PodTopologySpread"):
                queries = hints.awaited_pods(name, pod)
                if answers[name] is not QUEUE or queries is None:
                    continue
                queued += 1
                changed = [each.label_set for each in (before, after) if each is not None]
                kept_away = after is None and bool(terms_of(before).required_anti)
                assert kept_away or any(query.matches(labels) for query in queries for labels in changed)
    assert queued > 50
