"""Tutorial 2, ScoreByLabel: its files as printed, up to `testpod` on the node with the highest label."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest
import yaml

from make import Json, planner
from scheduler_staging import node, staged
from stowplan import Decision, log
from stowplan.api.kinds import object_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "score-by-label"
CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: scorebylabel-scheduler-config
  namespace: scorebylabel
data:
  config.yaml: |
    apiVersion: kubescheduler.config.k8s.io/v1beta2
    kind: KubeSchedulerConfiguration
    leaderElection:
      leaderElect: false
    profiles:
      - schedulerName: scorebylabel
        plugins:
          score:
            enabled:
              - name: ScoreByLabel
            disabled:
              - name: "*" # disable all default plugins
        pluginConfig:
          - name: ScoreByLabel
            args:
              labelKey: "score-by-label"
"""
TESTPOD = """
apiVersion: v1
kind: Pod
metadata:
  name: testpod
spec:
  schedulerName: scorebylabel
  containers:
    - name: testpod
      image: k8s.gcr.io/ubuntu-slim:0.1
      command: ["/bin/sh"]
      args:
        - "-c"
        - "sleep 3600s"
      resources:
        requests:
          cpu: "200m"
          memory: 50Mi
"""
VERBOSITY = 6
"""The Deployment of the tutorial runs the scheduler with `-v=6`."""
LABELS = {"10.177.222.232": "10", "10.177.222.243": "5", "10.177.222.253": "1"}
SCORES = {"10.177.222.232": 100, "10.177.222.243": 50, "10.177.222.253": 10}


@pytest.fixture
def written():
    root, ours = logging.root, logging.getLogger(log.ROOT)
    before = (root.handlers[:], root.level, ours.level)
    stream = io.StringIO()
    log.configure(verbosity=VERBOSITY, stream=stream)
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def created(text: str) -> Json:
    """What the API server makes of a manifest."""
    plain = yaml.safe_load(text)
    plain["metadata"] |= {"namespace": "default", "uid": "uid-testpod", "resourceVersion": "1"}
    return plain


async def test_testpod_goes_to_the_node_with_the_highest_label(written):
    config = yaml.safe_load(yaml.safe_load(CONFIG_MAP)["data"]["config.yaml"])
    async with staged(config) as stage:
        for name, label in LABELS.items():
            labelled = node(name)
            labelled["metadata"]["labels"] = {"score-by-label": label}
            stage.see(labelled)
        stage.see(created(TESTPOD))
        await stage.settle()
        assert stage.api.bound == {"default/testpod": "10.177.222.232"}
        assert stage.notes("Scheduled") == ["Successfully assigned default/testpod to 10.177.222.232"]
    said = written.getvalue()
    assert '"Attempting to schedule pod" pod="default/testpod"' in said
    found = re.findall(r'"Plugin scored node for pod" .* plugin="ScoreByLabel" node="(.*)" score=(\d+)', said)
    assert {name: int(score) for name, score in found} == SCORES


def test_the_example_does_the_same():
    decision = explained("scheduler.yaml", "testpod.yaml", "testpod")
    assert decision.chosen == "node-1"
    assert decision.scores[0].scores.tolist() == [100, 50, 10]


@pytest.mark.parametrize(("pod", "chosen"), [("hurried", "node-2"), ("thrifty", "node-3")])
def test_the_example_with_two_labels(pod, chosen):
    assert explained("two-labels.yaml", "two-pods.yaml", pod).chosen == chosen


def explained(config: str, pods: str, name: str) -> Decision:
    nodes, wanted = (list(yaml.safe_load_all((EXAMPLE / file).read_text())) for file in ("nodes.yaml", pods))
    (pod,) = (object_of(each) for each in wanted if each["metadata"]["name"] == name)
    return planner(nodes, yaml.safe_load((EXAMPLE / config).read_text())).decide(pod)
