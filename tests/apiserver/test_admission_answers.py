"""Admission and authorization answer every case as the real kube-apiserver was recorded to."""

from __future__ import annotations

import pytest
from api_staging import Staged
from conformance.admission_cases import admission_cases
from conformance.conformance_answers import ADMISSION_FILE, recorded, without_name
from conformance.conformance_cases import answers

from stowplan.apiserver import ApiServer

CASES = admission_cases()
RECORDED = recorded(ADMISSION_FILE)


@pytest.fixture(scope="module")
def shared() -> Staged:
    return Staged(ApiServer(rbac=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
async def test_admits_as_kube_apiserver_does(number: int, shared: Staged) -> None:
    namespace = f"a{number:04}"
    given = without_name(await answers(shared.step, CASES[number], namespace), namespace)
    assert given == RECORDED[CASES[number].name]
