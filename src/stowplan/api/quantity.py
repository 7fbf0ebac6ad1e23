"""Kubernetes quantities, exact: a count of nano-units in a Python integer, so that sums lose nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from stowplan.api.faults import describe_faults
from stowplan.errors import QuantityError

NANO = 1_000_000_000
MAX_INT64 = 2**63 - 1
MAX_DIGITS = 1000
MAX_AMOUNT: int = 10**MAX_DIGITS
"""No amount is larger, in nano-units: far past the 64 bits that amounts are rounded to, and quick to sum."""
MAX_CACHED, MAX_SHOWN = 64, 64

_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_DECIMAL = {None: 0, "": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


class Quantity(int):
    """An amount as `500m`, `2` or `1.5Gi` in an object; for the fields of a custom resource.

    As a number it counts nano-units (billionths), and so do sums and differences; see `milli` and `units`.
    """

    is_binary = False
    """Whether it was written with a binary suffix, such as `12Gi`, and is to be written so again."""

    @property
    def milli(self) -> int:
        """Thousandths, rounded up: what `requests["cpu"]` counts."""
        return milli_units(self)

    @property
    def units(self) -> int:
        """Whole units, rounded up: bytes, devices, and all else that `requests` counts."""
        return units(self)

    @classmethod
    def binary(cls, nanos: int) -> Quantity:
        found = cls(nanos)
        found.is_binary = True
        return found


@lru_cache(maxsize=65536, typed=True)
def parse(text: str | int | float) -> Quantity:
    """Parse a quantity; fractions of a nano-unit are rounded away from zero.

    The cost depends on the length of the text alone: no exponent is expanded into an integer of its size.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return Quantity(max(-MAX_AMOUNT, min(text * NANO, MAX_AMOUNT)))
    match = _FORM.fullmatch(str(text))
    if match is None or isinstance(text, bool) or not (match[2] or match[3]):
        raise QuantityError(
            f"{_shorten(text)} is not a quantity: "
            "write a number with an optional suffix, such as 500m, 2 or 1.5Gi"
        )
    sign, whole, fraction, suffix = match[1], match[2].lstrip("0"), match[3] or "", match[4]
    if suffix in _BINARY:
        amount = _binary(whole, fraction.rstrip("0"), _BINARY[suffix])
        return Quantity.binary(-amount if sign == "-" else amount)
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else _exponent(suffix[1:], text)
    amount = _scale(whole + fraction, _as_int32(exponent - len(fraction)) + 9)
    return Quantity(-amount if sign == "-" else amount)


def faults_of(field: str, given: Mapping[str, Quantity]) -> Iterator[str]:
    """What is wrong with the amounts of a field, and what would be right."""
    return describe_faults(
        [each for each in given.items() if each[1] < 0],
        lambda each: f"{field}.{each[0]} is {canonical(each[1])}, which counts as 0; set it to 0 or more",
    )


def canonical(amount: int) -> str:
    """The shortest text with a suffix and without a fraction, as the API writes quantities."""
    is_binary = isinstance(amount, Quantity) and amount.is_binary
    if is_binary and abs(amount) >= 1024 * NANO and amount % NANO == 0:
        return _with_suffix(amount // NANO, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    return _with_suffix(amount, 1000, ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"))


def _with_suffix(amount: int, base: int, suffixes: Sequence[str]) -> str:
    if not amount:
        return "0"
    place = 0
    while place + 1 < len(suffixes) and amount % base == 0:
        amount, place = amount // base, place + 1
    return f"{amount}{suffixes[place]}"


def _exponent(digits: str, text: object) -> int:
    if len(digits.lstrip("+-0")) > 19 or not -(2**63) <= int(digits) < 2**63:
        raise QuantityError(f"{_shorten(text)} is not a quantity: its exponent is out of range")
    return _as_int32(int(digits))


def _as_int32(number: int) -> int:
    """parity: Kubernetes keeps exponents in 32 bits and lets larger ones wrap around."""
    return (number + 2**31) % 2**32 - 2**31


def _scale(digits: str, exponent: int) -> int:
    """digits · 10^exponent, rounded up, and no more than MAX_AMOUNT."""
    digits = digits.lstrip("0")
    if not digits:
        return 0
    if len(digits) + exponent > MAX_DIGITS:
        return MAX_AMOUNT
    if exponent >= 0:
        power: int = 10**exponent
        return int(digits) * power
    return int(digits[:exponent] or "0") + bool(digits[exponent:].strip("0"))


def _binary(whole: str, fraction: str, bits: int) -> int:
    """whole.fraction · 2^bits in nano-units, rounded up, and no more than 64 bits hold."""
    if len(whole) > 19:
        return MAX_INT64 * NANO
    if len(fraction) > MAX_DIGITS:  # that the rest is not zero is all that can matter of it
        fraction = fraction[:MAX_DIGITS] + "1"
    power: int = 10 ** len(fraction)
    return min(-(-(int((whole + fraction) or "0") * NANO << bits) // power), MAX_INT64 * NANO)


def _shorten(text: object) -> str:
    shown = repr(text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}..."


def units(nanos: int) -> int:
    """Whole units, rounded away from zero: what a byte, a device or a pod counts as."""
    return _clamp(-(-nanos // NANO) if nanos >= 0 else nanos // NANO)


def milli_units(nanos: int) -> int:
    """Thousandths, rounded away from zero: what cpu counts as."""
    return _clamp(-(-nanos // 1_000_000) if nanos >= 0 else nanos // 1_000_000)


def approximate(nanos: int) -> float:
    """Units as a float, infinite where they exceed one."""
    try:
        return nanos / NANO
    except OverflowError:
        return math.inf if nanos > 0 else -math.inf


def _clamp(number: int) -> int:
    """Saturate at 64 bits, where kube-scheduler wraps around."""
    return max(-MAX_INT64, min(number, MAX_INT64))


def decode_hook(kind: type, value: object) -> object:
    """For msgspec decoders: turns the text of a quantity field into a Quantity."""
    if kind is Quantity:
        if isinstance(value, str) and len(value) > MAX_CACHED:  # texts of any length would fill the memory
            return parse.__wrapped__(value)
        if isinstance(value, (str, int, float)):
            return parse(value)
        raise QuantityError(f"{_shorten(value)} is not a quantity: expected text or a number")
    raise NotImplementedError(f"no decoder for {kind}")


def encode_hook(value: object) -> object:
    """For msgspec encoders: the text of a Quantity."""
    if isinstance(value, Quantity):
        return f"{value}n" if value % NANO else str(value // NANO)
    raise NotImplementedError(f"no encoder for {type(value)}")
