"""Log lines in klog's shape or as JSON: a constant sentence, then fields.

`log(0, "Successfully bound pod to node", pod=pod, node=name)`: the number is the verbosity from which on the
line is written (`-v`). Objects that have a namespace and a name are shown as such, errors by their text.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, TextIO

import msgspec

ROOT = "stowplan"
Format = Literal["text", "json"]

_logger = logging.getLogger(ROOT)
_SEVERITIES = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


def log(verbosity: int, message: str, /, **fields: object) -> None:
    """A line for those who run with `-v` at least this high; 0 is for everyone."""
    level = _level(verbosity)
    if _logger.isEnabledFor(level):
        _logger.log(level, message, extra={"fields": fields, "verbosity": verbosity}, stacklevel=2)


def warn(message: str, /, **fields: object) -> None:
    _logger.warning(message, extra={"fields": fields}, stacklevel=2)


def error(message: str, err: BaseException | str | None, /, **fields: object) -> None:
    """A line about something that failed, whatever the verbosity."""
    shown = fields if err is None else {"err": err, **fields}
    _logger.error(message, extra={"fields": shown}, stacklevel=2)


def is_verbose(verbosity: int) -> bool:
    """Whether such lines are written; to ask before collecting fields that cost something."""
    return _logger.isEnabledFor(_level(verbosity))


def set_verbosity(verbosity: int) -> None:
    _logger.setLevel(_level(verbosity))


def configure(*, verbosity: int = 0, style: Format = "text", stream: TextIO | None = None) -> None:
    """Send our lines, and warnings of the libraries we use, to `stream` (standard error)."""
    # Nobody shows these; looking them up takes a tenth of the time of a line.
    logging.logThreads = logging.logMultiprocessing = logging.logProcesses = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(KlogFormatter() if style == "text" else JsonFormatter())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(logging.WARNING)
    set_verbosity(verbosity)


def _level(verbosity: int) -> int:
    # Above 19 all is written; the level 0 would mean "as the root logger has it".
    return max(logging.INFO - verbosity, 1)


class KlogFormatter(logging.Formatter):
    """`I1115 02:27:21.123456   PID file.py:LINE] "Message" key="value" pod="ns/name"`"""

    def format(self, record: logging.LogRecord) -> str:
        severity = _SEVERITIES.get(record.levelno, "I")
        seconds = int(record.created)
        micros = int((record.created - seconds) * 1_000_000)
        header = (
            f"{severity}{_moment(seconds)}.{micros:06} {os.getpid():7} {record.filename}:{record.lineno}]"
        )
        shown = "".join(f" {key}={_text(value)}" for key, value in _fields(record).items())
        return f"{header} {_quoted(record.getMessage())}{shown}"


class JsonFormatter(logging.Formatter):
    """`{"ts":1731637641123.456,"caller":"file.py:LINE","msg":"Message","v":0,"key":"value"}`

    The time is in milliseconds; errors have no `v`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created * 1000, 4),
            "caller": f"{record.filename}:{record.lineno}",
            "msg": record.getMessage(),
        }
        if record.levelno < logging.ERROR:
            line["v"] = getattr(record, "verbosity", 0)
        line |= {key: _plain(value) for key, value in _fields(record).items() if key not in line}
        return msgspec.json.encode(line, enc_hook=str).decode()


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
        return _quoted(value)
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value}"
    if _is_object(value):
        return _quoted(f"{value.namespace}/{value.name}" if value.namespace else value.name)
    plain = _plain(value)
    if not isinstance(plain, str):
        return msgspec.json.encode(plain, enc_hook=str).decode()
    if "\n" in plain:
        indented = "".join(f"\t{_escaped(line)}\n" for line in plain.splitlines())
        return f"<\n{indented} >"
    return _quoted(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        return str(value) or type(value).__name__
    if _is_object(value):
        return {"name": value.name} | ({"namespace": value.namespace} if value.namespace else {})
    if isinstance(value, frozenset | set):
        return sorted(value)
    return value


def _is_object(value: object) -> bool:
    return hasattr(value, "namespace") and hasattr(value, "name")


def _quoted(text: str) -> str:
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return json.dumps(text)


def _escaped(line: str) -> str:
    """A line of several: as it is, but for what would confuse a terminal."""
    return line if line.replace("\t", "").isprintable() else json.dumps(line)[1:-1]
