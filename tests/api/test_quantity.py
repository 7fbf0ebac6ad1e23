"""Quantities: every way to write one, exactly, and what is refused."""

from __future__ import annotations

import math
import re
import time
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stowplan.api.quantity import (
    MAX_DIGITS,
    MAX_INT64,
    NANO,
    Quantity,
    decode_hook,
    encode_hook,
    milli_units,
    parse,
    units,
)
from stowplan.errors import QuantityError


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("0", 0),
        ("1", NANO),
        (1, NANO),
        (0.5, NANO // 2),
        ("1n", 1),
        ("1u", 10**3),
        ("1m", 10**6),
        ("1k", NANO * 10**3),
        ("1M", NANO * 10**6),
        ("1G", NANO * 10**9),
        ("1T", NANO * 10**12),
        ("1P", NANO * 10**15),
        ("1E", NANO * 10**18),
        ("1Ki", NANO * 2**10),
        ("1Mi", NANO * 2**20),
        ("1Gi", NANO * 2**30),
        ("1Ti", NANO * 2**40),
        ("1Pi", NANO * 2**50),
        ("1Ei", NANO * 2**60),
        ("1e3", NANO * 1000),
        ("1E3", NANO * 1000),
        ("1e+3", NANO * 1000),
        ("5e-1", NANO // 2),
        ("12E-3", NANO * 12 // 1000),
        ("1.5Gi", NANO * 3 * 2**29),
        (".5", NANO // 2),
        ("1.", NANO),
        ("+2", NANO * 2),
        ("-1.5", -NANO * 3 // 2),
        ("007", NANO * 7),
    ],
)
def test_parse(text, nanos):
    assert parse(text) == nanos


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        pytest.param("0.1n", 1, id="less than a nano-unit"),
        pytest.param("1.0000000001", NANO + 1, id="past nine digits"),
        pytest.param("-0.1n", -1, id="away from zero"),
        pytest.param("1e-20", 1, id="by exponent"),
        pytest.param("0.0000000001Ki", 103, id="binary"),
        pytest.param("8Ei", MAX_INT64 * NANO, id="binary, past 64 bits"),
        pytest.param("-9Ei", -MAX_INT64 * NANO, id="the same below zero"),
    ],
)
def test_parse_rounds_up_and_caps(text, nanos):
    assert parse(text) == nanos


@pytest.mark.parametrize(
    "text",
    [
        "1.5.3", "", ".", "-", "+", "m", "Ki", "1ki", "1K", "1mi", "1 Gi", " 1", "1 ", "1e", "1ee3", "1e1.5",
        "0x10", "1,5", "1Zi", "--1", "１", "٣Gi", "NaN", "inf", True,
    ],
)  # fmt: skip
def test_what_is_no_quantity(text):
    with pytest.raises(QuantityError, match="is not a quantity"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        pytest.param("1e5000", 10**MAX_DIGITS, id="exponent out of range"),
        pytest.param("-1e5000", -(10**MAX_DIGITS), id="negative, exponent out of range"),
        pytest.param("1e999999999", 10**MAX_DIGITS, id="exponent nobody must expand"),
        pytest.param("1e-5000", 1, id="tiny amounts round up"),
        pytest.param("-1e-999999999", -1, id="tiny amounts round away from zero"),
        pytest.param("0e999999999", 0, id="zero whatever the exponent"),
        pytest.param("9" * 20_000, 10**MAX_DIGITS, id="more digits than int() reads"),
        pytest.param("0." + "0" * 20_000 + "1", 1, id="more decimals than int() reads"),
        pytest.param("0" * 20_000 + "7", 7 * NANO, id="leading zeros"),
        pytest.param("3." + "0" * 20_000, 3 * NANO, id="trailing zeros"),
        pytest.param("1" + "0" * 20_000 + "e-20000", NANO, id="digits and exponent cancel out"),
        pytest.param("0." + "0" * 19_999 + "5e20000", 5 * NANO, id="decimals and exponent cancel out"),
        pytest.param("1.5" + "0" * 20_000 + "Ki", 1536 * NANO, id="binary with many decimals"),
        pytest.param("9" * 20_000 + "Ki", MAX_INT64 * NANO, id="binary with many digits"),
        pytest.param("0." + "0" * 20_000 + "1Ki", 1, id="tiny binary amounts round up"),
        pytest.param("5e4294967299", 5000 * NANO, id="exponents wrap at 32 bits as in Kubernetes"),
        pytest.param("5e+" + "0" * 3000 + "3", 5000 * NANO, id="exponent with leading zeros"),
        pytest.param("5e-4294967299", NANO // 200, id="negative ones too"),
    ],
)
def test_quantities_of_any_size_are_read_in_no_time(text, nanos):
    began = time.process_time()
    assert parse.__wrapped__(text) == nanos
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize("text", ["1e9223372036854775808", "1e-9223372036854775809", "1e" + "9" * 100_000])
def test_an_exponent_past_64_bits_is_no_quantity(text):
    with pytest.raises(QuantityError, match="is not a quantity") as found:
        parse(text)
    assert len(str(found.value)) < 300


@given(
    st.from_regex(
        r"[+-]?[0-9]{0,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,4}|[KMG]i|[numkMGTPE])?", fullmatch=True
    )
)
def test_parse_agrees_with_exact_arithmetic(text):
    number = re.match(r"[+-]?[0-9.]*", text)[0]
    suffix = text[len(number) :]
    assume(any(digit.isdigit() for digit in number))
    if suffix[:1] in ("e", "E") and suffix != "E":
        factor = Fraction(10) ** int(suffix[1:])
    elif suffix.endswith("i"):
        factor = Fraction(2) ** {"K": 10, "M": 20, "G": 30}[suffix[0]]
    else:
        factor = (
            Fraction(10)
            ** dict(zip(["", *"numkMGTPE"], [0, -9, -6, -3, 3, 6, 9, 12, 15, 18], strict=True))[suffix]
        )
    exact = abs(Fraction(number if not number.endswith(".") else number + "0")) * factor * NANO
    limit = MAX_INT64 * NANO if suffix.endswith("i") else 10**MAX_DIGITS
    expected = min(math.ceil(exact), limit)
    assert parse(text) == (-expected if number.startswith("-") else expected)


def test_the_largest_amounts_can_be_summed_written_and_read_back():
    total = parse("1e5000") + parse("1e5000")
    assert milli_units(total) == units(total) == MAX_INT64
    assert parse(encode_hook(parse("1e5000"))) == parse("1e5000")


def test_long_texts_do_not_stay_in_memory():
    before = parse.cache_info().currsize
    for number in range(50):
        decode_hook(Quantity, "1" * 5000 + str(number))
    assert parse.cache_info().currsize == before


def test_the_error_says_what_would_be_right():
    with pytest.raises(QuantityError, match=r"'1\.5\.3' is not a quantity: .* such as 500m, 2 or 1.5Gi"):
        parse("1.5.3")


@pytest.mark.parametrize(
    ("text", "whole", "thousandths"),
    [
        ("0.1", 1, 100),
        ("1.0001", 2, 1001),
        ("-1.5", -2, -1500),
        ("-0.0001", -1, -1),
        ("1n", 1, 1),
        ("2", 2, 2000),
        ("0", 0, 0),
        pytest.param("10E", MAX_INT64, MAX_INT64, id="past 64 bits it stops"),
    ],
)
def test_units_round_away_from_zero(text, whole, thousandths):
    assert (units(parse(text)), milli_units(parse(text))) == (whole, thousandths)


@given(st.integers(-(2**70), 2**70))
def test_a_count_of_nano_units_reads_as_itself(nanos):
    assert parse(f"{nanos}n") == nanos


def test_sums_lose_nothing():
    assert sum(parse("0.1") for _ in range(10)) == parse("1")
    assert parse("1Ei") + parse("1n") - parse("1Ei") == 1
