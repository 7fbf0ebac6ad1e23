"""NodeDeclaredFeatures: pods that need a feature of the kubelet."""

from __future__ import annotations

import pytest
from alone import UNRESOLVABLE, ask, plugin_of, refusals

from make import make_node, make_pod
from stowplan.framework import QUEUE, SKIP_HINT, Action, ClusterEvent, Resource, Status

RESTART, USERS = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"
REFUSED = (UNRESOLVABLE, "node(s) didn't match Pod's required features")
FEATURE = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_DECLARED_FEATURE)
UPDATED = ClusterEvent(Resource.UNSCHEDULABLE_POD, Action.UPDATE)
RULES = {"restartPolicyRules": [{"action": "Restart"}, {"action": "RestartAllContainers"}]}
RESTARTING = make_pod(containers=[{"name": "c", **RULES}])
HOST_USERS = make_pod(hostNetwork=True, hostUsers=False)


@pytest.mark.parametrize(
    ("pod", "fits"),
    [
        pytest.param(make_pod(), "none restart users both", id="nothing needed"),
        pytest.param(RESTARTING, "restart both", id="a container that restarts all"),
        pytest.param(
            make_pod(initContainers=[{"name": "i", **RULES}]),
            "restart both",
            id="an init container that does",
        ),
        pytest.param(
            make_pod(containers=[{"name": "c", "restartPolicyRules": [{"action": "Restart"}]}]),
            "none restart users both",
            id="one that restarts itself",
        ),
        pytest.param(HOST_USERS, "users both", id="host network with own users"),
        pytest.param(make_pod(hostNetwork=True), "none restart users both", id="host network alone"),
        pytest.param(make_pod(hostUsers=False), "none restart users both", id="own users alone"),
        pytest.param(
            make_pod(containers=[{"name": "c", **RULES}], hostNetwork=True, hostUsers=False),
            "both",
            id="both",
        ),
    ],
)
def test_features(pod, fits):
    nodes = [
        make_node("none"),
        make_node("restart", features=[RESTART]),
        make_node("users", features=["Unknown", USERS]),
        make_node("both", features=[RESTART, USERS]),
    ]
    expected = {node.name: REFUSED for node in nodes if node.name not in fits.split()}
    assert refusals(ask("NodeDeclaredFeatures", pod, *nodes)) == expected


def test_a_pod_that_needs_nothing_is_of_no_interest():
    plugin = plugin_of("NodeDeclaredFeatures", make_node("n"))
    assert plugin.pre_filter(None, make_pod(), plugin.handle.cluster.nodes) == Status.skip()


@pytest.mark.parametrize(
    ("event", "old", "new", "hint"),
    [
        pytest.param(FEATURE, None, make_node("n"), QUEUE, id="a new node"),
        pytest.param(FEATURE, make_node("n"), make_node("n", features=[USERS]), QUEUE, id="a new feature"),
        pytest.param(FEATURE, make_node("n"), make_node("n"), SKIP_HINT, id="the same features"),
        pytest.param(UPDATED, HOST_USERS, make_pod(), QUEUE, id="the pod needs less"),
        pytest.param(UPDATED, HOST_USERS, HOST_USERS, SKIP_HINT, id="the pod needs the same"),
        pytest.param(
            UPDATED,
            make_pod("other", hostNetwork=True, hostUsers=False),
            make_pod("other"),
            SKIP_HINT,
            id="another pod needs less",
        ),
    ],
)
def test_what_is_news(event, old, new, hint):
    assert plugin_of("NodeDeclaredFeatures").queueing_hint(HOST_USERS, event, old, new) is hint
