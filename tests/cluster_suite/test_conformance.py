"""The real kube-apiserver answers every conformance case as it was recorded.

With STOWPLAN_RECORD=1 its answers are recorded anew; ours are compared with them by tests/apiserver.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from controlplane.control_plane import ADMIN, ControlPlane, token_of

sys.path.insert(0, str(Path(__file__).parents[1] / "apiserver"))

from api_staging import parsed
from conformance.admission_cases import admission_cases
from conformance.conformance_answers import ADMISSION_FILE, record, recorded, without_name, write
from conformance.conformance_cases import all_cases, answers, normal
from conformance.conformance_steps import Case, Step

PAUSE_SECONDS, PATIENT_SECONDS = 0.4, 5.0
"""How long to wait where the API server must notice something, such as a role binding or a schema."""


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One of their own: what the cases leave behind, such as objects with finalizers, cannot all be wiped."""
    own = ControlPlane(tmp_path_factory.mktemp("conformance"))
    try:
        own.start()
        yield own
    finally:
        own.stop()


class Real:
    """Asks a control plane over one connection."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.pause = PAUSE_SECONDS
        trusted = ssl.create_default_context(cafile=str(control_plane.certificate))
        host = control_plane.server.removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, context=trusted, timeout=30)

    async def step(self, step: Step) -> tuple[int, Any]:
        if step.method == "PAUSE":
            await asyncio.sleep(self.pause)
            return 0, None
        headers = {
            "Authorization": f"Bearer {token_of(ADMIN)}",
            "Content-Type": step.media,
            "Accept": step.accept,
            "User-Agent": "conformance/1",
        }
        is_ready = step.body is None or isinstance(step.body, bytes)
        body = step.body if is_ready else json.dumps(step.body).encode()
        self._connection.putrequest(step.method, step.path, skip_accept_encoding=True)
        for name, value in (*headers.items(), *step.headers):  # a name may come more than once
            self._connection.putheader(name, value)
        self._connection.putheader("Content-Length", str(len(body or b"")))
        self._connection.endheaders(body)
        answer = self._connection.getresponse()
        return answer.status, parsed(answer.read())

    def close(self) -> None:
        self._connection.close()


async def ask_all(
    control_plane: ControlPlane, cases: list[Case], prefix: str, known: dict[str, Any]
) -> dict[str, list[Any]]:
    """Ask every case. One with pauses is asked again with longer ones if its answers differ: what it waits
    for happens some time later, and no request tells when. All others must be right at once."""
    found = {}
    with closing(Real(control_plane)) as real:
        for number, case in enumerate(cases):
            attempts = [(f"{prefix}{number:04}", PAUSE_SECONDS)]
            if any(step.method == "PAUSE" for step in case.steps):
                attempts.append((f"{prefix}{number:04}b", PATIENT_SECONDS))
            for namespace, real.pause in attempts:
                given = without_name(await answers(real.step, case, namespace), namespace)
                found[case.name] = given
                if given == normal(known.get(case.name)):
                    break
    return found


async def test_kube_apiserver_answers_as_recorded(control_plane: ControlPlane) -> None:
    known = recorded()
    found = await ask_all(control_plane, all_cases(), "c", known)
    if os.environ.get("STOWPLAN_RECORD"):
        record(found)
        known = recorded()
    assert not [name for name, given in found.items() if given != normal(known.get(name))]


async def test_kube_apiserver_admits_as_recorded(control_plane: ControlPlane) -> None:
    known = recorded(ADMISSION_FILE)
    found = await ask_all(control_plane, admission_cases(), "a", known)
    if os.environ.get("STOWPLAN_RECORD"):
        write(found, ADMISSION_FILE)
        known = recorded(ADMISSION_FILE)
    assert not [name for name, given in found.items() if given != normal(known.get(name))]
