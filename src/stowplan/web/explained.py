"""Why a pod is where it is, or nowhere: what `stowplan explain --server` prints.

It is put into words here, where all that takes is loaded already, and in a thread, beside the scheduler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from stowplan.errors import InputError
from stowplan.explain.changes import Printed
from stowplan.explain.recorded import explain_record, undecided_text
from stowplan.explain.text import print_explanation
from stowplan.scheduler.decision_pages import Known, look_up
from stowplan.web.source import Source


async def explained(source: Source, query: Mapping[str, str]) -> Printed:
    """`pod`, perhaps `node`, `output=json` for data, `allNodes=true` for lists that are not cut short.

    A pod or node that is not known is an answer, too: that there is no such page is a 404.
    """
    try:
        known = look_up(query.get("pod", ""), source.decisions, source.scheduler(), source.leader())
        return await asyncio.to_thread(_printed, known, query)
    except (LookupError, InputError) as error:
        return Printed(fault=error.args[0])


def _printed(known: Known, query: Mapping[str, str]) -> Printed:
    as_data = query.get("output") == "json"
    if known.attempts:
        found = explain_record(known.attempts[0], query.get("node"), known.waiting)
        return print_explanation(found, as_data=as_data, all_nodes=query.get("allNodes") == "true")
    assert known.waiting is not None
    text = undecided_text(known.pod, known.waiting)
    return Printed(data={"pod": known.pod, "waiting": text.splitlines()}) if as_data else Printed(text)
