"""A newer version of a known pod is read as any pod is, whatever is left out of the work."""

import msgspec
import pytest

from stowplan.api.pod import Pod

POD = {
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": "u1",
        "generation": 1,
        "resourceVersion": "7",
        "labels": {"app": "web"},
    },
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    "status": {"phase": "Pending"},
}


def changed(**parts):
    return {**POD, **{part: {**POD[part], **fields} for part, fields in parts.items()}}


def fields_of(pod):
    return {field: getattr(pod, field) for field in Pod.__struct_fields__}


def read(before, after):
    old = Pod.decode(before)
    return Pod.decode_change(msgspec.json.encode(after), {old.key: old})


SAME_GENERATION = {
    "bound": changed(spec={"nodeName": "n1"}, metadata={"resourceVersion": "8"}),
    "labelled": changed(metadata={"labels": {"app": "web", "zone": "a"}}),
    "annotated": changed(metadata={"annotations": {"key": "value"}}),
    "deleted": changed(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
    "owned": changed(
        metadata={"ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r1", "controller": True}]}
    ),
    "nominated": changed(status={"nominatedNodeName": "n1"}),
    "running": changed(status={"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}),
    "unschedulable": changed(
        status={"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    ),
    "with a claim": changed(
        status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-1"}]}
    ),
    "resized": changed(
        spec={"nodeName": "n1"},
        status={"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "3"}}}]},
    ),
}


@pytest.mark.parametrize("name", SAME_GENERATION)
@pytest.mark.parametrize("other", SAME_GENERATION)
def test_a_version_of_the_same_generation_is_read_whole(name, other):
    after = SAME_GENERATION[name]
    assert fields_of(read(SAME_GENERATION[other], after)) == fields_of(Pod.decode(after))


@pytest.mark.parametrize(
    "metadata", [{"generation": 2}, {"uid": "u2"}, {"name": "other"}], ids=["generation", "uid", "name"]
)
def test_the_spec_of_another_version_is_read(metadata):
    containers = [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]
    found = read(POD, changed(metadata=metadata, spec={"containers": containers}))
    assert found.requests == {"cpu": 5000}


def test_without_generations_the_spec_is_always_read():
    """As on API servers before 1.33."""
    before = changed(metadata={"generation": 0})
    containers = [{"name": "c", "resources": {"requests": {"cpu": "5"}}}]
    found = read(before, changed(metadata={"generation": 0}, spec={"containers": containers}))
    assert found.requests == {"cpu": 5000}


def test_the_spec_is_read_if_it_could_not_be_before():
    old = Pod.salvage(
        msgspec.json.encode(changed(spec={"containers": [{"name": "c", "resources": {"requests": 5}}]})),
        "a fault",
    )
    found = Pod.decode_change(msgspec.json.encode(POD), {old.key: old})
    assert (found.fault, found.requests) == ("", {"cpu": 1000})
