"""What the first pods of a process need is loaded with the plugins, not while a pod waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from stowplan.testing import a_cluster

ZONE, LABELS = "topology.kubernetes.io/zone", {"app": "web"}
TERM = {"topologyKey": ZONE, "labelSelector": {"matchLabels": LABELS}}
ANTI = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}
cluster = a_cluster().node("a", cpu="4", labels={ZONE: "z"}).pod("low", "a", cpu="3", labels=LABELS)
cluster.decide("first")  # which loads the plugins
known = set(sys.modules)
"""


@pytest.mark.parametrize(
    "step",
    [
        pytest.param('cluster.decide("pod", cpu="3", priority=5)', id="a preemption"),
        pytest.param(
            'cluster.decide("pod", cpu="3", priority=5, affinity=ANTI)', id="one with anti-affinity"
        ),
        pytest.param('cluster.node("b", memory="0").decide("pod", cpu="1")', id="a node without memory"),
    ],
)
def test_a_decision_imports_nothing(step: str) -> None:
    code = f"{PROGRAM}{step}\nprint(*set(sys.modules) - known)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout.split(), ran.stderr) == ([], "")
