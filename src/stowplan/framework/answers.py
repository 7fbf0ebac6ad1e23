"""What plugins answer and raise, checked where it enters.

The rule of each extension point stands here. A wrong answer raises a TypeError or ValueError that says what
was expected; the caller treats it as if the plugin itself had raised it. `plugin_error` turns whatever a
plugin raises into a PluginError, which names the plugin, the pod and the node.

Nothing here trusts what it looks at: the text of an exception may raise, hang or take gigabytes.
"""

from __future__ import annotations

import inspect
import linecache
import math
import os
import re
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import index
from traceback import walk_tb
from types import FrameType, GeneratorType, TracebackType
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from stowplan.api.pod import Pod
from stowplan.errors import PluginError, StowplanError
from stowplan.framework.events import Action, ClusterEvent, Hint
from stowplan.framework.plugin import FilterError, Mask, Nomination, Plugin, Reject
from stowplan.framework.scores import Scores
from stowplan.framework.status import SKIP, Code, Preemption, Status

MAX_TEXT: Final = 1000
"""Characters of a plugin's message that are kept: an event does not hold more."""
MAX_STACK: Final = 6000
MAX_FRAMES: Final = 20
MAX_CAUSES: Final = 5
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PLUGINS = tuple(os.path.join(_PACKAGE, room, "") for room in ("plugins", "sticky"))
_STANDARD_LIBRARY = os.path.dirname(inspect.__file__) + os.sep
_SITES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_DEF = re.compile(r"\s*(?:async\s+)?def\s")
Method = tuple[Plugin | type[Plugin], str]
"""A method of a plugin, by its name."""

_REJECTIONS = frozenset((Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING))
_USUAL = _REJECTIONS | {Code.SUCCESS, Code.ERROR}
CODES: Final = {
    "pre_enqueue": _USUAL,
    "pre_filter": _USUAL | {Code.SKIP},
    "filter": _USUAL,
    "add_pod": frozenset((Code.SUCCESS, Code.ERROR)),
    "remove_pod": frozenset((Code.SUCCESS, Code.ERROR)),
    "post_filter": _USUAL,
    "pre_score": _USUAL | {Code.SKIP},
    "reserve": _USUAL,
    "permit": _USUAL | {Code.WAIT},
    "pre_bind_pre_flight": frozenset((Code.SUCCESS, Code.SKIP, Code.ERROR)),
    "pre_bind": _USUAL,
    "bind": _USUAL | {Code.SKIP},
    "unreserve": frozenset((Code.SUCCESS,)),
    "post_bind": frozenset((Code.SUCCESS,)),
}
"""The codes that each method may answer with."""


# What a plugin raises


def plugin_error(
    doing: str,
    error: BaseException,
    pod: Pod | None = None,
    node_name: str = "",
    *,
    method: Method | None = None,
    with_stack: bool = True,
) -> PluginError:
    """The error with its text, the line that raised it, its traceback, pod and node."""
    raise_interrupt(error)
    text = f"{doing}: {describe(error)}{where_text(error, pod, node_name, method=method)}"
    return PluginError(text, stack_of(error, method) if with_stack else "")


def wrong_answer(
    text: str, method: Method, pod: Pod | None = None, node_name: str = "", *, doing: str = ""
) -> PluginError:
    """The error of an answer that is wrong although it was accepted at first."""
    place, stack = _definition_place(method), _definition_stack(method, text)
    return PluginError(f"{doing}{text}{_where_text(place, pod, node_name)}", stack)


def where_text(
    error: BaseException, pod: Pod | None = None, node_name: str = "", *, method: Method | None = None
) -> str:
    """Where it happened, such as ` (pod default/web, node a, at tier.py:12)`; empty if nothing is known."""
    return _where_text(place_of(error, method), pod, node_name)


def _where_text(place: str, pod: Pod | None, node_name: str) -> str:
    parts = [
        "" if pod is None else f"pod {pod.key}",
        f"node {node_name}" if node_name else "",
        f"at {place}" if place else "",
    ]
    text = ", ".join(part for part in parts if part)
    return f" ({text})" if text else ""


def raise_interrupt(error: BaseException) -> None:
    """Re-raise a user's Ctrl-C, which is not an error of the plugin that it interrupted.

    The running scheduler handles SIGINT itself, so there a KeyboardInterrupt comes from the plugin.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error


def describe(error: BaseException) -> str:
    """`ValueError: its text`, cut to a readable length; never raises."""
    if isinstance(error, RaisedError):
        return error.text
    text = text_of(error)
    return f"{_type_name(error)}: {text}" if text else _type_name(error)


def text_of(error: BaseException) -> str:
    """What `str` gives, cut to a readable length; never raises."""
    try:
        return plain_text(str(error))
    except BaseException as unprintable:
        return f"its text cannot be read: str() raised {_type_name(unprintable)}"


def place_of(error: BaseException, method: Method | None = None) -> str:
    """`file.py:LINE` of the plugin's code that raised, or called what raised; empty if there is none.

    The plugin has no part in the traceback of a wrong answer: its line is that of the `method` that gave it.
    """
    if isinstance(error, RaisedError):
        return error.place
    try:
        frames = list(walk_tb(error.__traceback__))
        start = _first_of_plugin(frames)
        if start is None:
            has_place = isinstance(error, PluginError) and error.stack  # it was found before
            return _definition_place(method) if method is not None and not has_place else ""
        first = frames[start][0]
        if isinstance(error, StowplanError) and first.f_code.co_filename.startswith(_PACKAGE):
            return ""  # one of our own plugins says what it means: the line is of no use to anybody
        # A library that the plugin calls may raise: its author looks for the line of his own that called it.
        frame, line = next(each for each in reversed(frames[start:]) if _are_siblings(each[0], first))
        return f"{short_path(frame.f_code.co_filename)}:{line}"
    except Exception:
        return ""


def _first_of_plugin(frames: Sequence[tuple[FrameType, int]]) -> int | None:
    """The place of the first frame that is neither Stowplan's nor the standard library's."""
    for place, (frame, _) in enumerate(frames):
        file = frame.f_code.co_filename
        is_host = file.startswith(_PACKAGE) and not file.startswith(_PLUGINS)
        is_standard = file.startswith(_STANDARD_LIBRARY) and not any(site in file for site in _SITES)
        if not (is_host or is_standard or file.startswith("<frozen ")):
            return place
    return None


def _are_siblings(frame: FrameType, other: FrameType) -> bool:
    """Whether they run code of the same package, or of files in the same folder."""
    files = (frame.f_code.co_filename, other.f_code.co_filename)
    packages = [str(each.f_globals.get("__name__")).partition(".")[0] for each in (frame, other)]
    return packages[0] == packages[1] or os.path.dirname(files[0]) == os.path.dirname(files[1])


def short_path(file: str) -> str:
    """The path as a user would write it: relative where that is shorter."""
    try:
        return min(file, os.path.relpath(file), key=len)
    except (OSError, ValueError):  # no working directory any more, or another drive
        return file


def _definition_place(method: Method) -> str:
    file, line = _definition_of(method)
    return f"{short_path(file)}:{line}" if line else ""


def _definition_stack(method: Method, text: str) -> str:
    """A traceback whose only frame is the definition of the method."""
    file, line = _definition_of(method)
    lines = ["Traceback (most recent call last):"]
    if line:
        lines += [
            f'  File "{file}", line {line}, in {method[1]}',
            f"    {linecache.getline(file, line).strip()}",
        ]
    return "\n".join([*lines, text, ""])


def _definition_of(method: Method) -> tuple[str, int]:
    """The file and line of its `def`, or of the plugin's class; the line is 0 if neither is known."""
    owner, name = method
    kind = owner if isinstance(owner, type) else type(owner)
    try:
        found = inspect.getattr_static(kind, name)
        code = inspect.unwrap(getattr(found, "__func__", found)).__code__
        file, line = code.co_filename, code.co_firstlineno
        linecache.checkcache(file)
        lines = linecache.getlines(file)
        if lines[line - 1].lstrip().startswith("@"):  # code starts at its decorators
            line = next(n for n in range(line, len(lines) + 1) if _DEF.match(lines[n - 1]))
        return file, line
    except BaseException:
        try:
            return inspect.getsourcefile(kind) or "", inspect.findsource(kind)[1] + 1
        except BaseException:
            return "", 0


def stack_of(error: BaseException, method: Method | None = None) -> str:
    """The traceback from the plugin's frame on, as text, with those of its causes; never raises.

    For a wrong answer, it shows where the `method` that gave it is defined. Python's own formatting would run
    code of the exception's class, and take as long as there are causes.
    """
    if isinstance(error, PluginError) and error.stack:
        return error.stack
    if method is not None and _is_wrong_answer(error):
        return _definition_stack(method, describe(error))
    parts: list[str] = []
    found: BaseException | None = error
    try:
        while found is not None and len(parts) < MAX_CAUSES:
            start = found.__traceback__
            for _ in range(_first_of_plugin(list(walk_tb(start))) or 0):
                start = start.tb_next if start is not None else None
            frames = _format_frames(start)
            parts.append(f"Traceback (most recent call last):\n{frames[-MAX_STACK:]}{describe(found)}\n")
            found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    except BaseException as unprintable:
        parts.append(f"the traceback cannot be shown: {_type_name(unprintable)}\n")
    text = "\nThe above exception led to the following one:\n\n".join(reversed(parts))
    return text.encode(errors="backslashreplace").decode()


def _is_wrong_answer(error: BaseException) -> bool:
    """Whether it was raised here, where answers are checked, rather than by code that the plugin called."""
    frames = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return frames[-1:] == [_definition_of.__code__.co_filename]


def _format_frames(start: TracebackType | None) -> str:
    """The first frames and the last: where the plugin began, and what raised, also after deep recursion."""
    count = sum(1 for _ in walk_tb(start))
    if count <= MAX_FRAMES:
        return "".join(traceback.format_tb(start))
    first, last = (traceback.format_tb(start, limit=sign * MAX_FRAMES // 2) for sign in (1, -1))
    return "".join([*first, f"  ... {count - len(first) - len(last)} more frames ...\n", *last])


class RaisedError(PluginError):
    """Stands for whatever a plugin raised; its text was read while the plugin's budget ran."""

    def __init__(self, error: BaseException, method: Method | None = None) -> None:
        import asyncio

        self.text, self.place = describe(error), place_of(error, method)
        self.was_cancelled = isinstance(error, asyncio.CancelledError)
        super().__init__(self.text, stack_of(error, method))


async def await_answer(ask: Callable[..., Any], *args: Any) -> Any:
    """What an asynchronous method answers.

    A CancelledError that was not sent to this task, as from a task of the plugin's own that was cancelled, is
    the plugin's error. So is SystemExit, which would otherwise end the event loop.
    """
    import asyncio  # which the commands that only decide do without

    task = asyncio.current_task()
    assert task is not None
    requests = task.cancelling()
    try:
        return await awaitable_of(ask(*args))
    except asyncio.CancelledError as error:
        if task.cancelling() > requests:
            raise
        raise RaisedError(error) from None
    except Exception:
        raise
    except BaseException as error:
        raise RaisedError(error) from None


def awaitable_of(answer: object) -> Awaitable[Any]:
    """What an asynchronous method returns when it is called."""
    if not inspect.isawaitable(answer):
        _expect("a coroutine (write `async def`)", answer)
    return answer


def plain_text(text: str) -> str:
    """A string of Python's own, cut to MAX_TEXT, that can be encoded; whatever class it was."""
    found = str.__getitem__(text, slice(MAX_TEXT + 1))
    if len(found) > MAX_TEXT:
        found = f"{found[: MAX_TEXT - 4]} ..."
    return found if found.isascii() else found.encode(errors="replace").decode()


def format_value(answer: object) -> str:
    """An answer in an error message: small values as they are, all others by their type.

    No code of the answer's own class runs.
    """
    if answer is None or type(answer) in (bool, float):
        return f"{answer}"
    if isinstance(answer, int) and type(answer) is int:
        return f"{answer}" if -(10**30) < answer < 10**30 else "a huge int"
    if isinstance(answer, str) and type(answer) is str:
        text = plain_text(answer)
        return repr(text if len(text) <= 60 else f"{text[:60]} ...")
    if inspect.iscoroutine(answer):
        answer.close()  # or Python warns that nobody awaited it
        return "a coroutine: write `def`, without async"
    return f"an object of type {_type_name(answer)}"


def _type_name(thing: object) -> str:
    try:
        return plain_text(type.__getattribute__(type(thing), "__name__"))
    except BaseException:
        return "unknown"


def _expect(what: str, answer: object) -> NoReturn:
    raise TypeError(f"expected {what}, got {format_value(answer)}")


# What a plugin answers


def status_of(method: str, answer: object) -> Status | None:
    """The Status that a method answered; None for success."""
    if answer is None or (answer is SKIP and Code.SKIP in CODES[method]):
        return answer
    if type(answer) is not Status:
        _expect("a Status or None", answer)
    status: Status = answer
    code, reasons = status.code, status.reasons
    if type(code) is not Code:
        _expect("a Status whose code is a Code", code)
    if code not in CODES[method]:
        expected = join_with_or([each.wire_name for each in sorted(CODES[method])])
        raise ValueError(f"{method} answered {code.wire_name}; expected {expected}")
    if type(reasons) is not tuple:
        _expect("a Status whose reasons are a tuple of str", reasons)
    if type(status.plugin) is not str:
        _expect("a Status whose plugin is a str", status.plugin)
    if type(status.stack) is not str:
        _expect("a Status whose stack is a str", status.stack)
    if status.preemption is not None and type(status.preemption) is not Preemption:
        _expect("a Status whose preemption is a Preemption", status.preemption)
    if code is Code.SUCCESS:
        return None
    cut = tuple(map(reason_of, reasons))
    if cut != reasons or code is Code.WAIT:
        seconds, stack = _seconds(status.timeout), status.stack[-MAX_STACK:]
        keeps = status.keeps_nomination is True
        return Status(
            code, cut, status.plugin, seconds, stack, keeps_nomination=keeps, preemption=status.preemption
        )
    return status


def reason_of(reason: object) -> str:
    """One of the reasons for which a plugin rejects."""
    if type(reason) is not str:
        if not isinstance(reason, str):
            _expect("a str as reason", reason)
        return plain_text(reason)
    return reason if len(reason) <= MAX_TEXT and reason.isascii() else plain_text(reason)


def nothing_of(method: str, answer: object) -> None:
    """The answer of a method that has none to give."""
    if status_of(method, answer) is not None:
        _expect("None", answer)


def pre_filter_of(answer: object) -> Status | frozenset[str] | None:
    """None, a Status, or the names of the nodes to narrow the search to."""
    if isinstance(answer, (frozenset, set)):
        names = frozenset(answer)
        for name in names:
            if type(name) is not str:
                _expect("the names of nodes, each a str", name)
        return names
    if answer is not None and type(answer) is not Status:
        _expect("a Status, a set of names of nodes or None", answer)
    return status_of("pre_filter", answer)


def post_filter_of(answer: object) -> Status | Nomination:
    if answer is None:  # nothing found, and nothing to say: the next plugin is asked
        return Status.unschedulable()
    if type(answer) is not Nomination:
        if type(answer) is not Status:
            _expect("a Nomination, a Status or None", answer)
        return status_of("post_filter", answer) or Status()
    name, victims = answer
    if type(name) is not str:
        _expect("a Nomination of a node by its name", name)
    if type(victims) not in (tuple, list):
        _expect("a Nomination whose victims are a tuple of pods", victims)
    for victim in victims:
        if not isinstance(victim, Pod):
            _expect("pods as victims", victim)
    return Nomination(name, tuple(victims))


def reject_of(answer: object, length: int) -> tuple[Mask, str, bool | Mask]:
    """One of the Rejects of filter_nodes: which nodes, why, and where evicting pods does not help."""
    if type(answer) is not Reject:
        _expect("a Reject", answer)
    mask, hard = answer.mask, answer.unresolvable
    if type(mask) is not np.ndarray or mask.shape != (length,) or mask.dtype.kind != "b":
        mask = _mask_of(mask, length, "to reject")
    if type(hard) is not bool:
        hard = bool(hard) if isinstance(hard, np.bool_) else _mask_of(hard, length, "of what is unresolvable")
    return mask, answer.reason, hard


def _mask_of(answer: object, length: int, what: str) -> Mask:
    mask = np.asarray(answer)
    if mask.shape != (length,) or mask.dtype.kind != "b":
        raise ValueError(
            f"expected {length} truth values, one a node, {what}; got {mask.dtype} of shape {mask.shape}"
        )
    return mask


def row_errors_of(error: FilterError, length: int) -> dict[int, str]:
    """By row, why filter_nodes failed on some nodes."""
    texts = error.texts
    if not isinstance(texts, Mapping):
        _expect("a FilterError with texts by row", texts)
    found = {}
    for row, text in texts.items():
        if not 0 <= index(row) < length:
            raise ValueError(f"expected rows of {length} nodes in a FilterError, got {format_value(row)}")
        found[index(row)] = reason_of(text)
    return found


def row_reject_of(answer: object) -> tuple[bool, str, bool]:
    """The same for a single node, whose columns are plain numbers."""
    if type(answer) is not Reject:
        _expect("a Reject", answer)
    return _truth(answer.mask), answer.reason, _truth(answer.unresolvable)


def _truth(value: object) -> bool:
    if type(value) is not bool and not isinstance(value, np.bool_):
        _expect("a truth value, since there is one node", value)
    return bool(value)


def iterable_of(answer: object) -> Iterable[Any]:
    """What filter_nodes yields or returns; nothing is no way to say that all nodes are fine."""
    if type(answer) is not GeneratorType and (
        not isinstance(answer, Iterable) or isinstance(answer, (str, bytes))
    ):
        _expect("Rejects, yielded or in a list", answer)
    return answer


def score_of(answer: Any) -> int:
    """The score of one node, before it is normalised."""
    try:
        score = index(answer)
    except TypeError:
        _expect("a whole number as score", answer)
    if not -(2**63) <= score < 2**63:
        _expect("a score of at most 64 bits", answer)
    return score


def scores_of(answer: object, length: int) -> Scores:
    """The scores of all nodes."""
    if inspect.iscoroutine(answer):
        _expect("a column of scores", answer)
    scores: NDArray[Any] = np.asarray(answer)
    if scores.shape != (length,) or scores.dtype.kind not in "iub":
        raise ValueError(
            f"expected {length} whole numbers, one a node, got {scores.dtype} of shape {scores.shape}"
        )
    return scores.astype(np.int64, copy=False)


def hint_of(answer: object) -> Hint:
    if type(answer) is Hint:
        return answer
    if not isinstance(answer, str) or answer not in (Hint.QUEUE.value, Hint.SKIP.value):
        _expect("Hint.QUEUE or Hint.SKIP", answer)
    return Hint(answer)


def events_of(answer: object) -> tuple[ClusterEvent, ...]:
    """What a plugin wants to hear of."""
    if not isinstance(answer, Iterable) or isinstance(answer, (str, bytes, ClusterEvent)):
        _expect("ClusterEvents, yielded or in a list", answer)
    events = tuple(answer)
    for event in events:
        if type(event) is not ClusterEvent:
            _expect("a ClusterEvent", event)
        if not isinstance(event.resource, str):
            _expect("a ClusterEvent whose resource is a Resource", event.resource)
        if not isinstance(event.action, Action):
            _expect("a ClusterEvent whose action is an Action", event.action)
    return events


def check_constructed(plugin: object, kind: type[Plugin]) -> Plugin:
    """The plugin that a constructor made."""
    if not isinstance(plugin, kind):
        _expect(f"a {kind.__name__}", plugin)
    if not all(hasattr(plugin, name) for name in ("args", "handle", "serial")):
        raise TypeError("__init__ does not call super().__init__(args, handle)")
    return plugin


def _seconds(value: object) -> float:
    """For how long to wait; less than no time is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        _expect("seconds to wait, as a number", value)
    return max(value, 0.0)


def join_with_or(texts: Sequence[str]) -> str:
    *others, last = texts
    return f"{', '.join(others)} or {last}" if others else last


# Keys to sort waiting pods by

NO_KEY: Final = object()
Calling = Callable[[], AbstractContextManager[None]]
"""What to be in while the plugin's own code compares keys, so that its budget is kept."""


def check_key(key: Any, other: Any = NO_KEY) -> None:
    """Whether a key that queue_sort answered can be compared, with itself and with one that could."""
    if inspect.iscoroutine(key):
        _expect("a key to sort by", key)
    for one, two in ((key, key), (key, other), (other, key)):
        if one is not NO_KEY and two is not NO_KEY:
            bool(one < two)
            bool(one == two)


class SortKey:
    """A key that a plugin gave to sort by, which can be compared with any other of its plugin.

    If comparing two keys fails, `on_fault` is called once, and neither comes first.
    """

    __slots__ = ("_calling", "_on_fault", "key")

    def __init__(self, key: Any, calling: Calling, on_fault: Callable[[BaseException], None]) -> None:
        self.key, self._calling, self._on_fault = key, calling, on_fault

    def __lt__(self, other: SortKey) -> bool:
        try:
            with self._calling():
                return bool(self.key < other.key)
        except BaseException as error:
            self._report(error)
            return False

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, SortKey):
            return self is other
        try:
            with self._calling():
                return bool(self.key == other.key)
        except BaseException as error:
            self._report(error)
            return True

    def __hash__(self) -> int:
        return id(self)

    def _report(self, error: BaseException) -> None:
        report, self._on_fault = self._on_fault, _ignore
        report(error)


def _ignore(error: BaseException) -> None:
    """It was told before."""
