"""Messages of configuration errors in kube-scheduler's format: path, type of error, value, detail."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

import msgspec

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def invalid(path: str, value: object, detail: str) -> str:
    return f"{path}: Invalid value: {format_value(value)}: {detail}"


def required(path: str, detail: str = "") -> str:
    return f"{path}: Required value" + (f": {detail}" if detail else "")


def duplicate(path: str, value: object) -> str:
    return f"{path}: Duplicate value: {format_value(value)}"


def unsupported(path: str, value: object, supported: Iterable[str]) -> str:
    values = ", ".join(map(format_value, supported))
    return f"{path}: Unsupported value: {format_value(value)}: supported values: {values}"


def forbidden(path: str, detail: str) -> str:
    return f"{path}: Forbidden: {detail}"


def join_errors(errors: Sequence[str]) -> str:
    """Join errors as `[e1, e2]`, without duplicates; a single error stays as it is."""
    distinct = list(dict.fromkeys(errors))
    return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"


def format_value(value: object) -> str:
    plain = msgspec.to_builtins(value, enc_hook=str)
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def label_name_faults(text: str) -> list[str]:
    """Why `text` is not a valid label key: `name`, or `dns.prefix/name`."""
    parts = text.split("/")
    if len(parts) > 2:
        prefixed = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return [f"a valid label key {_NAME_RULE} {prefixed}"]
    faults = []
    if len(parts) == 2:
        prefix = parts[0]
        if not prefix:
            faults.append("prefix part must be non-empty")
        elif len(prefix) > 253:
            faults.append("prefix part must be no more than 253 bytes")
        elif not _SUBDOMAIN.fullmatch(prefix):
            faults.append(f"prefix part {_SUBDOMAIN_RULE}")
    name = parts[-1]
    if not name:
        faults.append("name part must be non-empty")
    elif len(name) > 63:
        faults.append("name part must be no more than 63 bytes")
    if not _NAME.fullmatch(name):
        faults.append(f"name part {_NAME_RULE}")
    return faults
