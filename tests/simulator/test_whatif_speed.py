"""A what-if of 1,000 pods on 5,000 nodes takes less than a second once the cluster is read."""

from __future__ import annotations

import time

from stowplan.bench.workloads import build, pending, read_workloads
from stowplan.simulator import WhatIf

NODES, PODS = 5000, 1000


def test_a_thousand_pods_on_five_thousand_nodes():
    (workload,) = [each for each in read_workloads() if each.name == "default-spread"]
    pods = list(pending(workload, PODS))
    what_if = WhatIf((), cluster=build(workload, NODES))
    began = time.process_time()  # others may be at work on this machine
    what_if.add(pods)
    outcome = what_if.run()
    assert time.process_time() - began < 1
    assert len(outcome.placed) == PODS
