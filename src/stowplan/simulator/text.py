"""The answer to a what-if in words and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stowplan.explain.layout import count_text, join_names, left_table, reason_text, wrap
from stowplan.simulator.outcome import Cause, Ending, Fate, Outcome

ROWS_SHOWN = 20
WHY = {
    Cause.NEW: "new",
    Cause.PENDING: "pending",
    Cause.DRAINED: "from the drained",
    Cause.LOST: "from the lost",
    Cause.EVICTED: "evicted from",
    Cause.AFRESH: "from",
}


def render(outcome: Outcome, *, all_pods: bool = False) -> str:
    """The summary, then the pods placed, evicted and left pending; long lists are shortened."""
    shown = None if all_pods else ROWS_SHOWN
    paragraphs = [
        "\n".join(_summary(outcome)),
        "\n".join(_list_groups(outcome, shown)),
        "\n".join(_list_placed(outcome, shown)),
        "\n".join(_list_evicted(outcome, shown)),
        *("\n".join(each) for each in _pending_lines(outcome, shown)),
        *("\n".join(_others(outcome, ending, shown)) for ending in OTHERS),
    ]
    return "\n\n".join(filter(None, paragraphs))


def _summary(outcome: Outcome) -> Iterator[str]:
    if outcome.changes:
        yield wrap(f"What if: {'; '.join(outcome.changes)}.")
    if not outcome.fates:
        yield "No pod would have to be placed."
        return
    placed, moved = outcome.placed, sum(each.is_moved for each in outcome.fates)
    parts = [f"{len(placed)} of {count_text(len(outcome.fates), 'pod')} would land on a node"]
    if moved:
        parts.append(f"{moved} of them on another than now")
    if evicted := outcome.evicted:
        parts.append(f"{len(evicted)} would be evicted for others")
    if pending := outcome.pending:
        parts.append(f"{len(pending)} would stay pending")
    yield wrap(f"{', '.join(parts)}.")


def _list_groups(outcome: Outcome, shown: int | None) -> Iterator[str]:
    """Groups that would not start come first."""
    groups = sorted(outcome.groups, key=lambda each: each.starts)
    for each in groups[:shown]:
        verb = "would start" if each.starts else "would wait"
        yield wrap(f"Pod group {each.group} {verb}: {each.text}", indent=2, start="")
    if shown is not None and len(groups) > shown:
        yield f"… and {len(groups) - shown} more (--all-pods lists them)"


def _list_placed(outcome: Outcome, shown: int | None) -> Iterator[str]:
    """List the placed pods; those that were pending before come last."""
    fates = [each for each in outcome.placed if each.cause is not Cause.AFRESH or each.is_moved]
    fates.sort(key=_waits_now)
    if not fates:
        return
    rows = [(each.pod.key, each.node, _origin(each)) for each in fates[:shown]]
    yield from left_table(("POD", "LANDS ON", "WAS"), rows)
    if shown is not None and len(fates) > shown:
        yield f"… and {len(fates) - shown} more (--all-pods lists them)"
        by_node = Counter(each.node for each in fates)
        most = [f"{node} ({count})" for node, count in sorted(by_node.items(), key=lambda item: -item[1])]
        yield wrap(f"Most of them land on {join_names(most)}.")


def _list_evicted(outcome: Outcome, shown: int | None) -> Iterator[str]:
    fates = outcome.evicted
    if not fates:
        return
    yield f"Evicted: {count_text(len(fates), 'pod')}"
    rows = [
        (
            f"  {each.pod.key} (priority {each.pod.priority})",
            each.before,
            each.evicted_by,
            _describe_ending(each),
        )
        for each in fates[:shown]
    ]
    yield from left_table(("  POD", "FROM", "FOR", "THEN"), rows)
    if shown is not None and len(fates) > shown:
        yield f"  … and {len(fates) - shown} more (--all-pods lists them)"


def _pending_lines(outcome: Outcome, shown: int | None) -> Iterator[list[str]]:
    """Pods with the same message together, with what they wait for."""
    groups: dict[tuple[bool, str], list[Fate]] = {}
    for each in sorted(outcome.pending, key=_waits_now):
        groups.setdefault((_waits_now(each), each.message), []).append(each)
    for (waits_now, message), fates in list(groups.items())[:shown]:
        start = "Still pending" if waits_now else "Pending"
        lines = [wrap(f"{start}: {join_names([each.pod.key for each in fates])}")]
        lines.append(f"  {message}")  # to the letter: people search for it
        rejections = next((each.rejections for each in fates if each.rejections), ())
        for rejection in rejections:
            lines.append(wrap(reason_text(rejection.status), indent=5, start=f"{len(rejection.nodes):4} "))
            if rejection.detail:
                lines.append(wrap(rejection.detail, indent=5))
        yield lines
    if shown is not None and len(groups) > shown:
        left = sum(len(fates) for fates in list(groups.values())[shown:])
        yield [f"… and {left} more stay pending for other reasons (--all-pods lists them)"]


OTHERS = {
    Ending.HELD_BACK: "Held back",
    Ending.GONE: "Gone for good, since no controller makes them again",
    Ending.STAYS: "Not evicted from the drained node",
    Ending.ELSEWHERE: "Of other schedulers",
    Ending.FAILED: "Not decided, since a plugin failed",
}


def _others(outcome: Outcome, ending: Ending, shown: int | None) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for each in outcome.having(ending):
        if not (ending is Ending.GONE and each.evicted_by):  # listed among the evicted
            groups.setdefault(each.message, []).append(each.pod.key)
    for message, keys in groups.items():
        why = f" ({message})" if message else ""
        yield wrap(f"{OTHERS[ending]}: {join_names(keys, shown)}{why}", indent=2, start="")


def _waits_now(fate: Fate) -> bool:
    return fate.cause is Cause.PENDING


def _origin(fate: Fate) -> str:
    why = WHY[fate.cause]
    found = f"{why} {fate.before}" if fate.before else why
    found = f"{found}, {fate.message}" if fate.message else found
    return f"{found}, evicts {join_names(fate.victims, 3)}" if fate.victims else found


def _describe_ending(fate: Fate) -> str:
    return f"lands on {fate.node}" if fate.ending is Ending.PLACED else f"is {fate.ending}"
