"""Custom resources declared as structs, on a real API server: defined, written, read and watched."""

from __future__ import annotations

import subprocess
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from custom_objects import install_kind, readable, uninstall

from controlplane.objects import node, pod
from controlplane.pods import add_nodes, condition, create, placed
from controlplane.waiting import eventually
from stowplan import Column, CustomResource, Definition, Wire, keyed_by
from stowplan.api.quantity import Quantity, parse
from stowplan.client.errors import Conflict
from stowplan.plugins.community.node_crd_resource_fit import ClusterScopedResource

PLUGIN = "stowplan.plugins.community.node_crd_resource_fit:NodeCRDResourceFit"
PROFILE = {
    "plugins": {
        point: {"enabled": [{"name": PLUGIN}], "disabled": [{"name": "*"}]} for point in ("filter", "score")
    }
}
MEMORY = "company.net/memory"
NOT_INSTALLED = "CRD clusterscopedresources.scheduling.sigs.k8s.io is not installed, or cannot be read"


class Bed(Wire, frozen=True):
    name: str
    size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    soil: Literal["sand", "clay"] = "clay"


class GardenSpec(Wire, frozen=True):
    owner: Annotated[str, msgspec.Meta(min_length=1, description="Whose it is.")]
    beds: Annotated[tuple[Bed, ...], keyed_by("name")] = ()
    water: Quantity | None = None
    tools: frozenset[str] = frozenset()
    notes: dict[str, Any] = {}
    port: int | str = 0


class GardenStatus(Wire, frozen=True):
    growing: int = 0


class Garden(CustomResource, frozen=True, kw_only=True):
    """A garden."""

    definition: ClassVar = Definition(
        "example.com",
        "v1",
        "gardens",
        "Garden",
        short_names=("gd",),
        columns=(Column("Owner", ".spec.owner"), Column("Growing", ".status.growing", "integer")),
    )
    spec: GardenSpec
    status: GardenStatus = GardenStatus()


def garden(name: str = "g", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Garden",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"owner": "ann", **spec},
    }


def offers(name: str, score: int = 55) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "ClusterScopedResource",
        "metadata": {"name": name},
        "spec": {"resourcesFilter": {MEMORY: True}, "resourcesScore": {MEMORY: score}},
    }


def wanting(name: str) -> dict[str, Any]:
    made = pod(name)
    made["spec"]["containers"][0]["resources"] = {"requests": {MEMORY: "1"}, "limits": {MEMORY: "1"}}
    return made


def test_a_definition_is_accepted_and_its_objects_are_defaulted_and_kept_whole(control_plane):
    install_kind(control_plane, Garden)
    plain = garden(
        beds=[{"name": "a"}], water="500m", tools=["rake"], notes={"any": {"thing": [1]}}, port="http"
    )
    create(control_plane, plain)
    spec = control_plane.request("GET", "/apis/example.com/v1/namespaces/default/gardens/g")["spec"]
    assert spec == plain["spec"] | {"beds": [{"name": "a", "size": 10, "soil": "clay"}]}
    assert control_plane.kubectl("get", "gd").split()[:4] == ["NAME", "OWNER", "GROWING", "AGE"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"owner": ""}, "spec.owner", id="too short"),
        pytest.param({"beds": [{"name": "a", "size": 101}]}, "spec.beds[0].size", id="too large"),
        pytest.param({"beds": [{"name": "a", "soil": "peat"}]}, "spec.beds[0].soil", id="not one of them"),
        pytest.param({"beds": [{"name": "a"}, {"name": "a"}]}, "spec.beds[1]", id="the same key twice"),
        pytest.param({"beds": [{"size": 5}]}, "spec.beds[0].name", id="required"),
        pytest.param({"water": "a lot"}, "spec.water", id="no quantity"),
        pytest.param({"tools": ["rake", "rake"]}, "spec.tools[1]", id="a set with the same twice"),
        pytest.param({"unknown": 1}, 'unknown field "spec.unknown"', id="unknown"),
    ],
)
def test_wrong_objects_are_refused(control_plane, spec, message):
    install_kind(control_plane, Garden)
    with pytest.raises(subprocess.CalledProcessError) as error:
        create(control_plane, garden(**spec))
    assert message in error.value.stderr


async def test_structs_are_written_and_read(control_plane, api):
    install_kind(control_plane, Garden)
    meta = {"name": "g", "namespace": "default"}
    made = await api.create(
        msgspec.convert({"metadata": meta, "spec": {"owner": "ann", "notes": {"a": 1}}}, Garden)
    )
    spec = msgspec.structs.replace(made.spec, beds=(Bed("b"),), water=parse("2"))
    changed = await api.update(msgspec.structs.replace(made, spec=spec))
    assert (changed.spec.beds, changed.spec.water, changed.spec.notes) == ((Bed("b"),), parse("2"), {"a": 1})
    status = msgspec.structs.replace(changed, status=GardenStatus(growing=3))
    assert (await api.update_status(status)).status.growing == 3
    with pytest.raises(Conflict):
        await api.update(msgspec.structs.replace(made, spec=made.spec))
    await api.delete(status)
    assert control_plane.request("GET", "/apis/example.com/v1/gardens")["items"] == []


async def test_a_kind_that_comes_and_goes(control_plane):
    add_nodes(control_plane, node("n1"), node("n2"))
    with (
        readable(control_plane, ClusterScopedResource),
        control_plane.stowplan("-v=5", profiles=[PROFILE]) as scheduler,
    ):
        create(control_plane, wanting("early"))
        found = await eventually(lambda: condition(control_plane, "early"), bool)
        assert found["message"].startswith(f"0/2 nodes are available: 2 {NOT_INSTALLED}.")
        install_kind(control_plane, ClusterScopedResource)
        create(control_plane, offers("n2"))
        await eventually(lambda: placed(control_plane), lambda each: each["early"] == "n2", seconds=15)

        uninstall(control_plane, ClusterScopedResource)
        await eventually(
            lambda: scheduler.output, lambda text: text.count("Kind is not served") == 2, seconds=15
        )
        create(control_plane, wanting("late"))
        found = await eventually(lambda: condition(control_plane, "late"), bool)
        assert NOT_INSTALLED in found["message"]

        install_kind(control_plane, ClusterScopedResource)
        create(control_plane, offers("n1"))
        await eventually(lambda: placed(control_plane), lambda each: each["late"] == "n1", seconds=15)
        advice = "install its CustomResourceDefinition: stowplan crd"
        assert scheduler.output.count(advice) == 2  # once each time, not at each look


async def test_a_kind_that_must_not_be_read_at_first(control_plane):
    install_kind(control_plane, ClusterScopedResource)
    add_nodes(control_plane, node("n1"))
    create(control_plane, offers("n1"))
    with control_plane.stowplan(profiles=[PROFILE]) as scheduler:
        create(control_plane, wanting("p"))
        found = await eventually(lambda: condition(control_plane, "p"), bool)
        assert NOT_INSTALLED in found["message"]
        right = "get, list and watch of clusterscopedresources in the API group 'scheduling.sigs.k8s.io'"
        assert scheduler.output.count(right) == 1
        with readable(control_plane, ClusterScopedResource):
            await eventually(lambda: placed(control_plane), lambda each: each["p"] == "n1", seconds=20)


async def test_pods_go_where_the_score_is_better_and_wait_for_a_change(control_plane):
    install_kind(control_plane, ClusterScopedResource)
    add_nodes(control_plane, node("n1"), node("n2"), node("n3"))
    create(control_plane, offers("n1", 10), offers("n2", 90))
    with (
        readable(control_plane, ClusterScopedResource),
        control_plane.stowplan(profiles=[PROFILE]),
    ):
        create(control_plane, wanting("p"))
        await eventually(lambda: placed(control_plane), lambda each: each["p"] == "n2")
        other = wanting("q")
        resources = {"requests": {"company.net/disk": "1"}, "limits": {"company.net/disk": "1"}}
        other["spec"]["containers"][0]["resources"] = resources
        create(control_plane, other)
        found = await eventually(lambda: condition(control_plane, "q"), bool)
        assert found["message"].startswith(
            "0/3 nodes are available: 1 CRD for node not found, 2 Node does not enable resource company.net/"
        )
        allowed = {"spec": {"resourcesFilter": {"company.net/disk": True}}}
        path = "/apis/scheduling.sigs.k8s.io/v1alpha1/clusterscopedresources/n1"
        control_plane.request("PATCH", path, allowed)
        await eventually(lambda: placed(control_plane), lambda each: each["q"] == "n1", seconds=20)
