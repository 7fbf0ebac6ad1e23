"""Log lines in klog's shape or as JSON: a constant sentence, then fields.

`log(0, "Successfully bound pod to node", pod=pod, node=name)`: the number is the verbosity from which on the
line is written (`-v`). Objects that have a namespace and a name are shown as such, errors by their text. Of
values with more than MAX_VALUE characters only the beginning is written, with a marker that says so.

Plugins use Python's own `logging`. Once `add_plugin` knows of them, their lines go to the same place with the
name of the plugin, by level: INFO and above always, DEBUG from `-v=4` on.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any, Literal, NamedTuple, TextIO

import msgspec

ROOT = "stowplan"
PLUGINS = f"{ROOT}.plugin"
"""The loggers of plugins' handles are below this one, each with the name of its plugin."""
DEBUG_VERBOSITY = 4
"""The verbosity from which on DEBUG lines of plugins are written, as klog users expect."""
LIBRARIES = ("aiohttp", "asyncio", "urllib3")
"""Libraries that would write INFO lines for every request once the root logger lets them through."""
TRACEBACK_SECONDS = 60.0
"""A traceback is written once in this time; after that, its repetitions are counted."""
MAX_PLACES = 1000
MAX_VALUE = 16_384
"""Longer values are cut, so that no one can fill the logs with a single line."""
Format = Literal["text", "json"]

_logger, _root = logging.getLogger(ROOT), logging.getLogger()
_traced: dict[str, tuple[float, int]] = {}
"""When a traceback was last written, and how often it came up since, by its frames and exception."""
_plugins: dict[str, dict[str, str]] = {}
"""The names of plugins by class, in the files that define them."""
_SEVERITIES = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


class Whole(str):
    """A value that is written whole, however long it is."""

    __slots__ = ()


class Line(NamedTuple):
    level: int
    seconds: float
    place: str
    """`file.py:LINE` of the code that logs it."""
    message: str
    fields: Mapping[str, object]
    verbosity: int = 0


def log(verbosity: int, message: str, /, **fields: object) -> None:
    """Write a line if `-v` is at least this high; 0 is always written."""
    if is_verbose(verbosity):
        _write(_level(verbosity), message, fields, verbosity)


def warn(message: str, /, **fields: object) -> None:
    _write(logging.WARNING, message, fields)


def error(message: str, err: BaseException | str | None, /, **fields: object) -> None:
    """Write a line about something that failed, whatever the verbosity.

    A `stacktrace` is written once a minute for each distinct place that raised; `repeated` counts the others.
    """
    stack = fields.get("stacktrace")
    if isinstance(stack, str) and (repeated := _count_repeated(stack)):
        fields = {name: value for name, value in fields.items() if name != "stacktrace"}
        fields["repeated"] = repeated
    _write(logging.ERROR, message, fields if err is None else {"err": err, **fields})


def _count_repeated(stack: str) -> int:
    """How often the same place raised this exception since its traceback was written; 0 to write it."""
    frames, _, raised = stack.rstrip().rpartition("\n")
    place = f"{frames}\n{raised.partition(':')[0]}"  # its text may differ each time
    now = time.monotonic()
    written, repeated = _traced.get(place, (-math.inf, 0))
    if now - written < TRACEBACK_SECONDS:
        _traced[place] = written, repeated + 1
        return repeated + 1
    if len(_traced) >= MAX_PLACES:
        _traced.clear()
    _traced[place] = now, 0
    return 0


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
    # This is asked several times for each pod, so a lower level is seen without a call. Level 0 is inherited.
    if (_logger.level or _root.level) > logging.INFO - verbosity and verbosity < logging.INFO:
        return False
    return _logger.isEnabledFor(_level(verbosity))


def set_verbosity(verbosity: int) -> None:
    _logger.setLevel(_level(verbosity))
    if isinstance(next(iter(logging.root.handlers), None), LineHandler):
        level = logging.DEBUG if verbosity >= DEBUG_VERBOSITY else _level(verbosity)
        logging.getLogger(PLUGINS).setLevel(level)
        # A plugin may use any logger, the root logger too; the handler leaves out what is not of a plugin.
        logging.root.setLevel(level if _plugins else logging.WARNING)
        for library in LIBRARIES:
            logging.getLogger(library).setLevel(logging.WARNING)


@contextmanager
def only_warnings(*, errors: bool = True) -> Iterator[None]:
    """Leave out our own lines but warnings and errors, or these, too, whatever the verbosity."""
    before = _logger.level
    _logger.setLevel(logging.WARNING if errors else logging.CRITICAL)
    try:
        yield
    finally:
        _logger.setLevel(before)


def add_plugin(name: str, file: str, kind: str) -> None:
    """Write lines that the class `kind` of this file logs with Python's `logging`, and name the plugin."""
    is_first = not _plugins
    _plugins.setdefault(file, {})[kind] = name
    if is_first:
        set_verbosity(max(logging.INFO - _logger.level, 0) if _logger.level else 0)


def logger_of(plugin: str) -> logging.Logger:
    """The logger of a plugin's handle."""
    return logging.getLogger(f"{PLUGINS}.{plugin}")


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
    """Writes our lines directly: a LogRecord takes three times as long to make as the line itself."""

    def __init__(self, stream: TextIO, shown: Callable[[Line], str]) -> None:
        super().__init__(stream)
        self._shown = shown

    def write(self, line: Line) -> None:
        try:  # for `suppress` takes a tenth of the time that the line does
            self.stream.write(f"{self._shown(line)}\n")
            self.stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads them any more; that must not stop the work

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name is logging's)
        """Print no traceback for each line when the stream is closed."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handleError(record)

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what libraries log below WARNING: the root level is lower for plugins alone."""
        if record.levelno < logging.WARNING and not record.name.startswith(ROOT) and not _plugin_of(record):
            return False
        return bool(super().filter(record))

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
    return f"{header} {_quote(_truncate(line.message))}{shown}"


def json_line(line: Line) -> str:
    """`{"ts":1731637641123.456,"caller":"file.py:LINE","msg":"Message","v":0,"key":"value"}`

    The time is in milliseconds; errors have no `v`.
    """
    shown: dict[str, object] = {
        "ts": round(line.seconds * 1000, 4),
        "caller": line.place,
        "msg": _truncate(line.message),
    }
    if line.level < logging.ERROR:
        shown["v"] = line.verbosity
    shown |= {key: _limit_length(_plain(value)) for key, value in line.fields.items() if key not in shown}
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
    if plugin := _plugin_of(record):
        fields = {"plugin": plugin, **fields}
    if record.exc_info and record.exc_info[1]:  # a library's: it did not foresee this
        failure = record.exc_info[1]
        return {"err": failure, "stacktrace": _format_exception(failure), **fields}
    return fields


def _plugin_of(record: logging.LogRecord) -> str:
    """The plugin whose code wrote the line; empty if it was not a plugin's."""
    if record.name.startswith(f"{PLUGINS}."):
        return record.name.removeprefix(f"{PLUGINS}.")
    if not _plugins or record.name == ROOT:
        return ""
    names = _plugins.get(record.pathname, {})
    if len(names) == 1:
        return next(iter(names.values()))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:  # the plugin in whose method the line was written, perhaps by what it called
        kind = type(frame.f_locals.get("self")).__name__
        if (found := _plugins.get(frame.f_code.co_filename, {}).get(kind)) is not None:
            return found
        frame = frame.f_back
    return ""


def _text(value: Any) -> str:
    """A field's value in a line of text: words in quotes, numbers bare, the rest as JSON."""
    if isinstance(value, str) and "\n" not in value:
        return _quote(_truncate(value))
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value}"
    if (found := _place_of(value)) is not None:
        namespace, name = found
        return _quote(f"{namespace}/{name}" if namespace else name)
    plain = _limit_length(_plain(value))
    if not isinstance(plain, str):
        return msgspec.json.encode(plain, enc_hook=_str).decode()
    if "\n" in plain:
        indented = "".join(f"\t{_escape(line)}\n" for line in plain.splitlines())
        return f"<\n{indented} >"
    return _quote(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseException):
        return _str(value) or type(value).__name__
    if (found := _place_of(value)) is not None:
        namespace, name = found
        return {"name": name, "namespace": namespace} if namespace else {"name": name}
    if isinstance(value, frozenset | set):
        return sorted(value, key=_str)
    return value


def _limit_length(value: object) -> object:
    """The value itself, or the beginning of its text if that is too long."""
    if isinstance(value, str):
        return _truncate(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    try:
        text = msgspec.json.encode(value, enc_hook=_str).decode()
    except (UnicodeError, RecursionError, TypeError, OverflowError):
        return _truncate(_str(value))
    return value if len(text) <= MAX_VALUE else _truncate(text)


def _truncate(text: str) -> str:
    if len(text) <= MAX_VALUE or isinstance(text, Whole):
        return text
    return f"{text[:MAX_VALUE]} ... ({len(text) - MAX_VALUE} more characters)"


def _str(value: object) -> str:
    """The text of a value; one whose `__str__` raises must not break logging."""
    try:
        return str(value)
    except BaseException as error:
        return f"<{type(value).__name__} without a text: {type(error).__name__}>"


def _format_exception(failure: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(failure))
    except BaseException as error:  # such as one of the exception's own __str__
        return f"<traceback of {type(failure).__name__} cannot be formatted: {type(error).__name__}>"


def _place_of(value: Any) -> tuple[str, str] | None:
    """The namespace and the name of an object; None for anything else."""
    try:
        namespace, name = value.namespace, value.name
        return (namespace, name) if isinstance(name, str) and isinstance(namespace, str) else None
    except BaseException:  # not an AttributeError alone: exceptions of plugins may define anything
        return None


def _quote(text: str) -> str:
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return json.dumps(text)


def _escape(line: str) -> str:
    """A line of several: as it is, but for what would confuse a terminal."""
    return line if line.replace("\t", "").isprintable() else json.dumps(line)[1:-1]
