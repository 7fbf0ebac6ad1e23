"""Stowplan and kube-scheduler on one control plane: the same pods in one cluster go to the same nodes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from controlplane.control_plane import ADMIN, ControlPlane, token_of
from controlplane.objects import node, pod
from controlplane.pages import ask
from controlplane.pods import PODS, add_nodes, condition, create, placed, words_of
from controlplane.process import Process
from controlplane.waiting import eventually

Json = dict[str, Any]

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
AT_ONCE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}


# The same pods for both, one after the other


class Rivals:
    """Both schedulers at work under names of their own; their logs have every score."""

    def __init__(self, control_plane: ControlPlane, stack: ExitStack) -> None:
        self.control_plane = control_plane
        self.processes: dict[str, Process] = {
            "theirs": stack.enter_context(
                control_plane.kube_scheduler("-v=10", profiles=[{"schedulerName": "theirs"}])
            ),
            "ours": stack.enter_context(
                control_plane.stowplan("-v=10", profiles=[{"schedulerName": "ours"}])
            ),
        }

    async def place(self, made: Json, who: str) -> tuple[str, dict[str, int] | str]:
        """The node that one of them chose, with the totals of all that fit, or else why there is none."""
        name = f"{made['metadata']['name']}-{who}"
        made = {
            **made,
            "metadata": {**made["metadata"], "name": name},
            "spec": {**made["spec"], "schedulerName": who},
        }
        self.control_plane.request("POST", PODS, made)
        await eventually(lambda: self._answer(name), lambda answer: any(answer))
        where, why = self._answer(name)
        return where, self._totals(who, name) if where else words_of(why, self.control_plane)

    def _answer(self, name: str) -> tuple[str, str]:
        found = self.control_plane.request("GET", f"{PODS}/{name}")
        reasons = [each.get("message", "") for each in found["status"].get("conditions", ())]
        return found["spec"].get("nodeName", ""), "".join(reasons)

    def _totals(self, who: str, name: str) -> dict[str, int]:
        scored = re.findall(
            rf'"Calculated node\'s final score for pod" pod="default/{name}" node="(.+?)" score=(\d+)',
            self.processes[who].output,
        )
        return {node_name: int(score) for node_name, score in scored}

    def remove(self, name: str, who: str) -> None:
        self.control_plane.request("DELETE", f"{PODS}/{name}-{who}", AT_ONCE)


async def test_both_choose_among_the_same_best_nodes(control_plane):
    draw = random.Random(36)
    add_nodes(control_plane, *(drawn_node(draw, number) for number in range(12)))
    chosen, refused = 0, 0
    with ExitStack() as stack:
        rivals = Rivals(control_plane, stack)
        for number in range(100):
            made = drawn_pod(draw, number)
            their_node, their_totals = await rivals.place(made, "theirs")
            rivals.remove(f"p{number}", "theirs")  # its pods and ours never see each other
            our_node, our_totals = await rivals.place(made, "ours")
            assert our_totals == their_totals, made
            if isinstance(our_totals, str):
                refused += 1
                rivals.remove(f"p{number}", "ours")
                continue
            chosen += 1
            # A lone node that fits is taken without scores.
            best = {name for name, total in our_totals.items() if total == max(our_totals.values())}
            assert {their_node, our_node} <= (best or {their_node}), made
    assert chosen > 60
    assert refused > 5


def odd_pods() -> dict[str, Json]:
    """What the API server takes, though hardly anyone would write it."""

    def requesting(**resources: str) -> Json:
        names = {name.replace("_", "-"): amount for name, amount in resources.items()}
        return {"containers": [{"name": "c", "image": "web", "resources": {"requests": names}}]}

    def affine(kind: str, rule: Json) -> Json:
        return {"affinity": {kind: rule}}

    def node_term(**term: Any) -> Json:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        return affine("nodeAffinity", required)

    def terms(*required: Json) -> Json:
        return {"requiredDuringSchedulingIgnoredDuringExecution": list(required)}

    hosts = {"topologyKey": HOST}
    return {
        "tiny amounts": requesting(cpu="1e-3", memory="1n"),
        "amounts in other units": requesting(cpu="0.0005k", memory="1e8"),
        "more than there is anywhere": requesting(cpu="9P", memory="7Ei"),
        "nothing, said so": requesting(cpu="0", memory="0"),
        "a resource nobody has": {
            "containers": [{"name": "c", "image": "web", "resources": {"limits": {"example.com/never": "1"}}}]
        },
        "a preference for nothing": affine(
            "nodeAffinity",
            {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 9, "preference": {}}]},
        ),
        "a term for nothing": node_term(),
        "a node by its field": node_term(
            matchFields=[{"key": "metadata.name", "operator": "In", "values": ["n3"]}]
        ),
        "a node that is not there": node_term(
            matchFields=[{"key": "metadata.name", "operator": "In", "values": ["gone"]}]
        ),
        "numbers compared": node_term(matchExpressions=[{"key": "disk", "operator": "Gt", "values": ["5"]}]),
        "an empty selector of pods": affine("podAntiAffinity", terms({**hosts, "labelSelector": {}})),
        "no selector of pods": affine("podAffinity", terms(hosts)),
        "a topology that no node has": affine(
            "podAntiAffinity", terms({"topologyKey": "example.com/rack", "labelSelector": {}})
        ),
        "every taint tolerated": {"tolerations": [{"operator": "Exists"}]},
        "a taint's value of nothing": {"tolerations": [{"key": "only", "operator": "Equal"}]},
        "spread over what is not there": {
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "example.com/rack", "whenUnsatisfiable": "DoNotSchedule"}
            ]
        },
        "more domains than there are": {
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "minDomains": 9,
                    "topologyKey": ZONE,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {},
                }
            ]
        },
        "a claim that is not there": {
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "nowhere"}}]
        },
        "a port twice": {
            "hostNetwork": True,
            "containers": [
                {"name": "c", "image": "web", "ports": [{"containerPort": 80, "hostPort": 80}]},
                {
                    "name": "d",
                    "image": "other",
                    "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "UDP"}],
                },
            ],
        },
        "amounts of the pod as a whole": {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}},
    }


async def test_both_make_the_same_of_odd_pods(control_plane):
    draw = random.Random(7)
    add_nodes(control_plane, *(drawn_node(draw, number) for number in range(6)))
    create(control_plane, pod("neighbour", labels={"app": "web"}, nodeName="n2"))
    wrong = {}
    with ExitStack() as stack:
        rivals = Rivals(control_plane, stack)
        for number, (what, spec) in enumerate(odd_pods().items()):
            made = pod(f"odd{number}", labels={"app": "web"}, **spec)
            found = {}
            for who in ("theirs", "ours"):
                where, said = await rivals.place(made, who)
                best = [name for name, total in said.items() if total == max(said.values())] if where else []
                found[who] = (said, [where] if len(best) < 2 else sorted(best))
                rivals.remove(f"odd{number}", who)
            if found["ours"] != found["theirs"]:
                wrong[what] = found
    assert wrong == {}


def drawn_node(draw: random.Random, number: int) -> Json:
    labels = {ZONE: f"z{number % 3}", "disk": draw.choice(["ssd", "hdd"])}
    taints = [{"key": "only", "value": "batch", "effect": "NoSchedule"}] if number % 5 == 0 else []
    if number % 4 == 1:
        taints.append({"key": "slow", "effect": "PreferNoSchedule"})
    made = node(f"n{number}", labels=labels, taints=taints)
    amounts = {"cpu": draw.choice(["2", "4", "8"]), "memory": draw.choice(["4Gi", "8Gi"]), "pods": "20"}
    images = [{"names": ["registry.example/web:1"], "sizeBytes": 700_000_000}] if number % 3 == 0 else []
    made["status"] = {"capacity": amounts, "allocatable": amounts, "images": images}
    return made


def drawn_pod(draw: random.Random, number: int) -> Json:
    app = draw.choice(["web", "db", "cache"])
    selector = {"labelSelector": {"matchLabels": {"app": app}}}
    spec: Json = {}
    for each in draw.sample(list(WISHES), draw.choice([0, 1, 1, 2])):
        spec = merged(spec, WISHES[each](selector))
    requests = {"cpu": draw.choice(["100m", "500m", "1500m"]), "memory": draw.choice(["64Mi", "1Gi"])}
    if draw.random() < 0.08:
        requests["cpu"] = "16"
    made = pod(f"p{number}", labels={"app": app}, requests=requests, **spec)
    made["spec"]["containers"][0]["image"] = draw.choice(["registry.example/web:1", "other"])
    return made


def merged(spec: Json, more: Json) -> Json:
    """`affinity` has parts that are wished for one by one."""
    affinity = {**spec.get("affinity", {}), **more.get("affinity", {})}
    return {**spec, **more, **({"affinity": affinity} if affinity else {})}


WISHES = {
    "disk": lambda _: {"nodeSelector": {"disk": "ssd"}},
    "batch": lambda _: {"tolerations": [{"key": "only", "operator": "Exists"}]},
    "rather in a zone": lambda _: {
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 40,
                        "preference": {
                            "matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]
                        },
                    }
                ]
            }
        }
    },
    "hard spread": lambda selector: {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", **selector}
        ]
    },
    "soft spread": lambda selector: {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "ScheduleAnyway", **selector}
        ]
    },
    "together": lambda selector: {
        "affinity": {
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": ZONE, **selector}]
            }
        }
    },
    "apart": lambda selector: {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOST, **selector}]
            }
        }
    },
    "rather apart": lambda selector: {
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 70, "podAffinityTerm": {"topologyKey": ZONE, **selector}}
                ]
            }
        }
    },
}


# The same rules for both: each of these tests runs with either scheduler


@pytest.fixture(params=["kube_scheduler", "stowplan"])
def at_work(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[Process]:
    with getattr(control_plane, request.param)() as process:
        yield process


async def landed(control_plane: ControlPlane, name: str) -> str:
    found = await eventually(lambda: placed(control_plane), lambda each: bool(each.get(name)))
    return found[name]


def storage_class(provisioner: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "late"},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(name: str, node_name: str) -> Json:
    where = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node_name]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late",
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [where]}},
        },
    }


def claim(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "late",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


CLAIMS, VOLUMES = "/api/v1/namespaces/default/persistentvolumeclaims", "/api/v1/persistentvolumes"
WITH_DATA = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}


def complete(control_plane: ControlPlane, volume_name: str) -> None:
    """What the controller of volumes would do once a volume is meant for the claim."""
    done = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
    change = {"metadata": {"annotations": done}, "spec": {"volumeName": volume_name}}
    control_plane.request("PATCH", f"{CLAIMS}/data", change)
    control_plane.request("PATCH", f"{CLAIMS}/data/status", {"status": {"phase": "Bound"}})
    control_plane.request("PATCH", f"{VOLUMES}/{volume_name}/status", {"status": {"phase": "Bound"}})


async def test_a_pod_goes_where_a_volume_for_it_is(control_plane, at_work):
    add_nodes(control_plane, node("n1"), node("n2"), node("n3"))
    create(control_plane, storage_class("kubernetes.io/no-provisioner"), volume("disk", "n2"), claim("data"))
    control_plane.request("PATCH", f"{VOLUMES}/disk/status", {"status": {"phase": "Available"}})
    create(control_plane, pod("p", **WITH_DATA))
    await eventually(
        lambda: control_plane.request("GET", f"{VOLUMES}/disk")["spec"].get("claimRef", {}),
        lambda found: found.get("name") == "data",
    )
    assert placed(control_plane)["p"] == ""
    complete(control_plane, "disk")
    assert await landed(control_plane, "p") == "n2"


async def test_a_volume_is_made_where_the_pod_goes(control_plane, at_work):
    add_nodes(control_plane, node("small"), node("n2", labels={"disk": "ssd"}))
    create(control_plane, storage_class("example.com/disk"), claim("data"))
    create(control_plane, pod("p", nodeSelector={"disk": "ssd"}, **WITH_DATA))
    found = await eventually(
        lambda: control_plane.request("GET", f"{CLAIMS}/data"),
        lambda found: bool(found["metadata"].get("annotations")),
    )
    assert found["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n2"
    made = volume("made", "n2")
    identity = {key: found["metadata"][key] for key in ("name", "namespace", "uid")}
    made["spec"]["claimRef"] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **identity}
    create(control_plane, made)
    complete(control_plane, "made")
    assert await landed(control_plane, "p") == "n2"


def device_class(**spec: Any) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}], **spec},
    }


def resource_slice(node_name: str) -> Json:
    """One device."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"of-{node_name}"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": node_name,
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }


def resource_claim(name: str) -> Json:
    wanted = {"name": "one", "exactly": {"deviceClassName": "gpu", "count": 1}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [wanted]}},
    }


RESOURCE_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


async def test_a_claim_is_allocated_a_device_of_the_node(control_plane, at_work):
    add_nodes(control_plane, node("n1"), node("n2"))
    create(control_plane, device_class(), resource_slice("n2"))
    create(control_plane, resource_claim("first"), resource_claim("second"))
    create(control_plane, pod("a", resourceClaims=[{"name": "gpu", "resourceClaimName": "first"}]))
    assert await landed(control_plane, "a") == "n2"
    status = control_plane.request("GET", f"{RESOURCE_CLAIMS}/first")["status"]
    (device,) = status["allocation"]["devices"]["results"]
    assert (device["driver"], device["pool"], device["device"]) == ("gpu.example.com", "n2", "gpu-0")
    assert [each["name"] for each in status["reservedFor"]] == ["a"]
    create(control_plane, pod("b", resourceClaims=[{"name": "gpu", "resourceClaimName": "second"}]))
    why = await eventually(lambda: condition(control_plane, "b"), bool)
    assert words_of(why["message"], control_plane) == words_of(
        "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: "
        "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
        control_plane,
    )


def with_settings(made: Json) -> Json:
    """With settings for the driver; `request` sends them with whitespace, which the API server keeps."""
    opaque = {"driver": "gpu.example.com", "parameters": {"mode": "shared", "limits": [1, 2.5, "<&>"]}}
    spec = made["spec"]
    part = spec.setdefault("devices", {}) if made["kind"] == "ResourceClaim" else spec
    part["config"] = [{"opaque": opaque}]
    return made


async def test_a_claim_is_shared_whose_settings_were_written_with_whitespace(control_plane, at_work):
    add_nodes(control_plane, node("n1"), node("n2"))
    create(control_plane, resource_slice("n2"))
    control_plane.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", with_settings(device_class()))
    control_plane.request("POST", RESOURCE_CLAIMS, with_settings(resource_claim("shared")))
    for name in ("a", "b"):
        create(control_plane, pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": "shared"}]))
        assert await landed(control_plane, name) == "n2"
    found = control_plane.request("GET", f"{RESOURCE_CLAIMS}/shared")
    assert found["metadata"]["finalizers"] == ["resource.kubernetes.io/delete-protection"]
    assert [each["name"] for each in found["status"]["reservedFor"]] == ["a", "b"]
    settings = found["status"]["allocation"]["devices"]["config"]
    assert [each["source"] for each in settings] == ["FromClass", "FromClaim"]


async def test_a_claim_that_kube_scheduler_allocated_is_shared(control_plane):
    add_nodes(control_plane, node("n1"), node("n2"))
    create(control_plane, resource_slice("n2"))
    control_plane.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", with_settings(device_class()))
    control_plane.request("POST", RESOURCE_CLAIMS, with_settings(resource_claim("shared")))
    use = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    for name, scheduler in (("a", control_plane.kube_scheduler), ("b", control_plane.stowplan)):
        with scheduler():
            create(control_plane, pod(name, **use))
            assert await landed(control_plane, name) == "n2"
    found = control_plane.request("GET", f"{RESOURCE_CLAIMS}/shared")["status"]
    assert [each["name"] for each in found["reservedFor"]] == ["a", "b"]


async def test_a_claim_allocated_without_a_timestamp_is_reserved(control_plane):
    """Not by kube-scheduler: it adds the timestamp, and the API server refuses to change an allocation."""
    add_nodes(control_plane, node("n1"), node("n2"))
    create(control_plane, device_class(), resource_slice("n2"), resource_claim("old"))
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}
    result = {"request": "one", "driver": "gpu.example.com", "pool": "n2", "device": "gpu-0"}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [here]}}
    path = f"{RESOURCE_CLAIMS}/old"
    protected = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    control_plane.request("PATCH", path, protected)
    control_plane.request("PATCH", f"{path}/status", {"status": {"allocation": allocation}})
    with control_plane.stowplan():
        create(control_plane, pod("a", resourceClaims=[{"name": "gpu", "resourceClaimName": "old"}]))
        assert await landed(control_plane, "a") == "n2"
    status = control_plane.request("GET", path)["status"]
    assert [each["name"] for each in status["reservedFor"]] == ["a"]
    assert "allocationTimestamp" not in status["allocation"]


async def test_a_claim_is_made_for_a_resource_that_devices_back(control_plane, at_work):
    add_nodes(control_plane, node("n1"), node("n2"))
    create(control_plane, device_class(extendedResourceName="example.com/gpu"), resource_slice("n2"))
    made = pod("a", requests={"cpu": "1", "example.com/gpu": "1"})
    made["spec"]["containers"][0]["resources"]["limits"] = {"example.com/gpu": "1"}
    create(control_plane, made)
    minor = int(control_plane.request("GET", "/version")["minor"])
    if minor < 36:  # without DRAExtendedResource
        why = await eventually(lambda: condition(control_plane, "a"), bool)
        assert "2 Insufficient example.com/gpu" in why["message"]
        return
    assert await landed(control_plane, "a") == "n2"
    (claim_made,) = control_plane.request("GET", RESOURCE_CLAIMS)["items"]
    assert claim_made["metadata"]["generateName"] == "a-extended-resources-"
    assert claim_made["metadata"]["ownerReferences"][0]["name"] == "a"
    (device,) = claim_made["status"]["allocation"]["devices"]["results"]
    assert (device["request"], device["device"]) == ("container-0-request-1", "gpu-0")
    page = ask(at_work.server, "/metrics", token_of(ADMIN))[1]
    counted = [line for line in page.splitlines() if "_resourceclaim_creates_total{" in line]
    if minor >= 37 and at_work.name == "kube-scheduler":  # which shares it with kube-controller-manager
        labels = 'admin_access="false",owner_api_group="",owner_api_kind="Pod",status="success"'
        assert counted == [f"dynamic_resource_allocation_resourceclaim_creates_total{{{labels}}} 1"]
    else:
        assert counted == ['scheduler_resourceclaim_creates_total{status="success"} 1']


async def test_victims_are_taken_where_no_budget_is_violated(control_plane, at_work):
    add_nodes(control_plane, node("guarded"), node("open"))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    urgent = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    filling = {"requests": {"cpu": "4"}, "terminationGracePeriodSeconds": 0}
    create(
        control_plane,
        budget,
        urgent,
        pod("kept", labels={"app": "kept"}, nodeName="guarded", **filling),
        pod("given-up", nodeName="open", **filling),
    )
    create(control_plane, pod("high", requests={"cpu": "3"}, priorityClassName="urgent"))
    assert await landed(control_plane, "high") == "open"
    assert placed(control_plane) == {"kept": "guarded", "high": "open"}


async def test_pods_that_wait_are_woken_by_what_they_wait_for(control_plane, at_work):
    add_nodes(control_plane, node("n1", labels={ZONE: "a"}), node("n2", labels={ZONE: "b"}))
    partner = {"labelSelector": {"matchLabels": {"app": "partner"}}, "topologyKey": ZONE}
    together = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [partner]}}
    create(
        control_plane,
        pod("gated", schedulingGates=[{"name": "example.com/wait"}]),
        pod("lonely", affinity=together),
    )
    why = await eventually(lambda: condition(control_plane, "lonely"), bool)
    assert "2 node(s) didn't match pod affinity rules" in why["message"]
    assert condition(control_plane, "gated")["reason"] == "SchedulingGated"
    create(control_plane, pod("partner", labels={"app": "partner"}, nodeName="n2"))
    assert await landed(control_plane, "lonely") == "n2"
    control_plane.request("PATCH", f"{PODS}/gated", {"spec": {"schedulingGates": None}})
    assert await landed(control_plane, "gated") in ("n1", "n2")
