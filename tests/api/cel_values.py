"""Values of CEL in the form in which the reference's answers are recorded: a type's name and text."""

from __future__ import annotations

import json
import math
from typing import Any

from stowplan.api.cel.formats import Format
from stowplan.api.cel.networks import IP, Cidr, Url
from stowplan.api.cel.overloads import name_of
from stowplan.api.cel.times import seconds_text, timestamp_text
from stowplan.api.cel.values import Amount, Duration, Optional, Timestamp, UInt, Version


def recorded_form(value: Any) -> Any:
    match value:
        case Optional():
            return ["optional", recorded_form(value.value)] if value.present else ["optional"]
        case dict():
            pairs = [[recorded_form(key), recorded_form(each)] for key, each in value.items()]
            return ["map", sorted(pairs, key=json.dumps)]
        case IP() | Cidr() | Url() | Format():
            return [name_of(type(value)), _text(value)]
        case list():
            return ["list", [recorded_form(item) for item in value]]
    return [name_of(type(value)), _text(value)]


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float():
            return repr(value) if math.isfinite(value) else f"{value:+f}".lower().replace("+nan", "nan")
        case bytes():
            return value.hex()
        case type():
            return name_of(value)
        case Duration():
            return f"{seconds_text(value)}s"
        case Timestamp():
            return timestamp_text(value)
        case UInt() | int():
            return str(int(value))
        case Amount():
            return f"{value.nanos}n"
        case Version():
            return repr(value.order)
        case IP():
            return str(value.address)
        case Cidr():
            return f"{value.ip.address}/{value.length}"
        case Url():
            return f"{value.scheme}|{value.host}|{value.path}"
        case Format():
            return value.name
    return str(value)
