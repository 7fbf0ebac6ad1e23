"""Changes to ResourceClaims that leave opaque parameters as they are, byte by byte.

The API server compares the bytes of the settings in a claim, and JSON does not tell how they were written:
whitespace and escapes get lost, so that every patch of such a claim looks like a change of its spec. In the
binary form of the API they are kept, and only the fields to change are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stowplan.api.meta import Object
from stowplan.api.protobuf import MAGIC, encode_message, fields
from stowplan.api.resource import ConsumerReference, DeviceConfiguration, ResourceClaim
from stowplan.client.errors import ApiError, Conflict

# The numbers of fields: of the envelope, of a claim, of its metadata, its status and who uses it.
RAW, METADATA, STATUS, VERSION, FINALIZERS, RESERVED_FOR = 2, 1, 3, 6, 14, 2
CONSUMER_GROUP, CONSUMER_RESOURCE, CONSUMER_NAME, CONSUMER_UID = 1, 3, 4, 5


def must_edit(before: Object, after: Object, *, status: bool) -> bool:
    """Whether a JSON patch would reformat opaque parameters of the claim that must not change."""
    if not isinstance(before, ResourceClaim) or not isinstance(after, ResourceClaim):
        return False
    if not status:
        return _has_settings(before.spec.devices.config)
    kept = before.allocation
    return kept is not None and kept == after.allocation and _has_settings(kept.devices.config)


def edit_claim(data: bytes, claim: Object, *, status: bool) -> bytes:
    """Return an encoded claim with the finalizers, or the consumers, of `claim`."""
    assert isinstance(claim, ResourceClaim)
    try:
        envelope = data[len(MAGIC) :]
        raw = _only(envelope, RAW)
        metadata = _only(raw, METADATA)
        if _only(metadata, VERSION).decode() != claim.metadata.resource_version:
            raise Conflict(409, "Conflict", f"claim {claim.key} has been changed in the meantime")
        if status:
            found = _only(raw, STATUS)
            consumers = _consumers(found, claim.status.reserved_for)
            raw = _replace_fields(raw, STATUS, [_replace_fields(found, RESERVED_FOR, consumers)])
        else:
            finalizers = [each.encode() for each in claim.metadata.finalizers]
            raw = _replace_fields(raw, METADATA, [_replace_fields(metadata, FINALIZERS, finalizers)])
        return MAGIC + _replace_fields(envelope, RAW, [raw])
    except (IndexError, ValueError, AttributeError, TypeError) as error:
        raise ApiError(0, "", f"the API server's answer is no claim in binary form: {error}") from error


def _has_settings(config: Iterable[DeviceConfiguration]) -> bool:
    return any(setting.opaque is not None for setting in config)


def _consumers(status: bytes, wanted: Iterable[ConsumerReference]) -> list[bytes]:
    """The encoded consumers: known ones as they are in the status, new ones encoded now."""
    known = {_only(each, CONSUMER_UID).decode(): each for each in _all(status, RESERVED_FOR)}
    return [known.get(each.uid) or _consumer(each) for each in wanted]


def _consumer(reference: ConsumerReference) -> bytes:
    return encode_message(
        (CONSUMER_GROUP, reference.api_group),
        (CONSUMER_RESOURCE, reference.resource),
        (CONSUMER_NAME, reference.name),
        (CONSUMER_UID, reference.uid),
    )


def _only(message: bytes, number: int) -> bytes:
    return next(_all(message, number), b"")


def _all(message: bytes, number: int) -> Iterator[bytes]:
    return (field.value for field in fields(message) if field.number == number)


def _replace_fields(message: bytes, number: int, contents: Iterable[bytes]) -> bytes:
    """The message with these contents in place of all fields with that number."""
    others = b"".join(field.text for field in fields(message) if field.number != number)
    return others + encode_message(*((number, content) for content in contents))
