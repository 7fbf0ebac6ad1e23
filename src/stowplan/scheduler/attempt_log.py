"""What plugins said of each node, as log lines: from `-v=5` on of custom plugins, from `-v=10` on of all."""

from __future__ import annotations

from collections.abc import Callable

from stowplan import log
from stowplan.framework.decision import Decision
from stowplan.framework.plugin import is_trusted
from stowplan.framework.profile import Profile

CUSTOM, ALL = 5, 10


def log_nodes(profile: Profile, decision: Decision) -> None:
    """A line for every node that was refused or scored."""
    if not log.is_verbose(CUSTOM):
        return

    def verbosity_of(plugin: str) -> int:
        found = profile.plugins.get(plugin)
        return ALL if found is not None and is_trusted(type(found)) else CUSTOM

    if decision.pre_filter is None:
        _log_refusals(decision, verbosity_of)
    _log_scores(decision, verbosity_of)


def _log_refusals(decision: Decision, verbosity_of: Callable[[str], int]) -> None:
    if not log.is_verbose(ALL) and all(verbosity_of(each.plugin) == ALL for each in decision.filters):
        return
    for node_name, status in decision.rejected().items():
        log.log(
            verbosity_of(status.plugin),
            "Plugin refused node for pod",
            pod=decision.pod,
            plugin=status.plugin,
            node=node_name,
            status=status.message,
        )


def _log_scores(decision: Decision, verbosity_of: Callable[[str], int]) -> None:
    names = [decision.names[row] for row in decision.feasible.tolist()]
    for column in decision.scores:
        verbosity = verbosity_of(column.plugin)
        if log.is_verbose(verbosity):
            for node_name, score in zip(names, column.weighted.tolist(), strict=True):
                log.log(
                    verbosity,
                    "Plugin scored node for pod",
                    pod=decision.pod,
                    plugin=column.plugin,
                    node=node_name,
                    score=score,
                )
    totals = decision.totals
    if totals is not None and log.is_verbose(ALL):
        for node_name, total in zip(names, totals.tolist(), strict=True):
            log.log(
                ALL, "Calculated node's final score for pod", pod=decision.pod, node=node_name, score=total
            )
