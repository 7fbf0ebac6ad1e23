"""CEL's functions on lists, sets and maps: the standard ones, the extensions, Kubernetes' own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key
from typing import Any

from stowplan.api.cel.overloads import Meter, define, define_on_text
from stowplan.api.cel.values import (
    DYN,
    NUMBERS,
    Domains,
    Duration,
    Optional,
    Timestamp,
    UInt,
    format_value,
    has_key,
    is_equal,
)
from stowplan.errors import CelError

MAX_ATTRIBUTE_VALUES = 48
COMPARABLE = frozenset({*NUMBERS, str, bytes, bool, Duration, Timestamp})


def define_lists() -> None:
    for name in ("size", ".size"):
        for kind in (str, bytes, list, dict):
            define(name, kind, result=int, function=len)
    define("in", DYN, list, result=bool, function=is_in_list, is_metered=True)
    define("in", DYN, dict, result=bool, function=is_in_map, is_metered=True)
    define(".includes", DYN, DYN, result=bool, function=includes, is_metered=True)
    define("[]", list, int, result=DYN, function=item_of_list)
    define("[]", dict, DYN, result=DYN, function=item_of_map)
    define("sets.contains", list, list, result=bool, function=contains_all, is_metered=True)
    define("sets.intersects", list, list, result=bool, function=intersects, is_metered=True)
    define("sets.equivalent", list, list, result=bool, function=is_equivalent, is_metered=True)
    define(".isSorted", list, result=bool, function=is_sorted, is_metered=True)
    define(".sum", list, result=DYN, function=total, is_metered=True)
    for name, sign in ((".min", 1), (".max", -1)):
        define(name, list, result=DYN, function=extreme(name[1:], sign), is_metered=True)
    define(".indexOf", list, DYN, result=int, function=position_in, is_metered=True)
    define(".lastIndexOf", list, DYN, result=int, function=last_position_in, is_metered=True)
    define("lists.range", int, result=list, function=numbers_below, is_metered=True)
    define(".slice", list, int, int, result=list, function=slice_list, is_metered=True)
    define(".flatten", list, result=list, function=flatten_list, is_metered=True)
    define(".flatten", list, int, result=list, function=flatten_list, is_metered=True)
    define(".distinct", list, result=list, function=distinct, is_metered=True)
    define(".sort", list, result=list, function=sort, is_metered=True)
    define_on_text(".reverse", list, result=list, function=lambda items: items[::-1])
    define(".first", list, result=Optional, function=lambda items: Optional.of(items[:1]))
    define(".last", list, result=Optional, function=lambda items: Optional.of(items[-1:]))


def is_in_list(meter: Meter, value: object, items: list[object]) -> bool:
    meter.charge(len(items))
    return any(is_equal(meter, value, item) for item in items)


def is_in_map(meter: Meter, key: object, holder: dict[Any, Any]) -> bool:
    return is_key(key) and has_key(holder, key)


def includes(meter: Meter, holder: object, value: object) -> bool:
    """Whether an attribute, which may be a list, has the value."""
    if type(holder) is not list:
        return is_equal(meter, holder, value)
    if len(holder) > MAX_ATTRIBUTE_VALUES and not any(
        is_equal(meter, item, value) for item in holder[:MAX_ATTRIBUTE_VALUES]
    ):
        raise CelError(
            f"'includes' function cannot be applied to lists longer than {MAX_ATTRIBUTE_VALUES} values"
        )
    return any(is_equal(meter, item, value) for item in holder)


def is_key(key: object) -> bool:
    return type(key) in (str, bool, *NUMBERS)


def item_of_list(items: list[Any], index: Any) -> Any:
    if type(index) not in NUMBERS or index != index or index not in range(len(items)):
        raise CelError(f"index out of bounds: {format_value(index)}")
    return items[int(index)]


def item_of_map(holder: dict[Any, Any], key: object) -> object:
    if is_key(key) and (has_key(holder, key) or type(holder) is Domains):
        return holder[key]
    raise CelError(f"no such key: {format_value(key)}")


def contains_all(meter: Meter, items: list[object], wanted: list[object]) -> bool:
    meter.charge(1 + len(items) * len(wanted))
    return all(any(is_equal(meter, value, item) for item in items) for value in wanted)


def intersects(meter: Meter, left: list[object], right: list[object]) -> bool:
    meter.charge(1 + len(left) * len(right))
    return any(is_equal(meter, value, item) for value in left for item in right)


def is_equivalent(meter: Meter, left: list[object], right: list[object]) -> bool:
    return contains_all(meter, left, right) and contains_all(meter, right, left)


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1; values that cannot be compared count as equal."""
    if type(left) not in COMPARABLE or (
        type(left) is not type(right) and not (type(left) in NUMBERS and type(right) in NUMBERS)
    ):
        return 0
    return int(left > right) - int(left < right)


def _check(meter: Meter, items: list[Any]) -> list[Any]:
    for item in items:
        meter.charge_text(len(item) if type(item) in (str, bytes) else 0)
        if type(item) not in COMPARABLE:
            raise CelError("no such overload")
    return items


def is_sorted(meter: Meter, items: list[object]) -> bool:
    # parity: two items of different types count as sorted.
    return all(compare(*pair) != 1 for pair in zip(_check(meter, items), items[1:], strict=False))


def extreme(name: str, sign: int) -> Callable[[Meter, list[object]], Any]:
    def choose(meter: Meter, items: list[object]) -> object:
        if not items:
            raise CelError(f"{name} called on empty list")
        best, *others = _check(meter, items)
        for item in others:
            if compare(best, item) == sign:
                best = item
        return best

    return choose


def total(meter: Meter, items: list[object]) -> object:
    from stowplan.api.cel.standard import to_duration, to_int, to_uint

    meter.charge(len(items))
    kinds = {type(item) for item in items}
    checks: dict[type, Callable[[Any], Any]] = {
        int: to_int,
        UInt: to_uint,
        float: float,
        Duration: to_duration,
    }
    if len(kinds) > 1 or not kinds <= checks.keys():
        raise CelError("no such overload")
    return checks[kinds.pop()](sum(items)) if kinds else 0


def position_in(meter: Meter, items: list[object], value: object) -> int:
    meter.charge(len(items))
    return next((position for position, item in enumerate(items) if is_equal(meter, item, value)), -1)


def last_position_in(meter: Meter, items: list[object], value: object) -> int:
    found = position_in(meter, items[::-1], value)
    return found if found < 0 else len(items) - 1 - found


def numbers_below(meter: Meter, end: int) -> list[int]:
    meter.charge(11 + max(end, 0))
    return list(range(end))


def slice_list(meter: Meter, items: list[object], start: int, end: int) -> list[object]:
    where = f"cannot slice({start}, {end})"
    if start < 0 or end < 0:
        raise CelError(f"{where}, negative indexes not supported")
    if start > end:
        raise CelError(f"{where}, start index must be less than or equal to end index")
    if end > len(items):
        raise CelError(f"{where}, list is length {len(items)}")
    meter.charge(11 + end - start)
    return items[start:end]


def flatten_list(meter: Meter, items: list[object], depth: int = 1) -> list[object]:
    if depth < 0:
        raise CelError("level must be non-negative")
    meter.charge(11)
    found: list[object] = []
    waiting = [(iter(items), depth)]
    while waiting:
        level, depth = waiting[-1]
        for item in level:
            meter.charge(1)
            if type(item) is list and depth:
                waiting.append((iter(item), depth - 1))
                break
            found.append(item)
        else:
            waiting.pop()
    return found


def distinct(meter: Meter, items: list[object]) -> list[object]:
    meter.charge(11 + 2 * len(items) ** 2)
    found: list[object] = []
    for item in items:
        if not any(is_equal(meter, item, other) for other in found):
            found.append(item)
    return found


def sort(meter: Meter, items: list[object]) -> list[object]:
    return sort_by_keys(meter, items, items)


def sort_by_keys(meter: Meter, items: list[Any], keys: list[Any]) -> list[Any]:
    """The items in the order of their keys."""
    meter.charge(11 + 2 * len(keys) ** 2)
    for key in keys:
        meter.charge_text(len(key) if type(key) in (str, bytes) else 0)
    if keys and type(keys[0]) not in COMPARABLE:
        raise CelError("list elements must be comparable")
    if len({type(key) for key in keys}) > 1:
        raise CelError("list elements must have the same type")
    in_order = cmp_to_key(compare)
    return [item for item, _ in sorted(zip(items, keys, strict=True), key=lambda pair: in_order(pair[1]))]


define_lists()
