"""`stowplan run --groups`: pod groups of scheduler-plugins and Volcano without naming Coscheduling."""

from __future__ import annotations

import pytest

from stowplan.framework.registry import Registry
from stowplan.framework.resolve import resolve_profiles
from stowplan.scheduler.options import parse

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"
SORT = "queueSort: {disabled: [{name: '*'}], enabled: [{name: Coscheduling}]}"
OWN = f"{{multiPoint: {{enabled: [{{name: Coscheduling}}]}}, {SORT}}}"
OTHER_SORT = "{queueSort: {disabled: [{name: '*'}], enabled: [{name: 'groups_flag_plugin:ByName'}]}}"
PLUGIN = """
from stowplan import Plugin


class ByName(Plugin):
    def queue_sort(self, queued):
        return queued.pod.key
"""


def points(*argv):
    registry = Registry.installed()
    config = parse(argv, registry=registry).options.config
    return [
        {point: [name for name, _ in found.points[point]] for point in ("preEnqueue", "queueSort", "permit")}
        for found in resolve_profiles(config, registry)
    ]


def test_without_the_flag_nothing_is_added():
    (found,) = points()
    assert found["queueSort"] == ["PrioritySort"]
    assert "Coscheduling" not in found["preEnqueue"]


def test_the_flag_enables_coscheduling_in_every_profile(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"{HEAD}- {{schedulerName: a}}\n- {{schedulerName: volcano}}\n")
    for found in points("--groups", f"--config={file}"):
        assert found["queueSort"] == ["Coscheduling"]
        assert "Coscheduling" in found["preEnqueue"]


def test_a_profile_that_names_it_stays_as_it_is(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(
        f"{HEAD}- {{schedulerName: a, plugins: {OWN}}}\n- {{schedulerName: b, plugins: {{{SORT}}}}}\n"
    )
    first, second = points("--groups", f"--config={file}")
    assert first == second
    assert first["queueSort"] == ["Coscheduling"]


@pytest.mark.usefixtures("own_sort")
def test_another_sort_of_the_queue_stays(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"{HEAD}- {{schedulerName: a, plugins: {OTHER_SORT}}}\n")
    (found,) = points("--groups", f"--config={file}")
    assert found["queueSort"] == ["groups_flag_plugin:ByName"]
    assert "Coscheduling" in found["preEnqueue"]


@pytest.fixture
def own_sort(tmp_path, monkeypatch):
    (tmp_path / "groups_flag_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
