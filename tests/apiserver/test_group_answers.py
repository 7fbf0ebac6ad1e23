"""Pod groups: ours answers every case as kube-apiserver with the same feature gates was recorded to."""

from __future__ import annotations

from typing import Any

import pytest
from api_staging import Staged
from conformance.conformance_answers import recorded, without_name
from conformance.conformance_cases import answers
from conformance.group_cases import DIFFERENT, GATES, group_cases, recorded_in

from stowplan.apiserver import ApiServer

CASES = {gates: group_cases(gates) for gates in GATES}
RECORDED = {gates: recorded(recorded_in(gates)) for gates in GATES}
IDS = [(gates, number) for gates, cases in CASES.items() for number in range(len(cases))]


@pytest.fixture(scope="module")
def servers() -> dict[str, Staged]:
    return {gates: Staged(ApiServer(rbac=True, gates=frozenset(given))) for gates, given in GATES.items()}


@pytest.mark.parametrize(
    ("gates", "number"), IDS, ids=[f"{gates}: {CASES[gates][number].name}" for gates, number in IDS]
)
async def test_answers_groups_as_kube_apiserver_does(
    gates: str, number: int, servers: dict[str, Staged]
) -> None:
    case, namespace = CASES[gates][number], f"g{number:04}"
    given = without_name(await answers(servers[gates].step, case, namespace), namespace)
    wanted = RECORDED[gates][case.name]
    if gates != "all":  # kube-apiserver notes who sent fields that it drops
        given, wanted = without_managers(given), without_managers(wanted)
    if case.name in DIFFERENT and given == wanted:
        assert gates != "all", "no longer different: take it off the list"
    elif case.name not in DIFFERENT:
        assert given == wanted


def without_managers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_managers(each) for key, each in value.items() if key != "managedFields"}
    return [without_managers(each) for each in value] if isinstance(value, list) else value
