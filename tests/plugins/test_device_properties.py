"""Devices found by the search are those that the plainest of searches finds, on random small pools."""

from __future__ import annotations

from random import Random
from typing import Any

from device_objects import DRIVER, GPU, a_slice, allocate, ask, claim, cluster_of, device, held, node, node_in
from hypothesis import given
from hypothesis import strategies as st

from example_share import examples
from stowplan.plugins.devices.allocator import NO_SOLUTION
from stowplan.plugins.devices.claims import Usage, demand_of
from stowplan.plugins.devices.pools import Inventory

Json = dict[str, Any]


def drawn(random: Random) -> tuple[list[Json], list[Json], set[str], int]:
    """Devices, claims, which devices are taken, and how much there is of the counter."""
    devices = []
    for number in range(random.randint(3, 8)):
        more: Json = {"color": random.choice("ab"), "size": random.randint(1, 2)}
        if random.random() < 0.5:
            counter = {"counters": {"x": {"value": str(random.randint(1, 2))}}}
            more["consumesCounters"] = [{"counterSet": "set", **counter}]
        if random.random() < 0.15:
            more["taints"] = [{"key": "k", "effect": "NoSchedule"}]
        devices.append(device(f"d{number}", **more))
    claims = []
    for number in range(random.randint(1, 2)):
        requests = []
        for letter in "rst"[: random.randint(1, 3)]:
            expression = f'device.attributes["{DRIVER}"].size >= {random.randint(1, 2)}'
            requests.append(
                ask(letter, random.randint(1, 3), cel=expression if random.random() < 0.5 else None)
            )
        names = [each["name"] for each in requests]
        constraints = [
            {
                "matchAttribute": f"{DRIVER}/color",
                "requests": random.sample(names, random.randint(0, len(names))),
            }
            for _ in range(random.randint(0, 1))
        ]
        claims.append(claim(*requests, name=f"c{number}", constraints=constraints))
    taken = {each["name"] for each in devices if random.random() < 0.1}
    return devices, claims, taken, random.randint(1, 6)


def naive(devices: list[Json], claims: list[Json], taken: set[str], left: int) -> list[list[str]] | None:
    """Tries everything in order, and looks at nothing ahead."""
    steps = [
        (number, request["name"], request["exactly"])
        for number, each in enumerate(claims)
        for request in each["spec"]["devices"]["requests"]
    ]

    def cost(each: Json) -> int:
        return sum(int(use["counters"]["x"]["value"]) for use in each.get("consumesCounters", ()))

    left -= sum(cost(each) for each in devices if each["name"] in taken)

    def fits(each: Json, number: int, name: str, wanted: Json, chosen: list[Any]) -> bool:
        if (
            each["name"] in taken
            or each["name"] in [one["name"] for _, _, one in chosen]
            or each.get("taints")
        ):
            return False
        for selector in wanted.get("selectors", ()):
            if each["attributes"]["size"]["int"] < int(selector["cel"]["expression"][-1]):
                return False
        if cost(each) and (left < 0 or cost(each) > left - sum(cost(one) for _, _, one in chosen)):
            return False
        return all(
            other["attributes"]["color"] == each["attributes"]["color"]
            for constraint in claims[number]["spec"]["devices"]["constraints"]
            for whose, request, other in chosen
            if whose == number and all(one in (constraint["requests"] or [one]) for one in (name, request))
        )

    def search(step: int, start: int, missing: int, chosen: list[Any]) -> list[Any] | None:
        if step == len(steps):
            return chosen
        number, name, wanted = steps[step]
        if missing == 0:
            after = steps[step + 1][2]["count"] if step + 1 < len(steps) else 0
            return search(step + 1, 0, after, chosen)
        for place in range(start, len(devices)):
            if fits(devices[place], number, name, wanted, chosen):
                more = [*chosen, (number, name, devices[place])]
                if found := search(step, place + 1, missing - 1, more):
                    return found
        return None

    found = search(0, 0, steps[0][2]["count"], [])
    if found is None:
        return None
    return [
        [f"{name}: {each['name']}" for whose, name, each in found if whose == number]
        for number in range(len(claims))
    ]


@given(seed=st.integers(0, 2**32))
@examples(300)
def test_the_same_devices_as_by_the_plainest_search(seed):
    devices, claims, taken, counter = drawn(Random(seed))
    sets = [{"name": "set", "counters": {"x": {"value": str(counter)}}}]
    slices = [a_slice("a", *devices, count=2), a_slice("b", count=2, sharedCounters=sets)]
    cluster = cluster_of(GPU, node(), *slices, *claims, *([held(*sorted(taken))] if taken else []))
    there = node_in(cluster)
    demands = [
        demand_of(cluster.resource_claims.get(f"default/{each['metadata']['name']}"), class_in(cluster))
        for each in claims
    ]
    usage = Usage.of(each.allocation for each in cluster.resource_claims if each.allocation)
    found = allocate(demands, there, Inventory(cluster.resource_slices).pools_for(there), usage)
    expected = naive(devices, claims, taken, counter)
    if expected is None:
        assert found == NO_SOLUTION
    else:
        assert not isinstance(found, str)
        assert [
            [f"{result.request}: {result.device}" for result in each.devices.results] for each in found
        ] == expected


def class_in(cluster: Any) -> Any:
    return lambda name, request: cluster.device_classes.get(name)
