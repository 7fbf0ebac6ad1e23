"""Quantities as fractions."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

FORM = re.compile(r"([+-]?)([0-9]*\.?[0-9]*)(.*)")
TENS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
TWOS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
NANO = Fraction(1, 10**9)


@lru_cache(maxsize=4096, typed=True)
def amount(text: str | int | float) -> Fraction:
    """The exact value, what is finer than a nano-unit rounded away from zero."""
    sign, digits, suffix = FORM.fullmatch(str(text)).groups()
    number = Fraction(digits.rstrip(".") if digits != "." else "x")
    if suffix in TWOS:
        number = min(number * 2 ** TWOS[suffix], Fraction(2**63 - 1))
    else:
        number *= Fraction(10) ** (TENS[suffix] if suffix in TENS else int(suffix[1:]))
    number = math.ceil(number / NANO) * NANO
    return -number if sign == "-" else number


def whole(number: Fraction) -> int:
    """Rounded away from zero."""
    return math.ceil(number) if number >= 0 else math.floor(number)


def counted(resource: str, number: Fraction) -> int:
    """As nodes count it: cpu in thousandths, all else in units."""
    return whole(number * 1000) if resource == "cpu" else whole(number)
