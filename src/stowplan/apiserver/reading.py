"""Lists, in pages or whole, at any version not forgotten; and the selection that watches use as well."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from stowplan.api.selectors import Selector
from stowplan.apiserver import forms, queries
from stowplan.apiserver.failures import Failure, bad_request, expired, internal, too_large_version
from stowplan.apiserver.forms import Form
from stowplan.apiserver.options import ListOptions
from stowplan.apiserver.resources import Resource
from stowplan.apiserver.store import Collection, Key, Record
from stowplan.http11.messages import Response

Json = dict[str, Any]


class Selection(NamedTuple):
    """Which objects are asked for."""

    namespace: str
    labels: Selector
    fields: queries.FieldTerms
    name: str = ""

    def takes(self, record: Record) -> bool:
        if self.namespace and record.key[0] != self.namespace:
            return False
        if self.name and record.key[1] != self.name:
            return False
        if not self.labels.everything and not self.labels.matches(record.labels):
            return False
        return not self.fields or queries.fields_match(self.fields, record.fields)


def selection_of(resource: Resource, namespace: str, options: ListOptions, name: str = "") -> Selection:
    def unknown(field: str) -> Failure:
        if not resource.is_custom and not resource.strategy.fields:
            said = f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'
        elif resource.kind == "Job":
            said = f'field label "{field}" not supported for Job'
        else:
            said = f"field label not supported: {field}"
        return bad_request(said)

    terms = queries.field_selector(options.field_selector, resource.known_fields, unknown)
    renamed = resource.strategy.fields if resource.name == "events.events.k8s.io" else {}
    terms = tuple((renamed.get(field, field), value, equal) for field, value, equal in terms)
    return Selection(namespace, queries.label_selector(options.label_selector), terms, name)


def answer_list(
    resource: Resource, collection: Collection, selection: Selection, options: ListOptions, form: Form
) -> Response:
    version, after = collection.store.version, None
    if options.continue_from:
        version, after = _position(options, version)
    elif options.version:
        asked = version_number(options.version)
        if asked > version:
            raise too_large_version(asked, version)
        if options.match == "Exact" or (options.limit and asked and not options.match):
            version = asked
    records = collection.at(version)
    if records is None:
        raise _forgotten(collection, options, after)
    keys = collection.sorted_keys() if records is collection.records else sorted(records)
    found, last, left = _page(records, keys, selection, options.limit, after)
    meta: Json = {"resourceVersion": str(version)}
    if last is not None:
        meta["continue"] = _token(version, last)
        if not options.label_selector and not options.field_selector:
            meta["remainingItemCount"] = left
    return forms.render_list(form, resource, found, meta)


def _page(
    records: dict[Key, Record], keys: Iterable[Key], selection: Selection, limit: int, after: Key | None
) -> tuple[list[Record], Key | None, int]:
    """The records of one page, the last key if there is more to come, and how much more."""
    found = [records[key] for key in keys if (after is None or key > after) and selection.takes(records[key])]
    if not limit or len(found) <= limit:
        return found, None, 0
    return found[:limit], found[limit - 1].key, len(found) - limit


def version_number(text: str) -> int:
    if not _is_version(text):
        raise bad_request(f"invalid resource version: {unreadable_version(text)}")
    return int(text)


def _is_version(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64


def unreadable_version(text: str) -> str:
    why = "value out of range" if text.isascii() and text.isdecimal() else "invalid syntax"
    return f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": {why}'


def _token(version: int, last: Key) -> str:
    document = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{last[0]}/{last[1]}\0"}
    return base64.urlsafe_b64encode(json.dumps(document, separators=(",", ":")).encode()).decode().rstrip("=")


def _position(options: ListOptions, current: int) -> tuple[int, Key]:
    text = options.continue_from
    try:
        document = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        namespace, _, name = document["start"].rstrip("\0").partition("/")
        version = int(document["rv"])
    except (binascii.Error, UnicodeDecodeError, ValueError):
        good = len(re.match(r"[A-Za-z0-9_-]*", text)[0])  # type: ignore[index]
        said = f"invalid continue token: continue key is not valid: illegal base64 data at input byte {good}"
        raise bad_request(said) from None
    except (KeyError, TypeError, AttributeError):
        raise bad_request("continue key is not valid: incorrect encoded start resourceVersion") from None
    if options.version and options.version != "0":
        raise bad_request("specifying resource version is not allowed when using continue")
    return (version if version > 0 else current), (namespace, name)


def _forgotten(collection: Collection, options: ListOptions, after: Key | None) -> Failure:
    if after is None:
        return expired("The resourceVersion for the provided list is too old.")
    failure = expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new "
        "list without the continue parameter, or use the continue token in this response to retrieve the "
        "remainder of the results. Continuing with the provided token results in an inconsistent list - "
        "objects that were created, modified, or deleted between the time the first chunk was returned and "
        "now may show up in the list."
    )
    failure.status["metadata"] = {"continue": _token(-1, after)}
    return failure


def watch_version(text: str) -> int:
    if not _is_version(text):
        raise internal(unreadable_version(text))
    return int(text)
