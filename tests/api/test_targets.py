"""Which pod is meant, and the pods that workloads would make."""

from __future__ import annotations

import pytest

from plain_objects import ZONE, explain, manifests_of, node, pod, workload
from stowplan.api.templates import find_target
from stowplan.errors import InputError
from stowplan.simulator.question import more_like

PODS = [pod("web"), pod("web", namespace="shop"), pod("job", namespace="deployment")]
WORKLOADS = [workload("Deployment", "web"), workload("Job", "job", group="batch")]


@pytest.mark.parametrize(
    ("wanted", "namespace", "key"),
    [
        pytest.param("web", "default", "default/web", id="a name"),
        pytest.param("web", "shop", "shop/web", id="a name in another namespace"),
        pytest.param("shop/web", "default", "shop/web", id="namespace and name"),
        pytest.param("pod/web", "default", "default/web", id="kind and name"),
        pytest.param("deployment/web", "default", "default/web-new", id="a workload"),
        pytest.param(
            "deployment.apps/web", "default", "default/web-new", id="a workload as kubectl prints it"
        ),
        pytest.param("deploy/web", "default", "default/web-new", id="a workload in short"),
        pytest.param("deployment/job", "default", "deployment/job", id="a namespace named like a kind"),
        pytest.param("job/job", "default", "default/job-new", id="a job"),
    ],
)
def test_finds_the_pod(wanted, namespace, key):
    assert find_target(manifests_of(*PODS, *WORKLOADS, namespace=namespace), wanted).pod.key == key


@pytest.mark.parametrize(
    ("wanted", "objects", "message"),
    [
        pytest.param("web", [], "pod default/web not found (there are none)", id="no pods"),
        pytest.param(
            "webb",
            [pod("a"), pod("b"), pod("web-1"), pod("web")],
            'pod default/webb not found; did you mean "default/web"? '
            "(known: default/web, default/web-1, default/a, default/b)",
            id="the closest first",
        ),
        pytest.param(
            "x",
            [pod(f"p{number}") for number in range(10)],
            "pod default/x not found (known: "
            + ", ".join(f"default/p{n}" for n in range(8))
            + " and 2 more)",
            id="not all of many",
        ),
        pytest.param(
            "sts/web", WORKLOADS, "StatefulSet default/web not found (there are none)", id="a workload"
        ),
    ],
)
def test_says_which_pods_there_are(wanted, objects, message):
    with pytest.raises(InputError) as caught:
        find_target(manifests_of(*objects), wanted)
    assert str(caught.value) == message


def test_a_template_that_is_wrong_names_the_workload():
    broken = workload(
        "Deployment", "web", pod_spec={"containers": [{"resources": {"requests": {"cpu": "x"}}}]}
    )
    with pytest.raises(
        InputError, match=r"Deployment default/web: spec\.template\.spec\.containers\[0\]\..*'x' is not"
    ):
        find_target(manifests_of(broken), "deploy/web")


def test_a_template_that_asks_for_less_than_nothing_names_the_workload():
    broken = workload(
        "Deployment", "web", pod_spec={"containers": [{"resources": {"requests": {"cpu": "-5"}}}]}
    )
    with pytest.raises(
        InputError,
        match=r"Deployment default/web: spec\.template\.spec\.containers\[0\]\.resources\..*: -5 is negative",
    ):
        find_target(manifests_of(broken), "deploy/web")


def test_the_pod_of_a_deployment_is_spread_like_its_siblings():
    """By the system's default constraints, which ask for the labels that its ReplicaSet selects."""
    nodes = [node("a", zone="a", cpu="8"), node("b", zone="b")]
    running = pod("web-1", on="a", labels={"app": "web"})
    found = explain("deploy/web", *nodes, running, workload("Deployment", "web"))
    assert found.decision.chosen == "b"
    assert found.notes == ("This is the next pod that Deployment default/web would create.",)


def test_the_pod_of_a_stateful_set_is_its_next_member_with_its_claims():
    claim = {"metadata": {"name": "data"}, "spec": {"storageClassName": "local"}}
    members = workload("StatefulSet", "db", volumeClaimTemplates=[claim])
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local"},
        "provisioner": "example.com/disk",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["b"]}]}],
    }
    nodes = [node("a", zone="a"), node("b", zone="b")]
    found = explain("sts/db", *nodes, pod("db-0", on="a"), members, storage_class)
    assert found.decision.pod.key == "default/db-1"
    assert found.decision.chosen == "b"


class CountedLookups(dict):
    lookups = 0

    def __contains__(self, key):
        self.lookups += 1
        return super().__contains__(key)


def test_many_members_of_a_stateful_set_are_named_without_starting_over():
    known = manifests_of(pod("db-0"), pod("db-2"), workload("StatefulSet", "db"))
    known.objects = CountedLookups(known.objects)
    names = [each.name for each in more_like(known, "sts/db", 500)]
    assert names == ["db-1", *(f"db-{number}" for number in range(3, 502))]
    assert known.objects.lookups < 5 * 500


def test_the_pod_of_a_daemon_set_puts_up_with_cordoned_nodes():
    cordoned = node("n", unschedulable=True)
    assert explain("ds/agent", cordoned, workload("DaemonSet", "agent")).decision.chosen == "n"
    assert explain("deploy/agent", cordoned, workload("Deployment", "agent")).decision.chosen is None
