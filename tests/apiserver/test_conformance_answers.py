"""Ours answers every conformance case as the real kube-apiserver was recorded to."""

from __future__ import annotations

import pytest
from api_staging import Staged
from conformance.conformance_answers import DIFFERENT, recorded, without_name
from conformance.conformance_cases import all_cases, answers, normal
from conformance.conformance_steps import Case

CASES = all_cases()
RECORDED = recorded()


@pytest.fixture(scope="module")
def shared() -> Staged:
    return Staged()


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
async def test_answers_as_kube_apiserver_does(number: int, shared: Staged) -> None:
    case: Case = CASES[number]
    namespace = f"c{number:04}"
    given = without_name(await answers(shared.step, case, namespace), namespace)
    if case.name in DIFFERENT:
        assert given != normal(RECORDED[case.name]), "no longer different: take it off the list"
    else:
        assert given == normal(RECORDED[case.name])


def test_cases_are_many_and_named_once() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 400
