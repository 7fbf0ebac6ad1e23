"""An explanation as it is printed."""

from __future__ import annotations

from stowplan.explain.answers import Printed
from stowplan.explain.report import Explanation, as_json
from stowplan.explain.text import render


def printed(found: Explanation, *, as_data: bool, all_nodes: bool) -> Printed:
    return Printed(data=as_json(found)) if as_data else Printed(render(found, all_nodes=all_nodes))
