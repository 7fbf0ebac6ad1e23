"""Queueing hints: what a change means, who hears of it, and what becomes of the answers."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from make import make_node, make_pod, planner
from stowplan.api.kinds import object_of
from stowplan.cluster import Cluster
from stowplan.config import load
from stowplan.cycle import Planner
from stowplan.errors import PluginError
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Plugin, Resource
from stowplan.framework.hints import ObjectChange, QueueingHints, object_changes
from stowplan.framework.registry import ENTRY_POINTS, Registry

INSTALLED = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
ASSIGNED, WAITING = Resource.ASSIGNED_POD, Resource.UNSCHEDULABLE_POD
NODE_ADDED = ObjectChange(ClusterEvent(Resource.NODE, Action.ADD), None, make_node("n"))
NODE_TAINT = ObjectChange(
    ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT), make_node("n"), make_node("n")
)


# What a change means


def node(**fields):
    """A node as a manifest may have it."""
    plain = {"kind": "Node", "metadata": {"name": "n", **fields.pop("metadata", {})}, **fields}
    return object_of(plain)


def conditions(**statuses):
    return {"conditions": [{"type": kind, "status": status} for kind, status in statuses.items()]}


@pytest.mark.parametrize(
    ("old", "new", "actions"),
    [
        pytest.param(None, node(), [Action.ADD], id="came"),
        pytest.param(node(), None, [Action.DELETE], id="went"),
        pytest.param(node(), node(), [], id="nothing that matters"),
        pytest.param(
            node(status={"allocatable": {"cpu": "1"}}),
            node(status={"allocatable": {"cpu": "2"}}),
            [Action.UPDATE_NODE_ALLOCATABLE],
            id="allocatable",
        ),
        pytest.param(
            node(status={"allocatable": {"cpu": "1"}}),
            node(status={"allocatable": {"cpu": "1000m"}}),
            [],
            id="the same amount, spelt otherwise",
        ),
        pytest.param(node(), node(metadata={"labels": {"x": "y"}}), [Action.UPDATE_NODE_LABEL], id="labels"),
        pytest.param(
            make_node("n", taints=["a=b:NoSchedule"]), make_node("n"), [Action.UPDATE_NODE_TAINT], id="taints"
        ),
        pytest.param(
            make_node("n", unschedulable=True), make_node("n"), [Action.UPDATE_NODE_TAINT], id="uncordoned"
        ),
        pytest.param(make_node("n"), make_node("n", unschedulable=True), [], id="cordoned"),
        pytest.param(
            make_node("n", unschedulable=True, taints=["a=b:NoSchedule"]),
            make_node("n"),
            [Action.UPDATE_NODE_TAINT],
            id="uncordoned, and a taint less",
        ),
        pytest.param(
            node(status=conditions(Ready="False")),
            node(status=conditions(Ready="True")),
            [Action.UPDATE_NODE_CONDITION],
            id="a condition",
        ),
        pytest.param(
            node(status=conditions(Ready="True", Disk="False")),
            node(status=conditions(Disk="False", Ready="True")),
            [],
            id="conditions in another order",
        ),
        pytest.param(
            node(),
            node(metadata={"annotations": {"x": "y"}}),
            [Action.UPDATE_NODE_ANNOTATION],
            id="annotations",
        ),
        pytest.param(
            make_node("n"),
            make_node("n", features=["F"]),
            [Action.UPDATE_NODE_DECLARED_FEATURE],
            id="features",
        ),
        pytest.param(
            make_node("n"),
            make_node("n", labels={"x": "y"}, taints=["a=b:NoSchedule"]),
            [Action.UPDATE_NODE_LABEL, Action.UPDATE_NODE_TAINT],
            id="several things at once",
        ),
    ],
)
def test_nodes(old, new, actions):
    assert list(object_changes(old, new)) == [
        ObjectChange(ClusterEvent(Resource.NODE, action), old, new) for action in actions
    ]


GATED = make_pod(schedulingGates=[{"name": "g"}])
TWO_GATES = make_pod(schedulingGates=[{"name": "g"}, {"name": "h"}])


def claims(name):
    return {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": name}]}


@pytest.mark.parametrize(
    ("old", "new", "actions"),
    [
        pytest.param(make_pod(), make_pod(), [Action.UPDATE], id="nothing in particular"),
        pytest.param(make_pod(), make_pod(labels={"x": "y"}), [Action.UPDATE_POD_LABEL], id="labels"),
        pytest.param(
            make_pod(requests={"cpu": "2"}),
            make_pod(requests={"cpu": "1"}),
            [Action.UPDATE_POD_SCALE_DOWN],
            id="asks for less",
        ),
        pytest.param(
            make_pod(requests={"cpu": "2"}),
            make_pod(),
            [Action.UPDATE_POD_SCALE_DOWN],
            id="asks for it no more",
        ),
        pytest.param(
            make_pod(requests={"cpu": "1"}),
            make_pod(requests={"cpu": "2"}),
            [Action.UPDATE],
            id="asks for more",
        ),
        pytest.param(
            GATED, make_pod(), [Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED], id="the last gate is gone"
        ),
        pytest.param(TWO_GATES, GATED, [Action.UPDATE], id="one of two gates is gone"),
        pytest.param(
            make_pod(), make_pod(tolerations=["a"]), [Action.UPDATE_POD_TOLERATION], id="one more toleration"
        ),
        pytest.param(
            make_pod(tolerations=["a"]), make_pod(tolerations=["b"]), [Action.UPDATE], id="another toleration"
        ),
        pytest.param(
            make_pod(),
            make_pod(status=claims("made")),
            [Action.UPDATE_POD_GENERATED_RESOURCE_CLAIM],
            id="a claim was made",
        ),
        pytest.param(
            make_pod(),
            make_pod(labels={"x": "y"}, tolerations=["a"]),
            [Action.UPDATE_POD_LABEL, Action.UPDATE_POD_TOLERATION],
            id="several things at once",
        ),
    ],
)
@pytest.mark.parametrize("resource", [ASSIGNED, WAITING])
def test_pods_that_change(resource, old, new, actions):
    if resource is ASSIGNED:
        old, new = old.on("n"), new.on("n")
    assert list(object_changes(old, new)) == [
        ObjectChange(ClusterEvent(resource, action), old, new) for action in actions
    ]


LONE, ON_N = make_pod(), make_pod(node="n")
PROMISED, PROMISED_M = (make_pod(status={"nominatedNodeName": name}) for name in "nm")
ADD, DELETE, UPDATE = (Action.ADD, Action.DELETE, Action.UPDATE)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, ON_N, [(ASSIGNED, ADD, None, ON_N)], id="came with a node"),
        pytest.param(None, LONE, [], id="came without one"),
        pytest.param(LONE, ON_N, [(ASSIGNED, ADD, None, ON_N)], id="got a node"),
        pytest.param(ON_N, None, [(ASSIGNED, DELETE, ON_N, None)], id="left its node"),
        pytest.param(LONE, None, [], id="gave up waiting"),
        pytest.param(
            PROMISED, None, [(ASSIGNED, DELETE, PROMISED, None)], id="gave up a node it was promised"
        ),
        pytest.param(
            PROMISED,
            LONE,
            [(WAITING, UPDATE, PROMISED, LONE), (ASSIGNED, DELETE, PROMISED, None)],
            id="is promised nothing any more",
        ),
        pytest.param(
            PROMISED,
            PROMISED_M,
            [(WAITING, UPDATE, PROMISED, PROMISED_M), (ASSIGNED, DELETE, PROMISED, None)],
            id="is promised another node",
        ),
        pytest.param(LONE, PROMISED, [(WAITING, UPDATE, LONE, PROMISED)], id="is promised a node"),
    ],
)
def test_pods_and_their_nodes(old, new, expected):
    found = [
        (event.resource, event.action, before, after) for (event, before, after) in object_changes(old, new)
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("PersistentVolume", "PersistentVolume"),
        ("PersistentVolumeClaim", "PersistentVolumeClaim"),
        ("StorageClass", "storage.k8s.io/StorageClass"),
        ("CSINode", "storage.k8s.io/CSINode"),
        ("CSIDriver", "storage.k8s.io/CSIDriver"),
        ("CSIStorageCapacity", "storage.k8s.io/CSIStorageCapacity"),
        ("VolumeAttachment", "storage.k8s.io/VolumeAttachment"),
        ("ResourceClaim", "resource.k8s.io/ResourceClaim"),
        ("ResourceSlice", "resource.k8s.io/ResourceSlice"),
        ("DeviceClass", "resource.k8s.io/DeviceClass"),
        ("Namespace", None),
        ("Service", None),
        ("PodDisruptionBudget", None),
    ],
)
def test_other_kinds(kind, resource):
    item = object_of({"kind": kind, "metadata": {"name": "x"}})
    changes = {"Add": (None, item), "Delete": (item, None), "Update": (item, item)}
    for action, (old, new) in changes.items():
        found = [(Resource(event.resource).value, event.action) for event, _, _ in object_changes(old, new)]
        assert found == ([(resource, Action[action.upper()])] if resource else [])


# Who hears of it


def hints_of(*plugins):
    registry = Registry({plugin.__name__: plugin for plugin in plugins}, INSTALLED)
    names = ["PrioritySort", "DefaultBinder", *(plugin.__name__ for plugin in plugins)]
    enabled = [{"name": name} for name in names]
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}}}],
    }
    made = Planner(Cluster(), load(config, registry).config, registry=registry)
    return QueueingHints(made.profiles["default-scheduler"])


class Listening(Plugin):
    wanted = (ClusterEvent(Resource.NODE, Action.ADD),)

    def filter(self, state, pod, node):
        return None

    def events_to_register(self):
        return self.wanted

    def queueing_hint(self, pod, event, old, new):
        return SKIP_HINT


def listening(*wanted, **methods):
    return type("Listening", (Listening,), {"wanted": wanted, **methods})


TAINT = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT)


@pytest.mark.parametrize(
    ("plugin", "happening", "expected"),
    [
        pytest.param(Listening, NODE_ADDED, {"Listening": SKIP_HINT}, id="what it registered for"),
        pytest.param(listening(), NODE_ADDED, {}, id="what it did not"),
        pytest.param(Listening, NODE_TAINT, {"Listening": QUEUE}, id="of new nodes: taints too, unasked"),
        pytest.param(listening(TAINT), NODE_TAINT, {"Listening": SKIP_HINT}, id="of taints: asked"),
        pytest.param(
            listening(ClusterEvent(Resource.NODE, Action.DELETE)),
            NODE_TAINT,
            {},
            id="of nodes that go: no taints",
        ),
        pytest.param(
            listening(ClusterEvent(Resource.NODE, Action.ADD), ClusterEvent(Resource.NODE, Action.UPDATE)),
            NODE_TAINT,
            {"Listening": SKIP_HINT},
            id="of taints, in another registration: asked",
        ),
    ],
)
def test_who_is_asked(plugin, happening, expected):
    assert hints_of(plugin).answers(make_pod(), happening) == expected


def test_without_a_hint_every_event_is_worth_a_try():
    class Hintless(Plugin):
        def filter(self, state, pod, node):
            return None

        def events_to_register(self):
            return (ClusterEvent(Resource.NODE, Action.ADD),)

    assert hints_of(Hintless).answers(make_pod(), NODE_ADDED) == {"Hintless": QUEUE}


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda self, *given: 1 / 0, id="raises"),
        pytest.param(lambda self, *given: None, id="says nothing"),
        pytest.param(lambda self, *given: True, id="says something else"),
    ],
)
def test_a_hint_that_fails_is_worth_a_try(answer):
    plugin = listening(ClusterEvent(Resource.NODE, Action.ADD), queueing_hint=answer)
    assert hints_of(plugin).answers(make_pod(), NODE_ADDED) == {"Listening": QUEUE}


class Silent(Plugin):
    """Does not say what it wants to hear of."""

    def filter(self, state, pod, node):
        return None


class OnlyScoring(Plugin):
    def score(self, state, pod, node):
        return 0


@pytest.mark.parametrize(
    ("resource", "hears"),
    [
        *((resource, True) for resource in ("POD", "ASSIGNED_POD", "UNSCHEDULABLE_POD", "NODE")),
        *((resource, True) for resource in ("PERSISTENT_VOLUME", "PERSISTENT_VOLUME_CLAIM", "STORAGE_CLASS")),
        *((resource, True) for resource in ("CSI_NODE", "CSI_DRIVER", "CSI_STORAGE_CAPACITY")),
        *((resource, True) for resource in ("RESOURCE_CLAIM", "DEVICE_CLASS")),
        ("VOLUME_ATTACHMENT", False),
        ("RESOURCE_SLICE", False),
    ],
)
def test_who_does_not_say_hears_of_nearly_everything(resource, hears):
    hints = hints_of(Silent)
    for action in (Action.ADD, Action.UPDATE, Action.DELETE):
        assert ("Silent" in hints.listeners(ClusterEvent(Resource[resource], action))) is hears


def test_who_cannot_refuse_a_pod_hears_of_nothing():
    assert hints_of(OnlyScoring).answers(make_pod(), NODE_ADDED) == {}


def test_a_waiting_pods_change_is_news_to_itself_alone():
    event = ClusterEvent(WAITING, Action.UPDATE)
    changed = make_pod("changed")
    hints = hints_of(Silent)
    assert hints.answers(make_pod("changed"), ObjectChange(event, changed, changed)) == {"Silent": QUEUE}
    assert hints.answers(make_pod("other"), ObjectChange(event, changed, changed)) == {}


def test_a_plugin_whose_events_cannot_be_had():
    def fail(self):
        raise OSError("gone")

    with pytest.raises(PluginError, match='running EventsToRegister of plugin "Listening": OSError: gone'):
        hints_of(listening(events_to_register=fail))


def test_the_default_profile_hears_of_taints():
    hints = QueueingHints(planner([make_node("n")]).profiles["default-scheduler"])
    unasked = {
        "NodeName", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions", "VolumeBinding",
        "VolumeZone", "InterPodAffinity", "DynamicResources", "NodeDeclaredFeatures",
    }  # fmt: skip
    answers = hints.answers(make_pod(), NODE_TAINT)
    assert {name for name, hint in answers.items() if hint is QUEUE} == unasked
    assert answers.keys() - unasked == {"NodeUnschedulable", "TaintToleration", "PodTopologySpread"}


ALIKE_SPECS = (
    {},
    {"requests": {"cpu": "1"}, "priority": 5},
    {"tolerations": ["x"], "nodeSelector": {"zone": "a"}},
    {
        "labels": {"app": "a"},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "a"}},
            }
        ],
        "affinity": {
            kind: {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}}
                ]
            }
            for kind in ("podAffinity", "podAntiAffinity")
        },
    },
)
ALIKE_CHANGES = [
    (None, make_node("n", labels={"zone": "a"})),
    (make_node("n", taints=["x=y:NoSchedule"]), make_node("n")),
    (make_node("n", labels={"zone": "a"}), make_node("n", labels={"zone": "b"})),
    (None, make_pod("other", node="n", labels={"app": "a"})),
    (make_pod("other", node="n", labels={"app": "a"}, priority=3), None),
    (make_pod("other", node="n", labels={"app": "a"}), make_pod("other", node="n", labels={"app": "b"})),
]


@pytest.mark.parametrize("spec", ALIKE_SPECS)
def test_plugins_that_promise_it_give_pods_that_are_alike_the_same_hint(spec):
    (profile,) = planner([make_node("n")]).profiles.values()
    hints = QueueingHints(profile)
    one, two = make_pod("one", **spec), make_pod("two", **spec)
    asked = set()
    for old, new in ALIKE_CHANGES:
        for change in object_changes(old, new):
            answers = [
                {name: hint for name, hint in hints.answers(pod, change).items() if name in hints.by_spec}
                for pod in (one, two)
            ]
            assert answers[0] == answers[1]
            asked |= answers[0].keys()
    assert {"InterPodAffinity", "NodeResourcesFit", "PodTopologySpread", "TaintToleration"} <= asked
    assert not {"DynamicResources", "VolumeBinding", "VolumeRestrictions", "VolumeZone"} & asked
