"""Quantities in canonical form: the largest suffix that leaves a whole number."""

from __future__ import annotations

import re
from functools import lru_cache

_FORM = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, None: 0, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BY_EXPONENT = {exponent: suffix or "" for suffix, exponent in _DECIMAL.items()}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
MAX_DIGITS, MAX_EXPONENT = 1000, 100_000
"""kube-apiserver has no limit, and one quantity can keep it busy for minutes."""
_WORDS = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


class AmountError(ValueError):
    """The message is kube-apiserver's."""


def canonical(value: object) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise AmountError(_WORDS)
    return _canonical(value)


@lru_cache(maxsize=65536, typed=True)
def _canonical(value: str | float) -> str:
    text = value if isinstance(value, str) else _number_text(value)
    match = _FORM.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if match is None or not (match[2] or match[3]):
        raise AmountError(_WORDS)
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4]
    digits = int((whole + fraction) or "0")
    if suffix in _BINARY:
        written = _binary(digits << (10 * _BINARY.index(suffix)), len(fraction))
    else:
        is_power = bool(suffix) and suffix[0] in "eE" and len(suffix) > 1
        exponent = int(suffix[1:]) if is_power else _DECIMAL[suffix]
        if abs(exponent) > MAX_EXPONENT:
            raise AmountError("unable to parse quantity's suffix")
        written = _decimal(digits, exponent - len(fraction), is_power)
    return "0" if written in ("", "0") else ("-" if sign == "-" else "") + written


def _number_text(value: float) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python writes
        return ""


def _binary(digits: int, places: int) -> str:
    power = 10**places
    if digits % power:  # finer than a byte: written as a decimal
        return _decimal(digits, -places, False)
    amount, step = digits // power, 0
    if amount < 1024:
        return _decimal(amount, 0, False)
    while step < len(_BINARY) - 1 and amount % 1024 == 0:
        amount, step = amount // 1024, step + 1
    return f"{amount}{_BINARY[step]}"


def _decimal(digits: int, exponent: int, is_power: bool) -> str:
    if not digits:
        return "0"
    if exponent < -9:  # what is finer than a nano-unit is rounded up
        finer = min(-9 - exponent, MAX_DIGITS)  # beyond it nothing is left of any number
        digits, exponent = -(-digits // 10**finer), -9
    while digits % 10 == 0:
        digits, exponent = digits // 10, exponent + 1
    shift = exponent % 3
    digits, exponent = digits * 10**shift, exponent - shift
    if is_power:
        return f"{digits}e{exponent}" if exponent else str(digits)
    if exponent > 18:
        digits, exponent = digits * 10 ** (exponent - 18), 18
    return f"{digits}{_BY_EXPONENT[exponent]}"
