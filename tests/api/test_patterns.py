"""Patterns from outside follow RE2: its syntax, linear time, bounded memory."""

from __future__ import annotations

import pytest

from stowplan.api.patterns import Pattern
from stowplan.errors import PatternError


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        pytest.param("a+", "caat", True, id="anywhere in the text"),
        pytest.param("^a+$", "caat", False, id="anchored"),
        pytest.param("^a$", "a\n", False, id="the dollar sign is the end of the text, not of a line"),
        pytest.param(r"^\pL+$", "añb", True, id="Unicode classes"),
        pytest.param(r"^\w$", "ñ", False, id="a word character is ASCII"),
        pytest.param("^.$", "😀", True, id="a character outside the basic plane is one character"),
        pytest.param(r"\Qa.b\E", "a.b", True, id="quoted text"),
        pytest.param("", "", True, id="empty"),
    ],
)
def test_patterns_mean_what_re2_says(pattern, text, found):
    assert Pattern.of(pattern).matches(text) is found


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a+", "baacaaa", ["aa", "aaa"]),
        ("a*", "baaac", ["", "aaa", ""]),
        ("", "añ", ["", "", ""]),
        ("ñ|x", "ñxñ", ["ñ", "x", "ñ"]),
        ("^a", "aaa", ["a"]),
        ("(a)(b)", "abab", ["ab", "ab"]),
        ("z", "abc", []),
        (r"\b", "ab cd", ["", "", "", ""]),
    ],
)
def test_an_empty_match_beside_another_does_not_count(pattern, text, found):
    assert Pattern.of(pattern).find_all(text) == found
    assert Pattern.of(pattern).find_all(text, 1) == found[:1]
    assert Pattern.of(pattern).find(text) == (found[0] if found else None)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a**",
        r"\1",
        "(?=a)",
        r"\Z",
        "[z-a]",
        "a{1001}",
        "((a{100}){100}){100}",
        r"\C",
        r"a\C",
        r"[\C]",
        "\ud800",
    ],
)
def test_what_is_no_pattern_says_so(pattern):
    with pytest.raises(PatternError, match="error parsing regexp: "):
        Pattern.of(pattern)
    with pytest.raises(PatternError, match="error parsing regexp: "):  # a rejection is kept, too
        Pattern.of(pattern)


def test_an_escaped_backslash_before_a_c_is_no_byte():
    assert Pattern.of(r"\\C").matches(r"\C")
    assert Pattern.of(r"\Q\C\E").matches(r"\C")


def test_a_text_that_is_not_unicode_matches_nothing():
    assert not Pattern.of("").matches("\ud800")
    assert Pattern.of("").find_all("\ud800") == []
