"""The real kube-apiserver with the gates of pod groups answers every case as it was recorded.

With STOWPLAN_RECORD=1 its answers are recorded anew; ours are compared with them by tests/apiserver.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from test_conformance import ask_all

from controlplane.control_plane import ControlPlane

sys.path.insert(0, str(Path(__file__).parents[1] / "apiserver"))

from conformance.conformance_answers import recorded, write
from conformance.conformance_cases import normal
from conformance.group_cases import GATES, group_cases, recorded_in


@pytest.mark.parametrize("gates", GATES)
async def test_kube_apiserver_answers_groups_as_recorded(gates: str, tmp_path: Path) -> None:
    flags = (
        [
            f"--feature-gates={','.join(f'{gate}=true' for gate in GATES[gates])}",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        ]
        if GATES[gates]
        else []
    )
    own, known = ControlPlane(tmp_path, *flags), recorded(recorded_in(gates))
    try:
        own.start()
        found = await ask_all(own, group_cases(gates), "g", known)
    finally:
        own.stop()
    if os.environ.get("STOWPLAN_RECORD"):
        write(found, recorded_in(gates))
        known = recorded(recorded_in(gates))
    assert not [name for name, given in found.items() if given != normal(known.get(name))]
