"""The allocator: which devices claims get, from the rules of kube-scheduler's reference."""

from __future__ import annotations

import pytest
from device_objects import (
    DRIVER,
    GPU,
    a_slice,
    allocate,
    ask,
    ask_all,
    ask_first,
    claim,
    cluster_of,
    details,
    device,
    device_class,
    held,
    node,
    node_in,
    read_claim,
    read_class,
    read_slice,
    selects,
)

from stowplan.plugins.devices.allocator import INVALID_POOLS, NO_SOLUTION
from stowplan.plugins.devices.claims import Usage, demand_of
from stowplan.plugins.devices.pools import AllocationError, BudgetSpentError, DeviceBudget, Inventory


def solve(claims, slices, *, classes=(), taken=(), on=None, **more):
    """Allocations for the claims on a node, or the reason why there are none, or what is wrong."""
    by_name = {each.name: each for each in map(read_class, (GPU, *classes))}
    demands = [demand_of(read_claim(each), lambda name, request: by_name[name]) for each in claims]
    here = node_in(cluster_of(on or node()), (on or node())["metadata"]["name"])
    usage = Usage.of(read_claim(each).allocation for each in taken)
    try:
        return allocate(demands, here, Inventory(map(read_slice, slices)).pools_for(here), usage, **more)
    except AllocationError as error:
        return f"error: {error}"


def given(*arguments, **more):
    """The same, as `request: device` for each device of each claim."""
    found = solve(*arguments, **more)
    if isinstance(found, str):
        return found
    return [f"{each.request}: {each.device}" for allocation in found for each in allocation.devices.results]


FOUR = a_slice("s", "d0", "d1", "d2", "d3")
RED_AND_BLUE = a_slice(
    "s", *(device(f"{color}{i}", color=color) for i in range(2) for color in ("red", "blue")), device("plain")
)
MATCH = {"constraints": [{"matchAttribute": f"{DRIVER}/color"}]}
DISTINCT = {"constraints": [{"distinctAttribute": f"{DRIVER}/color"}]}
IS_RED = f'device.attributes["{DRIVER}"].?color.orValue("") == "red"'
IS_BLUE = f'device.attributes["{DRIVER}"].?color.orValue("") == "blue"'


@pytest.mark.parametrize(
    ("claims", "slices", "taken", "expected"),
    [
        pytest.param([claim(ask())], [FOUR], [], ["r: d0"], id="the first device"),
        pytest.param([claim(ask())], [FOUR], [held("d0", "d1")], ["r: d2"], id="the first free device"),
        pytest.param([claim(ask(count=2))], [FOUR], [], ["r: d0", "r: d1"], id="several devices"),
        pytest.param([claim(ask(count=5))], [FOUR], [], NO_SOLUTION, id="more than there are"),
        pytest.param(
            [claim(ask("a"), ask("b"), name="x"), claim(ask("c"), name="y")],
            [FOUR],
            [],
            ["a: d0", "b: d1", "c: d2"],
            id="no device twice, over requests and claims",
        ),
        pytest.param([claim(ask())], [], [], NO_SOLUTION, id="no slices"),
        pytest.param(
            [claim(ask(count=4))],
            [
                a_slice("z", "dz", pool="p1", driver="b.io"),
                a_slice("y", "dy", pool="p2", driver="a.io", count=2),
                a_slice("x", "dx", pool="p2", driver="a.io", count=2),
                a_slice("w", "dw", pool="p1", driver="a.io"),
            ],
            [],
            ["r: dw", "r: dx", "r: dy", "r: dz"],
            id="in the order of driver, pool, slice",
        ),
        pytest.param(
            [claim(ask(count=2))],
            [
                a_slice("a", device("waits", bindingConditions=["Ready"]), pool="p1"),
                a_slice("b", "now", pool="p2"),
            ],
            [],
            ["r: now", "r: waits"],
            id="pools with binding conditions come last",
        ),
        pytest.param(
            [claim(ask("any"), ask("red", cel=IS_RED))],
            [RED_AND_BLUE],
            [held("red1")],
            ["any: blue0", "red: red0"],
            id="an earlier choice is taken back if a later request needs the device",
        ),
    ],
)
def test_search(claims, slices, taken, expected):
    assert given(claims, slices, taken=taken) == expected


@pytest.mark.parametrize(
    ("classes", "request_cel", "expected"),
    [
        pytest.param([device_class("red", IS_RED)], None, ["r: red0"], id="by the class"),
        pytest.param([device_class("red")], IS_BLUE, ["r: blue0"], id="by the request"),
        pytest.param([device_class("red", IS_RED)], IS_BLUE, NO_SOLUTION, id="by both"),
        pytest.param(
            [device_class("red", IS_RED, f'device.driver == "{DRIVER}"')],
            None,
            ["r: red0"],
            id="by all of a class",
        ),
        pytest.param(
            [device_class("red", "device.nothing")],
            None,
            "error: class red: selector #0: CEL compile error: undefined field 'nothing'",
            id="one of no sense",
        ),
        pytest.param(
            [device_class("red")],
            "device.driver",
            "error: claim default/c: selector #0: CEL compile error: "
            "must evaluate to bool or the unknown type",
            id="one that is neither true nor false",
        ),
        pytest.param(
            [device_class("red")],
            f'device.attributes["{DRIVER}"].size == 1',
            "error: claim default/c: selector #0: CEL runtime error: no such key: size",
            id="one that fails",
        ),
        pytest.param(
            [device_class("red")],
            f'device.attributes["{DRIVER}"].color == "red"',
            ["r: red0"],
            id="one that would fail on a later device",
        ),
    ],
)
def test_selectors(classes, request_cel, expected):
    assert given([claim(ask(cls="red", cel=request_cel))], [RED_AND_BLUE], classes=classes) == expected


def test_selectors_are_not_asked_of_devices_in_use():
    slices = [a_slice("s", device("broken"), device("fine", color="red"))]
    claims = [claim(ask(cel=f'device.attributes["{DRIVER}"].color == "red"'))]
    assert given(claims, slices, taken=[held("broken")]) == ["r: fine"]
    assert "no such key" in given(claims, slices)


@pytest.mark.parametrize(
    ("requests", "taken", "expected"),
    [
        pytest.param(
            [ask_first("r", a=details(2), b=details(1))], [], ["r/a: d0", "r/a: d1"], id="the first"
        ),
        pytest.param([ask_first("r", a=details(5), b=details(1))], [], ["r/b: d0"], id="the second"),
        pytest.param([ask_first("r", a=details(5), b=details(6))], [], NO_SOLUTION, id="none"),
        pytest.param(
            [ask_first("r", a=details(4), b=details(2)), ask("s", 2)],
            [],
            ["r/b: d0", "r/b: d1", "s: d2", "s: d3"],
            id="the second, because a later request needs devices, too",
        ),
        pytest.param(
            [ask_first("r", a=details(1, allocationMode="All"), b=details(1))],
            [held("d3")],
            ["r/b: d0"],
            id="one device rather than all, of which one is taken",
        ),
    ],
)
def test_first_available(requests, taken, expected):
    assert given([claim(*requests)], [FOUR], taken=taken) == expected


TWO_POOLS = [a_slice("a", "a0", "a1", pool="pa"), a_slice("b", "b0", allNodes=True, pool="pb")]


@pytest.mark.parametrize(
    ("slices", "requests", "taken", "expected"),
    [
        pytest.param(TWO_POOLS, [ask_all()], [], ["r: a0", "r: a1", "r: b0"], id="all over several pools"),
        pytest.param(TWO_POOLS, [ask_all()], [held("b0", pool="pb")], NO_SOLUTION, id="one is in use"),
        pytest.param(
            TWO_POOLS, [ask_all(), ask("s")], [], NO_SOLUTION, id="none is left for the next request"
        ),
        pytest.param(TWO_POOLS, [ask_all(cel="false")], [], NO_SOLUTION, id="none is suitable"),
        pytest.param(
            [RED_AND_BLUE], [ask_all(cel=IS_RED)], [], ["r: red0", "r: red1"], id="all that are suitable"
        ),
        pytest.param(
            [*TWO_POOLS, a_slice("c", "c0", pool="pc", count=2)],
            [ask_all()],
            [],
            "error: claim default/c, request r: asks for all devices, but resource pool gpu.example.com/pc "
            "is currently being updated",
            id="a pool is incomplete",
        ),
        pytest.param(
            [*TWO_POOLS, a_slice("c", "c0", "c0", pool="pc")],
            [ask_all()],
            [],
            "error: claim default/c, request r: asks for all devices, but resource pool gpu.example.com/pc "
            "is currently invalid",
            id="a pool is invalid",
        ),
        pytest.param(
            [
                *TWO_POOLS,
                a_slice("c", pool="pc", count=2, sharedCounters=[{"name": "set"}], nodeName="n2"),
            ],
            [ask_all()],
            [],
            "error: claim default/c, request r: asks for all devices, but resource pool gpu.example.com/pc "
            "is currently being updated",
            id="a pool of which nothing is there but counters",
        ),
    ],
)
def test_all_devices(slices, requests, taken, expected):
    assert given([claim(*requests)], slices, taken=taken) == expected


def test_all_devices_must_meet_the_constraints():
    found = given([claim(ask_all(cel=f"!({IS_RED})"), **MATCH)], [RED_AND_BLUE])
    assert found == (
        "error: claim default/c, request r: cannot add device gpu.example.com/n1/plain because a claim "
        "constraint would not be satisfied"
    )


@pytest.mark.parametrize(
    ("claims", "taken", "expected"),
    [
        pytest.param([claim(ask(adminAccess=True))], [held("d0")], ["r: d0"], id="a device that is in use"),
        pytest.param(
            [claim(ask_all(adminAccess=True))],
            [held("d0")],
            ["r: d0", "r: d1", "r: d2", "r: d3"],
            id="all devices",
        ),
        pytest.param(
            [claim(ask("a", adminAccess=True), ask("b", adminAccess=True))],
            [],
            ["a: d0", "b: d1"],
            id="not twice in a claim",
        ),
        pytest.param(
            [claim(ask("a", adminAccess=True), name="x"), claim(ask("b", adminAccess=True), name="y")],
            [],
            ["a: d0", "b: d0"],
            id="twice in two claims",
        ),
        pytest.param(
            [claim(ask())], [held("d0", adminAccess=True)], ["r: d0"], id="those held so are free for others"
        ),
    ],
)
def test_admin_access(claims, taken, expected):
    assert given(claims, [FOUR], taken=taken) == expected


def test_admin_access_is_noted_in_the_result():
    (allocation,) = solve([claim(ask("a", adminAccess=True), ask("b"))], [FOUR])
    assert [each.admin_access for each in allocation.devices.results] == [True, None]


@pytest.mark.parametrize(
    ("requests", "constraints", "taken", "expected"),
    [
        pytest.param([ask(count=2)], MATCH, [], ["r: red0", "r: red1"], id="equal within a request"),
        pytest.param(
            [ask("a"), ask("b")], MATCH, [held("red1")], ["a: blue0", "b: blue1"], id="equal over requests"
        ),
        pytest.param([ask(count=3)], MATCH, [], NO_SOLUTION, id="three equal ones there are not"),
        pytest.param(
            [ask("a"), ask("b")],
            {"constraints": [{"matchAttribute": f"{DRIVER}/color", "requests": ["a"]}]},
            [held("red1")],
            ["a: red0", "b: blue0"],
            id="equal in some requests only",
        ),
        pytest.param(
            [ask_first("a", x=details(2)), ask("b")],
            {"constraints": [{"matchAttribute": f"{DRIVER}/color", "requests": ["a"]}]},
            [],
            ["a/x: red0", "a/x: red1", "b: blue0"],
            id="a request stands for its alternatives",
        ),
        pytest.param(
            [ask_first("a", x=details(2), y=details(2))],
            {"constraints": [{"matchAttribute": f"{DRIVER}/shape", "requests": ["a/x"]}]},
            [],
            ["a/y: red0", "a/y: blue0"],
            id="one alternative alone, whose devices lack the attribute",
        ),
        pytest.param(
            [ask()],
            {"constraints": [{"matchAttribute": "other.io/color"}]},
            [],
            NO_SOLUTION,
            id="an attribute of another domain",
        ),
        pytest.param([ask(count=2)], DISTINCT, [], ["r: red0", "r: blue0"], id="different within a request"),
        pytest.param(
            [ask("a"), ask("b")], DISTINCT, [], ["a: red0", "b: blue0"], id="different over requests"
        ),
        pytest.param(
            [ask("a"), ask("b"), ask("c")], DISTINCT, [], NO_SOLUTION, id="three different ones there are not"
        ),
        pytest.param(
            [ask(count=3)],
            DISTINCT,
            [],
            ["r: red0", "r: blue0", "r: red1"],
            id="within a request each differs from the one before it alone",
        ),
        pytest.param(
            [ask()],
            {"constraints": [{}]},
            [],
            "error: claim default/c, constraint #0: empty constraint (unsupported constraint type?)",
            id="a constraint of the future",
        ),
    ],
)
def test_constraints(requests, constraints, taken, expected):
    assert given([claim(*requests, **constraints)], [RED_AND_BLUE], taken=taken) == expected


NEEDS_BLUE = ask("b", cel=f'device.attributes["{DRIVER}"].color == "blue"')
NEEDS_FIRST = ask("b", cel=f'device.attributes["{DRIVER}"].first')


@pytest.mark.parametrize(
    ("devices", "requests", "constraints", "expected"),
    [
        pytest.param(
            [
                device("a", color="red"),
                device("b", color="blue", shape=1),
                device("c", color="blue", shape=1),
            ],
            [ask(count=2)],
            [{"matchAttribute": f"{DRIVER}/color"}, {"matchAttribute": f"{DRIVER}/shape"}],
            ["r: b", "r: c"],
            id="a device that meets the first constraint and not the second leaves no trace",
        ),
        pytest.param(
            [device("a", color="red", first=True), device("b", color="red", first=False)],
            [ask("a"), NEEDS_FIRST],
            [{"distinctAttribute": f"{DRIVER}/color", "requests": ["a"]}],
            ["a: b", "b: a"],
            id="a device that is given back is not different from itself any more",
        ),
        pytest.param(
            [device("a", color="red"), device("b", color="blue"), device("c", color="red")],
            [ask("a", 2), NEEDS_BLUE],
            [{"distinctAttribute": f"{DRIVER}/color", "requests": ["a"]}],
            ["a: a", "a: c", "b: b"],
            id="after one is given back the request may have two equal ones",
        ),
    ],
)
def test_constraints_when_choices_are_taken_back(devices, requests, constraints, expected):
    assert given([claim(*requests, constraints=constraints)], [a_slice("s", *devices)]) == expected


def test_values_of_different_types_do_not_match():
    slices = [a_slice("s", device("number", color=1), device("flag", color=True), device("text", color="1"))]
    assert given([claim(ask(count=2), **MATCH)], slices) == NO_SOLUTION
    assert given([claim(ask(count=3), **DISTINCT)], slices) == ["r: number", "r: flag", "r: text"]


def tainted(effect, **more):
    return a_slice("s", device("bad", taints=[{"key": "k", "value": "v", "effect": effect}]), "good", **more)


@pytest.mark.parametrize(
    ("effect", "tolerations", "expected"),
    [
        pytest.param("NoSchedule", [], ["r: good"], id="NoSchedule"),
        pytest.param("NoExecute", [], ["r: good"], id="NoExecute"),
        pytest.param("None", [], ["r: bad"], id="an effect that only informs"),
        pytest.param("NoSchedule", [{"key": "k", "operator": "Exists"}], ["r: bad"], id="tolerated by key"),
        pytest.param("NoSchedule", [{"operator": "Exists"}], ["r: bad"], id="tolerated whatever it is"),
        pytest.param("NoSchedule", [{"key": "k", "value": "v"}], ["r: bad"], id="tolerated by value"),
        pytest.param("NoSchedule", [{"key": "k", "value": "w"}], ["r: good"], id="another value tolerated"),
        pytest.param(
            "NoExecute",
            [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
            ["r: good"],
            id="another effect tolerated",
        ),
    ],
)
def test_device_taints(effect, tolerations, expected):
    assert given([claim(ask(tolerations=tolerations))], [tainted(effect)]) == expected


def test_all_devices_include_tainted_ones():
    assert given([claim(ask_all())], [tainted("NoSchedule")]) == NO_SOLUTION


def eats(**memory):
    """Devices that take so much of the counter `memory`."""
    return [
        device(name, consumesCounters=[{"counterSet": "set", "counters": {"memory": {"value": amount}}}])
        for name, amount in memory.items()
    ]


COUNTERS = a_slice(
    "z", pool="p", count=2, sharedCounters=[{"name": "set", "counters": {"memory": {"value": "8Gi"}}}]
)


@pytest.mark.parametrize(
    ("devices", "requests", "taken", "expected"),
    [
        pytest.param(eats(a="4Gi", b="4Gi", c="1Gi"), [ask(count=2)], [], ["r: a", "r: b"], id="enough"),
        pytest.param(
            eats(a="4Gi", b="5Gi", c="1Gi"), [ask(count=2)], [], ["r: a", "r: c"], id="not for both"
        ),
        pytest.param(
            eats(a="4Gi", b="5Gi"), [ask()], [held("a", pool="p")], NO_SOLUTION, id="taken by others"
        ),
        pytest.param(
            [*eats(a="9Gi", b="0"), device("free")],
            [ask()],
            [held("a", pool="p")],
            ["r: free"],
            id="a counter below zero blocks who takes nothing of it, but not who takes no counters",
        ),
        pytest.param(
            eats(a="8Gi", b="4Gi", c="4Gi"),
            [ask(count=2)],
            [],
            ["r: b", "r: c"],
            id="given back when a choice is undone",
        ),
        pytest.param(
            eats(a="8Gi", b="8Gi"),
            [ask()],
            [held("a", pool="p", adminAccess=True)],
            ["r: a"],
            id="nothing is taken by who only looks on",
        ),
    ],
)
def test_shared_counters(devices, requests, taken, expected):
    slices = [COUNTERS, a_slice("s", *devices, pool="p", count=2)]
    assert given([claim(*requests)], slices, taken=taken) == expected


def test_devices_of_other_nodes_take_from_the_same_counters():
    counters = [
        a_slice("z", pool="p", count=3, sharedCounters=COUNTERS["spec"]["sharedCounters"], nodeName="n3"),
        a_slice("s", *eats(a="5Gi"), pool="p", count=3),
        a_slice("t", *eats(b="4Gi"), pool="p", count=3, nodeName="n2"),
    ]
    assert given([claim(ask())], counters) == ["r: a"]
    assert given([claim(ask())], counters, taken=[held("b", pool="p")]) == NO_SOLUTION


@pytest.mark.parametrize(
    "slices",
    [
        pytest.param([a_slice("s", "d", "d", pool="p")], id="a device name twice"),
        pytest.param([a_slice("s", *eats(a="1Gi"), pool="p")], id="a counter set that is missing"),
        pytest.param(
            [
                a_slice("z", pool="p", count=2, sharedCounters=[{"name": "set", "counters": {}}]),
                a_slice("s", *eats(a="1Gi"), pool="p", count=2),
            ],
            id="a counter that is missing",
        ),
        pytest.param(
            [
                a_slice("z", pool="p", count=2, sharedCounters=[{"name": "set"}, {"name": "set"}]),
                a_slice("s", "d", pool="p", count=2),
            ],
            id="a counter set twice",
        ),
    ],
)
def test_nothing_comes_from_an_invalid_pool(slices):
    assert given([claim(ask())], slices) == INVALID_POOLS
    assert given([claim(ask())], [*slices, FOUR]) == ["r: d0"]


def shared(name="d", capacity="10", **policy):
    memory = {"value": capacity, **({"requestPolicy": policy} if policy else {})}
    return a_slice("s", device(name, {"memory": memory}, allowMultipleAllocations=True))


def wants(memory, **more):
    return ask(capacity={"requests": {"memory": memory}}, **more)


STEPS = {"default": "4", "validRange": {"min": "2", "max": "8", "step": "3"}}


@pytest.mark.parametrize(
    ("slices", "request_", "consumed"),
    [
        pytest.param([shared()], wants("3"), {"memory": "3"}, id="what is asked for"),
        pytest.param([shared()], ask(), {"memory": "10"}, id="all of it if nothing is said"),
        pytest.param([shared(**STEPS)], ask(), {"memory": "4"}, id="the default, be it between two steps"),
        pytest.param([shared(**STEPS)], wants("1"), {"memory": "2"}, id="at least the minimum"),
        pytest.param([shared(**STEPS)], wants("3"), {"memory": "5"}, id="up to the next step"),
        pytest.param(
            [shared(**STEPS)], wants("5500m"), {"memory": "8"}, id="steps are counted in whole units"
        ),
        pytest.param([shared(**STEPS)], wants("9"), NO_SOLUTION, id="more than the maximum"),
        pytest.param(
            [shared(validValues=["1", "5"])], wants("2"), {"memory": "5"}, id="up to the next valid value"
        ),
        pytest.param(
            [shared(validValues=["1", "5"])], wants("6"), NO_SOLUTION, id="beyond the last valid value"
        ),
        pytest.param([shared()], wants("11"), NO_SOLUTION, id="more than there is"),
        pytest.param([shared()], wants("500m"), {"memory": "500m"}, id="a fraction"),
        pytest.param(
            [shared(capacity="20Gi")], wants("12Gi"), {"memory": "12Gi"}, id="written as it was asked for"
        ),
        pytest.param(
            [shared(capacity="20Gi")], wants("1.5Gi"), {"memory": "1536Mi"}, id="without a fraction"
        ),
        pytest.param(
            [shared(capacity="20Gi")], wants("12884901888"), {"memory": "12884901888"}, id="in plain digits"
        ),
        pytest.param([shared(capacity="20Gi")], wants("2e9"), {"memory": "2G"}, id="by thousands"),
        pytest.param([shared(capacity="20Gi")], ask(), {"memory": "20Gi"}, id="as the device has it"),
        pytest.param(
            [shared(capacity="20Gi")], wants("512"), {"memory": "512"}, id="too little for a suffix"
        ),
        pytest.param(
            [shared(capacity="20Gi", validRange={"min": "1Gi", "step": "1Gi"})],
            wants("2000000000"),
            {"memory": "2Gi"},
            id="steps in binary",
        ),
        pytest.param(
            [shared()],
            ask(capacity={"requests": {"cores": "1"}}),
            NO_SOLUTION,
            id="a capacity the device lacks",
        ),
    ],
)
def test_consumed_capacity(slices, request_, consumed):
    found = solve([claim(request_)], slices)
    if isinstance(found, str):
        assert found == consumed
    else:
        assert [each.consumed_capacity for each in found[0].devices.results] == [consumed]


def test_devices_that_can_be_shared():
    claims = [claim(wants("3"), name=name) for name in "abc"]
    found = solve(claims, [shared()])
    assert [each.devices.results[0].device for each in found] == ["d", "d", "d"]
    assert len({each.devices.results[0].share_id for each in found}) == 3
    assert given([*claims, claim(wants("3"), name="d")], [shared()]) == NO_SOLUTION


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        pytest.param("4", ["r: d"], id="enough is left"),
        pytest.param("5", NO_SOLUTION, id="too little is left"),
    ],
)
def test_capacity_that_others_consume_already(amount, expected):
    taken = [held("d", shareID="s1", consumedCapacity={"memory": "6"})]
    assert given([claim(wants(amount))], [shared()], taken=taken) == expected


def test_one_request_does_not_get_the_same_shared_device_twice():
    assert given([claim(wants("1", count=2))], [shared()]) == NO_SOLUTION


def test_a_shared_device_pays_for_its_counters_once():
    both = {"capacity": {"memory": "10"}, "allowMultipleAllocations": True}
    (eater,) = eats(d="8Gi")
    slices = [
        COUNTERS,
        a_slice("s", device("d", **both, consumesCounters=eater["consumesCounters"]), pool="p", count=2),
    ]
    assert given([claim(wants("1"), name="a"), claim(wants("1"), name="b")], slices) == ["r: d", "r: d"]


def test_an_exclusive_device_can_be_asked_for_its_capacity():
    slices = [a_slice("s", device("small", {"memory": "4"}), device("large", {"memory": "8"}))]
    (allocation,) = solve([claim(wants("5"))], slices)
    (result,) = allocation.devices.results
    assert (result.device, result.share_id, result.consumed_capacity) == ("large", None, {})


HERE = node(labels={"zone": "a"})
PER_DEVICE = a_slice(
    "s",
    device("other", nodeName="n2"),
    device("named", nodeName="n1"),
    device("zone", nodeSelector=selects(zone="a")),
    device("else", nodeSelector=selects(zone="b")),
    device("all", allNodes=True),
    perDeviceNodeSelection=True,
)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param([a_slice("s", "d")], ["r: d"], id="its own slice"),
        pytest.param([a_slice("s", "d", nodeName="n2")], NO_SOLUTION, id="the slice of another node"),
        pytest.param([a_slice("s", "d", allNodes=True)], ["r: d"], id="a slice for all nodes"),
        pytest.param(
            [a_slice("s", "d", nodeSelector=selects(zone="a"))], ["r: d"], id="a selector that matches"
        ),
        pytest.param(
            [a_slice("s", "d", nodeSelector=selects(zone="b"))], NO_SOLUTION, id="one that does not"
        ),
        pytest.param(
            [
                a_slice(
                    "s",
                    "d",
                    nodeSelector={
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
                        ]
                    },
                )
            ],
            ["r: d"],
            id="a selector by name",
        ),
        pytest.param([PER_DEVICE], ["r: named", "r: zone", "r: all"], id="devices that say it themselves"),
        pytest.param(
            [a_slice("s", "d", perDeviceNodeSelection=False)], NO_SOLUTION, id="a scope of the future"
        ),
        pytest.param(
            [a_slice("s", "d", nodeSelector=selects(**{"a b": "c"}))],
            'error: failed to parse node selector: key: Invalid value: "a b": name part must consist of '
            "alphanumeric characters",
            id="a selector that makes no sense",
        ),
    ],
)
def test_slices_a_node_can_reach(slices, expected):
    count = len(expected) if isinstance(expected, list) else 1
    assert given([claim(ask(count=count))], slices, on=HERE) == expected


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param(
            [a_slice("s", "old", pool="p"), a_slice("t", "new", pool="p", generation=2)],
            ["r: new"],
            id="the newest generation",
        ),
        pytest.param([a_slice("s", "d", pool="p", count=2)], NO_SOLUTION, id="a slice is missing"),
        pytest.param(
            [a_slice("s", "d", pool="p", count=2), a_slice("t", "e", pool="p", count=2, nodeName="n2")],
            ["r: d"],
            id="the other slice is for another node",
        ),
        pytest.param(
            [a_slice("s", "d", pool="p", count=2, generation=2), a_slice("t", "e", pool="p", count=2)],
            NO_SOLUTION,
            id="the other slice is of an older generation",
        ),
        pytest.param(
            [a_slice("s", "d", pool="p"), a_slice("t", "e", pool="p", generation=2, nodeName="n2")],
            NO_SOLUTION,
            id="the newest generation is for another node",
        ),
        pytest.param([a_slice("s", "d", pool="p", count=2), FOUR], ["r: d0"], id="another pool is complete"),
    ],
)
def test_pools_and_generations(slices, expected):
    assert given([claim(ask())], slices) == expected


MANY = a_slice("s", *(f"d{i}" for i in range(40)))


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param([ask(count=32)], 32, id="just enough"),
        pytest.param(
            [ask("a", 20), ask("b", 13)],
            "error: claim default/c: number of requested devices 33 exceeds the claim limit of 32",
            id="one too many",
        ),
        pytest.param(
            [ask_all()],
            "error: claim default/c: number of requested devices 40 exceeds the claim limit of 32",
            id="all of too many",
        ),
        pytest.param(
            [ask_first("a", x=details(20), y=details(2)), ask("b", 20)],
            22,
            id="an alternative that would be too many",
        ),
    ],
)
def test_devices_a_claim_can_hold(requests, expected):
    found = given([claim(*requests)], [MANY])
    assert (found if isinstance(found, str) else len(found)) == expected


def fields(name):
    return [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]


@pytest.mark.parametrize(
    ("slices", "terms"),
    [
        pytest.param([a_slice("s", "d")], fields("n1"), id="a device of the node"),
        pytest.param([a_slice("s", "d", allNodes=True)], None, id="a device for all"),
        pytest.param(
            [a_slice("s", device("d", bindsToNode=True), allNodes=True)],
            fields("n1"),
            id="one that stays with the node",
        ),
        pytest.param(
            [a_slice("s", "d", nodeSelector=selects(zone="a"))],
            selects(zone="a")["nodeSelectorTerms"],
            id="a selector",
        ),
        pytest.param(
            [
                a_slice("s", "d", nodeSelector=selects(zone="a"), pool="p1"),
                a_slice("t", "e", nodeSelector=selects(zone="a", rack="1"), pool="p2"),
            ],
            selects(zone="a", rack="1")["nodeSelectorTerms"],
            id="two selectors together",
        ),
        pytest.param(
            [a_slice("s", "d", allNodes=True, pool="p1"), a_slice("t", "e", pool="p2")],
            fields("n1"),
            id="one for all and one of the node",
        ),
        pytest.param(
            [a_slice("s", device("d", nodeSelector=selects(zone="a")), perDeviceNodeSelection=True)],
            selects(zone="a")["nodeSelectorTerms"],
            id="a device's own selector",
        ),
    ],
)
def test_nodes_that_can_use_an_allocation(slices, terms):
    (allocation,) = solve([claim(ask(count=len(slices)))], slices, on=node(labels={"zone": "a", "rack": "1"}))
    expected = {"status": {"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}}} if terms else {}
    assert (
        allocation.node_selector
        == read_claim({"metadata": {}, "status": {"allocation": {}}, **expected}).allocation.node_selector
    )


def test_results_carry_what_drivers_and_kubelets_need():
    conditions = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Failed"]}
    toleration = {"key": "k", "operator": "Exists"}
    config = [
        {"requests": ["a"], "opaque": {"driver": DRIVER, "parameters": {"x": 1}}},
        {"requests": ["b/other"], "opaque": {"driver": DRIVER, "parameters": {"x": 2}}},
        {"opaque": {"driver": DRIVER, "parameters": {"x": 3}}},
    ]
    with_config = device_class("tuned", config=[{"opaque": {"driver": DRIVER, "parameters": {"y": 1}}}])
    (allocation,) = solve(
        [
            claim(
                ask("a", cls="tuned", tolerations=[toleration]),
                ask_first("b", x=details(cls="tuned")),
                config=config,
            )
        ],
        [a_slice("s", device("d", **conditions), "e")],
        classes=[with_config],
    )
    first, second = allocation.devices.results
    assert (first.binding_conditions, first.binding_failure_conditions) == (("Ready",), ("Failed",))
    assert [each.key for each in first.tolerations] == ["k"]
    assert second.binding_conditions == ()
    assert [
        (each.source, each.requests, bytes(each.opaque.parameters)) for each in allocation.devices.config
    ] == [
        ("FromClass", ("a", "b/x"), b'{"y":1}'),
        ("FromClaim", ("a",), b'{"x":1}'),
        ("FromClaim", (), b'{"x":3}'),
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(claim(ask("a", 16), ask("b", 15)), id="two requests for more than there is"),
        pytest.param(claim(ask("a", 16), **MATCH), id="more of a kind than there are"),
    ],
)
def test_a_hopeless_search_ends_soon(wanted):
    tries = 0

    def is_late():
        nonlocal tries
        tries += 1
        return tries > 1000

    slices = [a_slice("s", *(device(f"d{i}", color=i % 2) for i in range(30)))]
    assert given([wanted], slices, is_late=is_late) == NO_SOLUTION
    assert tries < 10


def test_a_search_that_takes_too_long_is_given_up():
    devices = [device(f"d{i}", color=str(i % 15), shape=i // 15) for i in range(30)]
    constraints = [{"matchAttribute": f"{DRIVER}/color", "requests": ["b"]}]
    found = given(
        [claim(ask("a", 14), ask("b", 3), constraints=constraints)],
        [a_slice("s", *devices)],
        is_late=lambda: True,
    )
    assert found == "error: node n1: timed out trying to allocate devices"


def test_selectors_that_cost_too_much_are_told_apart_from_broken_ones():
    budget = DeviceBudget()
    budget.left = 0
    here = node_in(cluster_of(node()), "n1")
    wanted = claim(ask(selectors=[{"cel": {"expression": IS_RED}}]))
    demands = [demand_of(read_claim(wanted), lambda name, request: read_class(GPU))]
    pools = Inventory([read_slice(FOUR)]).pools_for(here)
    with pytest.raises(BudgetSpentError, match="node n1: timed out trying to allocate devices"):
        allocate(demands, here, pools, Usage.of([]), budget=budget)
