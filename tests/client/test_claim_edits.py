"""Claims changed in the binary form of the API: nothing but the finalizers or the consumers is touched."""

from __future__ import annotations

import base64

import pytest

from stowplan.api.meta import decode
from stowplan.api.protobuf import MAGIC
from stowplan.api.resource import ResourceClaim
from stowplan.apiserver.protobuf import decode as decoded
from stowplan.client.claim_edits import edit_claim, must_edit
from stowplan.client.errors import ApiError, Conflict

RECORDED = base64.b64decode(
    "azhzAAojChJyZXNvdXJjZS5rOHMuaW8vdjESDVJlc291cmNlQ2xhaW0S9gIKlwIKAWMSABoHZGVmYXVsdCIAKiRlMWQ5YzI3YS1iMDY5"
    "LTRkOGQtOTQ3Ni05YmZhMDZkMDI1ZWMyAzIwNTgAQggI/pvo1wYQAHINZXhhbXBsZS5jb20veIoBvQEKDVB5dGhvbi11cmxsaWISBlVw"
    "ZGF0ZRoScmVzb3VyY2UuazhzLmlvL3YxIggI/5vo1wYQADIIRmllbGRzVjE6egp4eyJmOm1ldGFkYXRhIjp7ImY6ZmluYWxpemVycyI6"
    "eyIuIjp7fSwidjpcImV4YW1wbGUuY29tL3hcIiI6e319fSwiZjpzcGVjIjp7ImY6ZGV2aWNlcyI6eyJmOmNvbmZpZyI6e30sImY6cmVx"
    "dWVzdHMiOnt9fX19QgASWApWChoKA29uZRITCgNncHUaCkV4YWN0Q291bnQgARo4EjYKNAoPZ3B1LmV4YW1wbGUuY29tEiEKH3siYiI6"
    "IDEsICJhIjogWzEsIDIuNSwgIjx4PiYiXX0aABoAIgA="
)
"""What kube-apiserver 1.36.4 answered: version 205, a finalizer, settings with whitespace, no status."""
SETTINGS = b'{"b": 1, "a": [1, 2.5, "<x>&"]}'


def claim(**changes) -> ResourceClaim:
    plain = decoded(RECORDED)
    return decode(ResourceClaim, plain | {name: plain.get(name, {}) | part for name, part in changes.items()})


def user(uid: str, name: str = "p"):
    return {"resource": "pods", "name": name, "uid": uid}


@pytest.mark.parametrize("finalizers", [["example.com/x", "own"], ["own"], []], ids=str)
def test_finalizers_are_replaced(finalizers):
    found = edit_claim(RECORDED, claim(metadata={"finalizers": finalizers}), status=False)
    assert SETTINGS in found
    after, before = decoded(found), decoded(RECORDED)
    assert after["metadata"].pop("finalizers", []) == finalizers
    before["metadata"].pop("finalizers")
    assert after == before


def test_consumers_come_and_go():
    data, expected = RECORDED, []
    for uids in (["u1"], ["u1", "u2"], ["u2", "u3" * 100], []):
        data = edit_claim(data, claim(status={"reservedFor": [user(uid) for uid in uids]}), status=True)
        expected = [user(uid) for uid in uids]
        consumers = decoded(data)["status"].get("reservedFor", [])
        assert [{key: value for key, value in each.items() if value} for each in consumers] == expected
        assert SETTINGS in data
    assert decoded(data)["metadata"] == decoded(RECORDED)["metadata"]


def test_another_version_is_a_conflict():
    with pytest.raises(Conflict, match="default/c has been changed"):
        edit_claim(RECORDED, claim(metadata={"resourceVersion": "204"}), status=False)


@pytest.mark.parametrize(
    "data", [RECORDED[:-1], RECORDED[:40], MAGIC + b"\xff" * 30, MAGIC + b"\x0b"], ids=len
)
def test_an_answer_that_makes_no_sense_is_an_error_of_the_api(data):
    with pytest.raises(ApiError):
        edit_claim(data, claim(), status=False)


ALLOCATED = {"allocation": {"devices": {"config": [{"source": "FromClass", "opaque": {"driver": "d"}}]}}}


def test_only_claims_with_settings_are_edited():
    plain = claim(spec={"devices": {}})
    assert must_edit(claim(), claim(metadata={"finalizers": []}), status=False)
    assert not must_edit(plain, plain, status=False)
    assert not must_edit(claim(), claim(status=ALLOCATED), status=True)  # nothing that must stay as it is
    assert must_edit(claim(status=ALLOCATED), claim(status=ALLOCATED), status=True)
    assert not must_edit(claim(status=ALLOCATED), claim(), status=True)
