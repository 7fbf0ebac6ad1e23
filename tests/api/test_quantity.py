"""Quantities: every way to write one, exactly, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.api.quantity import MAX_INT64, NANO, milli_units, parse, units
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
        "0x10", "1,5", "1Zi", "--1", "1e99999", "１", "٣Gi", "NaN", "inf", True,
    ],
)  # fmt: skip
def test_what_is_no_quantity(text):
    with pytest.raises(QuantityError, match="is not a quantity"):
        parse(text)


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
