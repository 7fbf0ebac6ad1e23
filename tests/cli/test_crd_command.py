"""`stowplan crd` from the outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from stowplan.cli import stowplan
from stowplan.errors import StowplanError

PAGE = Path(__file__).parents[2] / "docs" / "custom-resources.md"
MODULE = "stowplan.plugins.community.node_crd_resource_fit"
PLUGIN_FILE = """
from typing import ClassVar
from stowplan import CustomResource, Definition, Plugin

class Rack(CustomResource, frozen=True):
    definition: ClassVar = Definition("example.com", "v1", "racks", "Rack")

class Ingress(CustomResource, frozen=True):
    definition: ClassVar = Definition("networking.k8s.io", "v1", "ingresses", "Ingress")

class ByRack(Plugin):
    watches = (Rack, Ingress)
    def filter(self, state, pod, node): ...
"""


def names(*arguments: str) -> list[str]:
    run = CliRunner().invoke(stowplan, ["crd", *arguments], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    return [each["metadata"]["name"] for each in yaml.safe_load_all(run.stdout)]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([f"{MODULE}:ClusterScopedResource"], id="a struct"),
        pytest.param([f"{MODULE}:NodeCRDResourceFit"], id="a plugin by its class"),
        pytest.param(["NodeCRDResourceFit"], id="an installed plugin"),
        pytest.param(["NodeCRDResourceFit", f"{MODULE}:ClusterScopedResource"], id="twice the same"),
    ],
)
def test_what_is_named_is_printed_once(arguments):
    assert names(*arguments) == ["clusterscopedresources.scheduling.sigs.k8s.io"]


@pytest.mark.parametrize("plugin", [[], ["NodeCRDResourceFit"]])
@pytest.mark.parametrize("kind", ["ClusterScopedResources", "ClusterScopedResource"])
def test_the_kind_is_named_as_asked(plugin, kind):
    run = CliRunner().invoke(stowplan, ["crd", *plugin, "--kind", kind], catch_exceptions=False)
    (found,) = yaml.safe_load_all(run.stdout)
    (usual,) = yaml.safe_load_all(CliRunner().invoke(stowplan, ["crd", "NodeCRDResourceFit"]).stdout)
    usual["spec"]["names"] |= {"kind": kind, "listKind": f"{kind}List"}
    assert found == usual


def test_a_kind_that_no_plugin_has():
    with pytest.raises(StowplanError, match="Rock: unknown kind; known: ClusterScopedResource"):
        CliRunner().invoke(stowplan, ["crd", "NodeCRDResourceFit", "--kind", "Rock"], catch_exceptions=False)
    run = CliRunner().invoke(stowplan, ["crd"])
    assert (run.exit_code, "Missing argument 'NAME...' or option '--kind'." in run.output) == (2, True)


@pytest.mark.parametrize(
    "name",
    [
        "podgroups.scheduling.x-k8s.io",
        "elasticquotas.scheduling.x-k8s.io",
        "podgroups.scheduling.volcano.sh",
        "queues.scheduling.volcano.sh",
        "hypernodes.topology.volcano.sh",
    ],
)
def test_kinds_of_pod_groups_are_known_by_name(name):
    assert names(name, name) == [name]


def test_plugins_of_a_folder_and_only_what_needs_a_definition(tmp_path):
    (tmp_path / "racks_crd_command.py").write_text(PLUGIN_FILE)
    folder = f"--plugin-dir={tmp_path}"
    assert names(folder, "ByRack") == ["racks.example.com"]
    assert names(folder, "racks_crd_command:Rack") == ["racks.example.com"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("NodeName", "plugin NodeName: watches no custom resources", id="nothing watched"),
        pytest.param("Nonsense", '"Nonsense" does not exist', id="no such plugin"),
        pytest.param("nonsense_module:Kind", "No module named 'nonsense_module'", id="no such module"),
        pytest.param(f"{MODULE}:requested", "is not a class derived from stowplan.Plugin", id="no class"),
    ],
)
def test_faults(name, message):
    with pytest.raises(StowplanError, match=message):
        CliRunner().invoke(stowplan, ["crd", name], catch_exceptions=False)


def test_the_page_on_custom_resources_shows_what_its_plugin_gives(tmp_path):
    text = PAGE.read_text()
    example = re.search("```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "by_health.py").write_text(example[1])
    for name in ("ByHealth", "by_health:NodeHealth"):
        run = CliRunner().invoke(stowplan, ["crd", f"--plugin-dir={tmp_path}", name], catch_exceptions=False)
        assert run.stdout in text
        assert run.stdout.startswith("---")
