"""Log lines in klog's shape or as JSON: a constant sentence, then fields.

`log(0, "Successfully bound pod to node", pod=pod, node=name)`: the number is the verbosity from which on the
line is written (`-v`). Objects that have a namespace and a name are shown as such, errors by their text. Of
values with more than MAX_VALUE characters only the beginning is written, with a marker that says so.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TextIO

import msgspec

ROOT = "stowplan"
MAX_VALUE = 16_384
"""Longer values are cut, so that no one can fill the logs with a single line."""
Format = Literal["text", "json"]

_logger = logging.getLogger(ROOT)
_SEVERITIES = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


class Whole(str):
    """A value that is written whole, however long it is."""

    __slots__ = ()


class Line(NamedTuple):
    level: int
    seconds: float
    place: str
    """`file.py:LINE` of whoever writes it."""
    message: str
    fields: Mapping[str, object]
    verbosity: int = 0


def log(verbosity: int, message: str, /, **fields: object) -> None:
    """A line for those who run with `-v` at least this high; 0 is for everyone."""
    level = _level(verbosity)
    if _logger.isEnabledFor(level):
        _write(level, message, fields, verbosity)


def warn(message: str, /, **fields: object) -> None:
    _write(logging.WARNING, message, fields)


def error(message: str, err: BaseException | str | None, /, **fields: object) -> None:
    """A line about something that failed, whatever the verbosity."""
    _write(logging.ERROR, message, fields if err is None else {"err": err, **fields})


def _write(level: int, message: str, fields: Mapping[str, object], verbosity: int = 0) -> None:
    handlers = logging.root.handlers
    if len(handlers) == 1 and isinstance(handlers[0], LineHandler) and not _logger.handlers:
        frame = sys._getframe(2)
        place = f"{_file_name(frame.f_code.co_filename)}:{frame.f_lineno}"
        handlers[0].write(Line(level, time.time(), place, message, fields, verbosity))
    else:
        _logger.log(level, message, extra={"fields": fields, "verbosity": verbosity}, stacklevel=3)


def is_verbose(verbosity: int) -> bool:
    """Whether such lines are written; to ask before collecting fields that cost something."""
    return _logger.isEnabledFor(_level(verbosity))


def set_verbosity(verbosity: int) -> None:
    _logger.setLevel(_level(verbosity))


def configure(*, verbosity: int = 0, style: Format = "text", stream: TextIO | None = None) -> None:
    """Send our lines, and warnings of the libraries we use, to `stream` (standard error)."""
    handler = LineHandler(stream or sys.stderr, klog_line if style == "text" else json_line)
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.WARNING)
    set_verbosity(verbosity)


def _level(verbosity: int) -> int:
    # Above 19 all is written; the level 0 would mean "as the root logger has it".
    return max(logging.INFO - verbosity, 1)


class LineHandler(logging.StreamHandler[TextIO]):
    """Our lines come to it straight: logging's records take three times as long as the line itself."""

    def __init__(self, stream: TextIO, shown: Callable[[Line], str]) -> None:
        super().__init__(stream)
        self._shown = shown

    def write(self, line: Line) -> None:
        with suppress(OSError, ValueError):  # nobody reads them any more; that must not stop the work
            self.stream.write(f"{self._shown(line)}\n")
            self.stream.flush()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is logging's)
        """Print no traceback for each line when the stream is closed."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        place, verbosity = f"{record.filename}:{record.lineno}", getattr(record, "verbosity", 0)
        message, fields = record.getMessage(), _fields(record)
        return self._shown(Line(record.levelno, record.created, place, message, fields, verbosity))


def klog_line(line: Line) -> str:
    """`I1115 02:27:21.123456   PID file.py:LINE] "Message" key="value" pod="ns/name"`"""
    seconds = int(line.seconds)
    micros = int((line.seconds - seconds) * 1_000_000)
    severity = _SEVERITIES.get(line.level, "I")
    header = f"{severity}{_moment(seconds)}.{micros:06} {os.getpid():7} {line.place}]"
    shown = "".join([f" {key}={_text(value)}" for key, value in line.fields.items()])
    return f"{header} {_quoted(_cut(line.message))}{shown}"


def json_line(line: Line) -> str:
    """`{"ts":1731637641123.456,"caller":"file.py:LINE","msg":"Message","v":0,"key":"value"}`

    The time is in milliseconds; errors have no `v`.
    """
    shown: dict[str, object] = {
        "ts": round(line.seconds * 1000, 4),
        "caller": line.place,
        "msg": _cut(line.message),
    }
    if line.level < logging.ERROR:
        shown["v"] = line.verbosity
    shown |= {key: _bounded(_plain(value)) for key, value in line.fields.items() if key not in shown}
    try:
        return msgspec.json.encode(shown, enc_hook=_str).decode()
    except UnicodeError:  # half of a surrogate pair
        return json.dumps(shown, default=_str)


@lru_cache(maxsize=256)
def _file_name(path: str) -> str:
    return os.path.basename(path)


@lru_cache(maxsize=1)
def _moment(seconds: int) -> str:
    return time.strftime("%m%d %H:%M:%S", time.localtime(seconds))


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    if record.exc_info and record.exc_info[1]:  # a library's: it did not foresee this
        failure = record.exc_info[1]
        return {"err": failure, "stacktrace": "".join(traceback.format_exception(failure)), **fields}
    return fields


def _text(value: Any) -> str:
    """A field's value in a line of text: words in quotes, numbers bare, the rest as JSON."""
    if isinstance(value, str) and "\n" not in value:
        return _quoted(_cut(value))
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    if _is_object(value):
        return _quoted(f"{value.namespace}/{value.name}" if value.namespace else value.name)
    plain = _bounded(_plain(value))
    if not isinstance(plain, str):
        return msgspec.json.encode(plain, enc_hook=_str).decode()
    if "\n" in plain:
        indented = "".join(f"\t{_escaped(line)}\n" for line in plain.splitlines())
        return f"<\n{indented} >"
    return _quoted(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        return _str(value) or type(value).__name__
    if _is_object(value):
        return {"name": value.name} | ({"namespace": value.namespace} if value.namespace else {})
    if isinstance(value, frozenset | set):
        return sorted(value)
    return value


def _bounded(value: Any) -> Any:
    """The value itself, or the beginning of its text if that is too long."""
    if isinstance(value, str):
        return _cut(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    try:
        text = msgspec.json.encode(value, enc_hook=_str).decode()
    except (UnicodeError, RecursionError, TypeError, OverflowError):
        return _cut(_str(value))
    return value if len(text) <= MAX_VALUE else _cut(text)


def _cut(text: str) -> str:
    if len(text) <= MAX_VALUE or isinstance(text, Whole):
        return text
    return f"{text[:MAX_VALUE]} ... ({len(text) - MAX_VALUE} more characters)"


def _str(value: object) -> str:
    """Whoever made the value may have made it so that it has no text: that must not stop the one who logs."""
    try:
        return str(value)
    except BaseException as error:
        return f"<{type(value).__name__} without a text: {type(error).__name__}>"


def _is_object(value: object) -> bool:
    return hasattr(value, "namespace") and hasattr(value, "name")


def _quoted(text: str) -> str:
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return json.dumps(text)


def _escaped(line: str) -> str:
    """A line of several: as it is, but for what would confuse a terminal."""
    return line if line.replace("\t", "").isprintable() else json.dumps(line)[1:-1]
