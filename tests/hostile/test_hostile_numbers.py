"""Numbers of thousands of digits, which Python does not convert."""

from __future__ import annotations

import msgspec

from stowplan.api.meta import NodeSelectorRequirement, NodeSelectorTerm
from stowplan.api.selectors import node_term_of
from stowplan.controllers.deployments import REVISION, revision_of
from stowplan.controllers.kinds import Plain

DIGITS = "9" * 5000


def test_a_node_selector_with_a_long_number_matches_nothing():
    expression = NodeSelectorRequirement(key="cores", operator="Gt", values=(DIGITS,))
    term = node_term_of(NodeSelectorTerm(match_expressions=(expression,)))
    assert "must be an integer" in term.error


def test_a_label_with_a_long_number_is_no_number():
    expression = NodeSelectorRequirement(key="cores", operator="Gt", values=("1",))
    term = node_term_of(NodeSelectorTerm(match_expressions=(expression,)))
    assert not term.matches({"cores": DIGITS}, "n")
    assert term.matches({"cores": "2"}, "n")


def test_a_revision_that_is_a_long_number_counts_as_none():
    item = msgspec.convert({"metadata": {"name": "d", "annotations": {REVISION: DIGITS}}}, Plain)
    assert revision_of(item) == 0
