"""docs/how-to/managed-clusters.md: the policy that points the pods of some namespaces at our scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from controlplane.control_plane import ControlPlane
from controlplane.process import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "managed-clusters.md"


@pytest.fixture
def policy(control_plane: ControlPlane) -> Iterator[list[dict[str, Any]]]:
    blocks = re.findall(r"^ {4}```yaml\n(.*?)^ {4}```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (each for each in blocks if "MutatingAdmissionPolicy" in each)
    objects = list(yaml.safe_load_all(dedent(block)))
    control_plane.kubectl("create", "-f", "-", objects=objects)
    yield objects
    control_plane.kubectl("delete", "-f", "-", objects=objects)


@pytest.mark.usefixtures("policy")
def test_the_policy_changes_the_scheduler_of_the_labelled_namespaces_only(
    control_plane: ControlPlane,
) -> None:
    names = (f"p{number}" for number in count())

    def scheduler_in(namespace: str) -> str:
        pod = {"metadata": {"name": next(names)}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        path = f"/api/v1/namespaces/{namespace}/pods"
        return str(control_plane.request("POST", path, pod)["spec"]["schedulerName"])

    team = {"metadata": {"name": "team", "labels": {"scheduler": "ours"}}}
    control_plane.request("POST", "/api/v1/namespaces", team)
    wait_until(lambda: scheduler_in("team") == "ours", lambda: "the policy has no effect", seconds=30)
    assert scheduler_in("default") == "default-scheduler"
