"""FragmentationGradientDescent: GPUs are shared so that what is left of them stays usable."""

from __future__ import annotations

import asyncio
import math
import re

import pytest
from alone import UNRESOLVABLE, UNSCHEDULABLE, manifest, refusals, scores
from alone import planner as alone
from hypothesis import given
from hypothesis import strategies as st

from make import make_node, make_pod
from make import planner as make_planner
from stowplan.api.pod import Pod
from stowplan.embedded.cluster import embedded_cluster
from stowplan.errors import ConfigError
from stowplan.framework import Handle
from stowplan.kubelet.templates import NodeTemplate
from stowplan.plugins.gpu_fragments import MAX_SHAPES

NAME = "FragmentationGradientDescent"
COUNT, MILLI = "alibabacloud.com/gpu-count", "alibabacloud.com/gpu-milli"
MODEL, INDEX = "alibabacloud.com/gpu-card-model", "alibabacloud.com/gpu-index"
TYPICAL = [
    {"weight": 5, "cpu": 2000},
    {"weight": 30, "cpu": 4000, "count": 1, "milli": 500},
    {"weight": 20, "cpu": 1000, "count": 1, "milli": 300, "models": ["T4"]},
    {"weight": 40, "cpu": 8000, "count": 1, "milli": 1000},
    {"weight": 5, "cpu": 16000, "count": 2, "milli": 1000, "models": ["T4", "V100"]},
]


def node(name="n", gpus=4, cpu=32, model=""):
    room = {"cpu": str(cpu), "memory": "64Gi", "pods": "99"} | ({COUNT: str(gpus)} if gpus else {})
    return make_node(name, allocatable=room, labels={MODEL: model} if model else {})


def pod(name="pod", milli=None, count=None, index=None, models=None, cpu=1, resource=None, **more):
    given_values = {COUNT: count, MILLI: milli, INDEX: index, MODEL: models}
    annotations = {key: str(value) for key, value in given_values.items() if value is not None}
    requests = {"cpu": str(cpu)} | ({COUNT: str(resource)} if resource else {})
    return make_pod(name, requests=requests, metadata={"annotations": annotations}, **more)


def planner(*objects, **args):
    return alone(NAME, *objects, args={"typicalPods": TYPICAL, **args})


def plugin_in(planner):
    return planner.profiles["default-scheduler"].plugins[NAME]


class Annotations:
    """The API, as far as the plugin uses it: keeps the annotations that are written."""

    def __init__(self):
        self.written = {}

    async def patch_pod(self, pod, patch):
        self.written |= patch["metadata"]["annotations"]


def place_pod(planner, pod):
    """Decide a pod, reserve its devices, count it as placed and bind it; returns the numbers written."""
    decision = planner.decide(pod)
    assert decision.chosen, decision.message
    planner.carry_out(decision)
    plugin, api = plugin_in(planner), Annotations()
    assert plugin.reserve(decision.state, pod, decision.chosen) is None
    plugin.handle = Handle(planner.cluster, api=api)
    assert asyncio.run(plugin.pre_bind(decision.state, pod, decision.chosen)) is None
    text = api.written.get(INDEX, "")
    return decision.chosen, tuple(map(int, text.split("-") if text else ()))


# Which nodes fit


SHARE = "node(s) had fewer than 1 GPU(s) with {} thousandths free"


@pytest.mark.parametrize(
    ("wanted", "code", "reason"),
    [
        (pod(milli=500), None, ""),
        (pod(milli=600), UNSCHEDULABLE, SHARE.format(600)),
        (pod(count=1), UNSCHEDULABLE, "node(s) had fewer than 1 GPU(s) free"),
        (pod(resource=2), UNSCHEDULABLE, "node(s) had fewer than 2 GPU(s) free"),
        (pod(count=3, milli=100), UNRESOLVABLE, "node(s) had fewer than 3 GPU(s) free"),
        (pod(milli=100, models="V100|A100"), UNRESOLVABLE, "node(s) had another GPU model"),
        (pod(milli=100, models="V100|T4"), None, ""),
        (pod(), None, ""),
        (pod(count=0, milli=0), None, ""),
    ],
)
def test_filter(wanted, code, reason):
    running = [pod("a", 500, index=0, node="n"), pod("b", 700, index=1, node="n")]
    found = refusals(planner(node(gpus=2, model="T4"), *running).decide(wanted))
    assert found == ({"n": (code, reason)} if code else {})


def test_a_node_without_gpus():
    decision = planner(node(gpus=0)).decide(pod(milli=100))
    assert refusals(decision) == {"n": (UNRESOLVABLE, SHARE.format(100))}


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"milli": "half"}, f"annotation {MILLI} is 'half', but must be a whole number from 1 to 1000"),
        ({"milli": "-500"}, f"annotation {MILLI} is '-500'"),
        ({"milli": "0.5"}, f"annotation {MILLI} is '0.5'"),
        ({"milli": "1001"}, f"annotation {MILLI} is '1001', but must be a whole number from 1 to 1000"),
        ({"milli": "٣"}, f"annotation {MILLI} is '٣'"),
        ({"milli": ""}, f"annotation {MILLI} is ''"),
        ({"count": "-1"}, f"annotation {COUNT} is '-1', but must be a whole number"),
        ({"count": "9" * 5000}, f"annotation {COUNT} is '999"),
        ({"count": 1, "milli": 0}, f"annotations {COUNT} and {MILLI}: only one of them is 0"),
        ({"count": 0, "milli": 10}, f"annotations {COUNT} and {MILLI}: only one of them is 0"),
    ],
)
def test_requests_that_cannot_be_read_are_rejected(annotations, text):
    decision = planner(node()).decide(pod(**annotations))
    assert decision.chosen is None
    assert decision.message.startswith(f"0/1 nodes are available: {text}")


def test_more_gpus_than_any_node_has():
    found = refusals(planner(node()).decide(pod(count=999_999_999)))
    assert found == {"n": (UNRESOLVABLE, "node(s) had fewer than 999999999 GPU(s) free")}


def test_a_running_pod_whose_request_cannot_be_read_counts_as_whole_gpus_and_is_reported_once():
    found, events = planner(node(gpus=2), pod("odd", "many", node="n")), []
    plugin_in(found).handle.record_event = lambda item, kind, reason, note: events.append((reason, note))
    for _ in range(2):
        assert refusals(found.decide(pod(count=2))) == {
            "n": (UNSCHEDULABLE, "node(s) had fewer than 2 GPU(s) free")
        }
        assert refusals(found.decide(pod(count=1))) == {}
    ((reason, note),) = events
    assert reason == "InvalidGPURequest"
    assert "the pod is counted as 1 whole GPU" in note


@pytest.mark.parametrize("index", ["7", "0-1", "x", "-1", "", "0-0"])
def test_a_running_pod_with_an_impossible_index_still_counts(index):
    found = planner(node(gpus=2), pod("odd", 600, index=index, node="n"))
    assert refusals(found.decide(pod(count=2))) != {}
    assert refusals(found.decide(pod(count=1))) == {}


def test_running_pods_may_hold_more_than_there_is():
    many = [pod(f"p{number}", 900, index=0, node="n") for number in range(3)]
    found = planner(node(gpus=2), *many, pod("eight", count=8, node="n"))
    assert refusals(found.decide(pod(milli=1))) == {"n": (UNSCHEDULABLE, SHARE.format(1))}


def test_pods_of_other_schedulers_have_no_index():
    found = planner(node(gpus=2), pod("a", 500, node="n"), pod("b", 400, node="n"))
    assert refusals(found.decide(pod(count=1))) == {}
    assert refusals(found.decide(pod(milli=700))) == {}
    assert refusals(found.decide(pod(count=2))) != {}


# Which devices


def test_devices_are_chosen_and_given_back():
    found = planner(node(gpus=2))
    one, two, three = pod("one", 500), pod("two", 500), pod("three", 500)
    first = place_pod(found, one)[1]
    assert place_pod(found, two)[1] == first
    other = place_pod(found, three)[1]
    assert other != first
    assert refusals(found.decide(pod("whole", count=1))) != {}
    found.cluster.remove_pod(three)
    found.followers.tell(three, is_gone=True)
    assert place_pod(found, pod("whole", count=1))[1] == other


def test_unreserve_forgets_the_devices():
    """The pod was to share GPU 1, but another scheduler binds it to GPU 0: no GPU is left whole."""
    found = planner(node(gpus=2), pod("half", 500, index=1, node="n"))
    placed = pod("one", 500)
    assert place_pod(found, placed) == ("n", (1,))
    plugin_in(found).unreserve(None, placed, "n")
    found.cluster.remove_pod(placed)
    assert refusals(found.decide(pod("whole", count=1))) == {}
    found.cluster.apply(pod("one", 500, index=0, node="n"))
    assert refusals(found.decide(pod("whole", count=1))) != {}


def test_devices_that_another_profile_has_chosen_are_taken():
    """The pod leaves 400 thousandths of GPU 1 to others, who can use them, and takes of GPU 0."""
    enabled = [{"name": each} for each in ("PrioritySort", "DefaultBinder", NAME)]
    typical = [{"weight": 1, "cpu": 1000, "count": 1, "milli": 400}]
    profiles = [
        {
            "schedulerName": name,
            "plugins": {"multiPoint": {"disabled": [{"name": "*"}], "enabled": enabled}},
            "pluginConfig": [{"name": NAME, "args": {"typicalPods": typical}}],
        }
        for name in ("one", "other")
    ]
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    objects = [node(gpus=2), pod("running", 600, index=1, node="n")]
    found = make_planner(objects, kind | {"profiles": profiles})
    assert refusals(found.decide(pod("whole", count=1, schedulerName="other"))) == {}
    decision = found.decide(pod("part", 300, schedulerName="one"))
    found.carry_out(decision)
    assert found.profiles["one"].plugins[NAME].reserve(decision.state, decision.pod, "n") is None
    for name in ("one", "other"):
        assert refusals(found.decide(pod("whole", count=1, schedulerName=name))) != {}


def test_reserve_on_a_node_that_filled_up_or_is_gone():
    found = planner(node(gpus=1), pod("a", 700, node="n"))
    plugin = plugin_in(found)
    assert plugin.reserve(None, pod("b", 500), "n").message == "node n has no such GPUs left"
    assert plugin.reserve(None, pod("b", count=1), "n").message == "node n has no such GPUs left"
    assert plugin.reserve(None, pod("b", 500), "gone").message == "node gone was deleted"


def test_evicting_a_pod_frees_its_gpu():
    low = pod("low", count=1, node="n", priority=1)
    found = alone(
        NAME, node(gpus=1), low, args={"typicalPods": TYPICAL}, also=("NodeResourcesFit", "DefaultPreemption")
    )
    decision = found.decide(pod("high", 300, priority=9))
    assert decision.nominated == "n"
    assert [each.name for each in decision.victims] == ["low"]


# Which node is best


def slow_fragment(cpu, free, model, typical):
    """As the paper defines it, one pod and one device at a time."""
    total = 0.0
    for each in typical:
        count, milli = each.get("count", 0), each.get("milli", 0)
        fitting = [one for one in free if one >= milli]
        runs = count and cpu >= each["cpu"] and len(fitting) >= count
        runs = runs and (not each.get("models") or model in each["models"])
        total += each["weight"] * (sum(one for one in free if one < milli) if runs else sum(free))
    return total / sum(each["weight"] for each in typical)


def slow_choices(cpu, free, model, wanted, typical):
    """The score of each choice of devices, in the order in which the first of equal ones is taken."""
    count, milli, needs = wanted
    if count == 1 and milli < 1000:
        choices = [(place,) for place, each in enumerate(free) if each >= milli]
    else:
        choices = [tuple(place for place, each in enumerate(free) if each == 1000)[:count]]
    before, found = slow_fragment(cpu, free, model, typical), {}
    for choice in choices:
        after = [each - milli * (place in choice) for place, each in enumerate(free)]
        change = before - slow_fragment(cpu - needs, after, model, typical)
        found[choice] = int(100 / (1 + math.exp(-change / 1000)))
    return found


def slow_score(cpu, free, model, wanted, typical):
    return max(slow_choices(cpu, free, model, wanted, typical).values())


REQUESTS = st.tuples(
    st.sampled_from([(0, 0), (1, 100), (1, 300), (1, 500), (1, 999), (1, 1000), (2, 1000), (4, 1000)]),
    st.sampled_from([1, 5, 12]),
)
NODES = st.tuples(
    st.sampled_from([0, 1, 2, 4, 8, 16]),
    st.sampled_from([2, 8, 20, 64]),
    st.sampled_from(["", "T4", "V100"]),
    st.lists(st.tuples(st.integers(0, 15), st.sampled_from([50, 100, 250, 300, 500, 1000])), max_size=8),
)


@given(st.lists(NODES, min_size=1, max_size=5), st.lists(REQUESTS, min_size=1, max_size=6))
def test_scores_and_rejections_like_one_node_at_a_time(shapes, requests):
    """Also after pods were placed: only changed rows are computed again."""
    objects, state = [], {}
    for number, (gpus, cpu, model, running) in enumerate(shapes):
        name, free = f"n{number}", [1000] * gpus
        objects.append(node(name, gpus, cpu, model))
        cpu *= 1000
        for each, (place, milli) in enumerate(running):
            if place < gpus and free[place] >= milli and cpu >= 1000:
                free[place] -= milli
                cpu -= 1000
                objects.append(pod(f"{name}-{each}", milli, 1, index=place, node=name))
        state[name] = [cpu, free, model]
    found = planner(*objects)
    for number, ((count, milli), cpus) in enumerate(requests):
        wanted, needs = pod(f"new-{number}", milli, count, cpu=cpus), 1000 * cpus
        decision = found.decide(wanted)
        least = milli if count == 1 else 1000
        fits = {
            name
            for name, (_, free, _) in state.items()
            if not count or sum(each >= least for each in free) >= count
        }
        assert set(state) - set(refusals(decision)) == fits
        if len(fits) > 1:
            expected = {
                name: slow_score(cpu, free, model, (count, milli, needs), TYPICAL)
                for name, (cpu, free, model) in state.items()
                if name in fits
            }
            assert scores(decision) == expected
        if decision.chosen and state[decision.chosen][0] >= needs:
            cpu, free, model = state[decision.chosen]
            before = slow_choices(cpu, free, model, (count, milli, needs), TYPICAL)
            name, places = place_pod(found, wanted)
            assert places == max(before, key=before.get)
            for each in places:
                state[name][1][each] -= least
                assert state[name][1][each] >= 0
            assert len(places) == count
            state[name][0] -= needs


def test_hundreds_of_different_nodes():
    free = {f"n{number}": [1000 - 3 * number, 1000] for number in range(1, 300)}
    running = (pod(f"on-{name}", 1000 - first, 1, index=0, node=name) for name, (first, _) in free.items())
    found = planner(*(node(name, 2) for name in free), *running)
    for count, milli in ((1, 300), (1, 1000), (0, 0)):
        expected = {
            name: slow_score(31_000, each, "", (count, milli, 1000), TYPICAL) for name, each in free.items()
        }
        assert scores(found.decide(pod(milli=milli, count=count))) == expected


def test_many_typical_pods_and_a_node_with_many_gpus():
    typical = [
        {
            "weight": 1 + 7 * number % 50,
            "cpu": 300 * number,
            "count": 2 if number % 9 == 0 else 1,
            "milli": 1000 if number % 3 == 0 else 8 * number,
            "models": ["T4"] if number % 5 == 0 else [],
        }
        for number in range(1, 121)
    ]
    free = {f"n{number}": [1000] * 5 + [1000 - 31 * number, 500, 10 * number] for number in range(30)}
    free["large"] = [17 * number % 1001 for number in range(63)] + [1000]
    running = (
        pod(f"{name}-{place}", 1000 - each, 1, index=place, node=name, cpu=0)
        for name, all_free in free.items()
        for place, each in enumerate(all_free)
        if each < 1000
    )
    models = {name: "T4" if name.endswith("3") else "" for name in free}
    found = planner(
        *(node(name, len(each), model=models[name]) for name, each in free.items()),
        *running,
        typicalPods=typical,
    )
    for count, milli in ((1, 300), (1, 999), (1, 1000), (2, 1000), (0, 0)):
        expected = {
            name: slow_score(32_000, sorted(each, reverse=True), models[name], (count, milli, 9000), typical)
            for name, each in free.items()
            if not count or sum(one >= milli for one in each) >= count
        }
        assert scores(found.decide(pod(milli=milli, count=count, cpu=9))) == expected


def test_no_change_is_exactly_none_for_any_weights():
    typical = [{**each, "weight": each["weight"] / 7} for each in TYPICAL]
    found = planner(node("a", 4), node("b", 8, cpu=64), pod("p", 330, index=2, node="a"), typicalPods=typical)
    assert scores(found.decide(pod(cpu=1))) == {"a": 50, "b": 50}


def test_a_pod_prefers_the_gpu_that_it_fills():
    found = planner(node("a", 2), node("b", 2), pod("p", 500, index=1, node="b"))
    assert place_pod(found, pod("half", 500)) == ("b", (1,))


def test_pods_without_gpus_keep_away_from_gpus():
    found = scores(planner(node("gpu", 2, cpu=8), node("none", 0, cpu=8)).decide(pod(cpu=4)))
    assert found["none"] == 50 > found["gpu"]


# The typical pods


def test_they_are_learned_from_the_pods_of_the_cluster():
    halves = [pod(f"p{number}", 500, index=0, node="other") for number in range(3)]
    objects = [node("a", 1), node("b", 1), node("other", 8), pod("x", 500, index=0, node="b"), *halves]
    given_typical = alone(
        NAME, *objects, args={"typicalPods": [{"weight": 4, "cpu": 1000, "count": 1, "milli": 500}]}
    )
    learned = alone(NAME, *objects)
    wanted = pod("new", 500)
    assert scores(learned.decide(wanted)) == scores(given_typical.decide(wanted))
    assert scores(learned.decide(wanted))["b"] > scores(learned.decide(wanted))["a"] - 1
    for number in range(40):
        learned.followers.tell(pod(f"whole{number}", count=1))
    mixed = [{"weight": 40, "cpu": 1000, "count": 1, "milli": 1000}, TYPICAL[1] | {"weight": 4, "cpu": 1000}]
    expected = alone(NAME, *objects, args={"typicalPods": mixed})
    assert scores(learned.decide(wanted)) == scores(expected.decide(wanted))


@pytest.mark.parametrize(("rare", "is_typical"), [(5, False), (6, True)])
def test_the_most_frequent_shapes_that_cover_95_percent_are_typical(rare, is_typical):
    """A rare shape that needs a whole GPU makes half a free one a fragment."""
    objects = [node("a", 1), node("b", 1), pod("x", 500, index=0, node="b")]
    learned = alone(NAME, *objects)
    for number in range(100 - rare - 1):  # and the one on b
        learned.followers.tell(pod(f"half{number}", 500))
    for number in range(rare):
        learned.followers.tell(pod(f"whole{number}", count=1))
    shapes = [{"weight": 100 - rare, "cpu": 1000, "count": 1, "milli": 500}]
    if is_typical:
        shapes.append({"weight": rare, "cpu": 1000, "count": 1, "milli": 1000})
    expected = alone(NAME, *objects, args={"typicalPods": shapes})
    wanted = pod("new", 500)
    assert scores(learned.decide(wanted)) == scores(expected.decide(wanted))
    other = alone(NAME, *objects, args={"typicalPods": shapes[:1]})
    assert (scores(learned.decide(wanted)) == scores(other.decide(wanted))) != is_typical


def test_without_any_pod_to_learn_from_nothing_is_preferred():
    assert scores(alone(NAME, node("a"), node("b")).decide(pod(milli=500))) == {"a": 50, "b": 50}


def test_what_was_learned_is_bounded():
    """Shapes that were seen once are forgotten when there are too many; frequent ones are kept."""
    objects = [node("a", 1), node("b", 1), pod("x", 500, index=0, node="b")]
    found = alone(NAME, *objects)
    for number in range(3):
        found.followers.tell(pod(f"frequent{number}", 700))
    for number in range(MAX_SHAPES - 1):
        found.followers.tell(pod(f"p{number}", 1 + number % 1000, cpu=2 + number))
    frequent = {"weight": 1, "cpu": 1000, "count": 1, "milli": 700}
    expected = alone(NAME, *objects, args={"typicalPods": [frequent]})
    wanted = pod("new", 500)
    assert scores(found.decide(wanted)) == scores(expected.decide(wanted))
    assert len(set(scores(found.decide(wanted)).values())) == 2


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"typicalPods": [{"weight": 0}]}, "typicalPods[0].weight: Invalid value: 0"),
        ({"typicalPods": [{"cpu": -1}]}, "typicalPods[0].cpu: Invalid value: -1: must not be negative"),
        ({"typicalPods": [{"count": 65, "milli": 1}]}, "typicalPods[0].count"),
        ({"typicalPods": [{"count": 1}]}, "typicalPods[0].milli: Invalid value: 0: must be from 1 to 1000"),
        ({"deviceClasses": ["gpu"]}, "driver: Required value: must be set with deviceClasses"),
        ({"gpuResource": ""}, "gpuResource: Required value"),
        ({"typicalPod": []}, "typicalPod"),
    ],
)
def test_arguments_that_are_wrong(args, text):
    with pytest.raises(ConfigError, match=re.escape(text)):
        alone(NAME, node(), args=args)


def test_two_profiles_have_their_own_arguments():
    one = planner(node("a", 2), node("b", 0))
    other = planner(node("a", 2), node("b", 0), milliAnnotation="example.com/milli")
    assert set(refusals(one.decide(pod(milli=500)))) == {"b"}
    assert refusals(other.decide(pod(milli=500))) == {}


# Dynamic resource allocation


DRA = {"deviceClasses": ["gpu"], "driver": "gpu.example.com", "capacity": "memory"}


def gpus(name, *sizes):
    devices = [
        {
            "name": f"gpu-{number}",
            "allowMultipleAllocations": True,
            "capacity": {"memory": {"value": size}},
        }
        for number, size in enumerate(sizes)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": devices}
    return manifest("ResourceSlice", name, apiVersion="resource.k8s.io/v1", spec=spec)


def claim(name, memory=None, allocated=None, count=1):
    exactly = {"deviceClassName": "gpu", "count": count}
    if memory is not None:
        exactly["capacity"] = {"requests": {"memory": memory}}
    status = {}
    if allocated:
        pool, device = allocated
        result = {"request": "gpu", "driver": "gpu.example.com", "pool": pool, "device": device}
        shared = {"shareID": f"share-{name}", "consumedCapacity": {"memory": memory}} if memory else {}
        status = {"allocation": {"devices": {"results": [result | shared]}}}
    fields = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}, "status": status}
    return manifest("ResourceClaim", name, apiVersion="resource.k8s.io/v1", **fields)


def claiming(name, *claims):
    uses = [{"name": each, "resourceClaimName": each} for each in claims]
    return make_pod(name, requests={"cpu": "1"}, resourceClaims=uses)


HALVES = [
    {"weight": 1, "cpu": 1000, "count": 1, "milli": 500},
    {"weight": 1, "cpu": 1000, "count": 1, "milli": 1000},
]


def test_claims_consume_capacity():
    objects = [
        node("a", 0),
        node("b", 0),
        gpus("a", "80Gi", "80Gi"),
        gpus("b", "80Gi", "80Gi"),
        claim("used", "40Gi", ("b", "gpu-1")),
        claim("new", "40Gi"),
        claim("all"),
    ]
    found = planner(*objects, typicalPods=HALVES, **DRA)
    half = scores(found.decide(claiming("pod", "new")))
    assert half == {
        "a": slow_score(32000, [1000, 1000], "", (1, 500, 1000), HALVES),
        "b": slow_score(32000, [1000, 500], "", (1, 500, 1000), HALVES),
    }
    assert half["b"] > half["a"]
    assert scores(found.decide(claiming("pod", "all")))["a"] == slow_score(
        32000, [1000, 1000], "", (1, 1000, 1000), HALVES
    )
    found.cluster.apply(claim("more", "40Gi", ("b", "gpu-1")))
    assert scores(found.decide(claiming("pod", "new")))["b"] == slow_score(
        32000, [1000, 0], "", (1, 500, 1000), HALVES
    )
    for name in ("used", "more"):
        found.cluster.remove(claim(name))
    assert len(set(scores(found.decide(claiming("pod", "new"))).values())) == 1


def test_gpus_of_different_sizes_count_by_the_largest():
    objects = [node("a", 0), node("b", 0), gpus("a", "80Gi"), gpus("b", "40Gi"), claim("new", "40Gi")]
    found = scores(planner(*objects, typicalPods=HALVES, **DRA).decide(claiming("pod", "new")))
    assert found["b"] > found["a"]  # it fills the small one, and leaves the large one whole


def test_claims_that_are_missing_allocated_or_for_other_devices_ask_for_nothing():
    objects = [
        node("a", 0),
        node("b", 0),
        gpus("a", "80Gi"),
        gpus("b", "80Gi"),
        claim("x", "1Gi", ("a", "gpu-0")),
    ]
    found = planner(*objects, typicalPods=HALVES, **DRA)
    assert set(scores(found.decide(claiming("pod", "gone"))).values()) == {50}
    assert scores(found.decide(claiming("pod", "x")))["b"] == 50


@pytest.mark.parametrize("memory", ["0", "-4Gi"])
def test_claims_for_nothing_are_rejected(memory):
    objects = [node("a", 0), gpus("a", "80Gi"), claim("x", memory)]
    decision = planner(*objects, **DRA).decide(claiming("pod", "x"))
    assert f"ResourceClaim default/x: request gpu asks for {memory} of memory" in decision.message


@pytest.mark.parametrize("sizes", [(), ("0",), ("-1",)])
def test_slices_without_capacity(sizes):
    found = planner(node("a", 0), node("b", 0), gpus("a", *sizes), claim("x", "1Gi"), **DRA)
    assert scores(found.decide(claiming("pod", "x"))) == {"a": 50, "b": 50}


# In a running scheduler


async def bind_two():
    """The pods of a cluster whose scheduler has bound two that do not fit on one GPU, by name."""
    plugins = {"multiPoint": {"enabled": [{"name": NAME}]}}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [
            {"plugins": plugins, "pluginConfig": [{"name": NAME, "args": {"typicalPods": TYPICAL}}]}
        ],
    }
    spec = {"containers": [{"name": "main", "image": "web", "resources": {"requests": {"cpu": "1"}}}]}

    def wire(name, milli):
        meta = {"name": name, "annotations": {MILLI: milli}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    template = NodeTemplate(cpu=16, resources={COUNT: 2})
    async with embedded_cluster(template, config=config) as cluster:
        await cluster.create(wire("one", "700"), wire("two", "600"), wire("odd", "-1"))
        await cluster.bound("one")
        await cluster.bound("two")
        assert f"annotation {MILLI} is '-1', but must be" in await cluster.rejected("odd")
        return {each["metadata"]["name"]: each for each in await cluster.list("Pod")}


def test_the_index_is_written_and_known_to_the_next_scheduler():
    pods = asyncio.run(bind_two())
    indexes = {name: pods[name]["metadata"]["annotations"].get(INDEX) for name in ("one", "two")}
    assert sorted(indexes.values()) == ["0", "1"]
    again = planner(*map(Pod.decode, pods.values()), node(pods["one"]["spec"]["nodeName"], 2))
    assert place_pod(again, pod("three", 400))[1] == (int(indexes["two"]),)
