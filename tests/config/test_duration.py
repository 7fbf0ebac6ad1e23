"""Go durations in and out."""

import pytest

from stowplan.config import Duration


@pytest.mark.parametrize(
    ("text", "seconds", "written"),
    [
        pytest.param("10m0s", 600, "10m0s", id="minutes"),
        pytest.param("90s", 90, "1m30s", id="more than a minute of seconds"),
        pytest.param("1.5h", 5400, "1h30m0s", id="a fraction of an hour"),
        pytest.param("1h0m0.5s", 3600.5, "1h0m0.5s", id="a fraction of a second"),
        pytest.param("100ms", 0.1, "100ms", id="milliseconds"),
        pytest.param("1us", 0.000001, "1µs", id="microseconds"),
        pytest.param("7ns", 7e-9, "7ns", id="nanoseconds"),
        pytest.param("-2s", -2, "-2s", id="negative"),
        pytest.param("0", 0, "0s", id="zero needs no unit"),
    ],
)
def test_duration(text, seconds, written):
    assert Duration.parse(text) == pytest.approx(seconds)
    assert str(Duration.parse(text)) == written


@pytest.mark.parametrize("text", ["", "10", "1x", "s", "1 s", "1s2", 10, None])
def test_what_is_no_duration(text):
    with pytest.raises(ValueError, match="expected a duration"):
        Duration.parse(text)
