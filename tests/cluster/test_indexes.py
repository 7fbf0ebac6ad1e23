"""Selectors found by labels, and label sets found by selectors, without asking all of them."""

from __future__ import annotations

import random

import pytest

from stowplan.api.pod import LabelSet
from stowplan.api.selectors import EVERYTHING, NOTHING, Requirement, Selector, selector_of_map
from stowplan.cluster.pod_table import LabelIndex, PodQuery, SelectorIndex

KEYS, VALUES = ("app", "tier", "track"), ("a", "b", "c")
NAMESPACES = ("default", "other", "third")
FREE = selector_of_map({"app": "a"}), selector_of_map({"app": "b"})


def drawn_labels(draw):
    labels = {key: draw.choice(VALUES) for key in KEYS if draw.random() < 0.7}
    return LabelSet(draw.choice(NAMESPACES), labels)


def drawn_query(draw):
    namespaces = frozenset(draw.sample(NAMESPACES, draw.randint(1, 2))) if draw.random() < 0.7 else None
    return PodQuery(namespaces, drawn_selector(draw))


def drawn_selector(draw):
    operators = draw.choices(("In", "NotIn", "Exists", "DoesNotExist"), k=draw.randint(0, 3))
    return Selector(
        tuple(
            Requirement(
                draw.choice(KEYS),
                operator,
                frozenset(draw.sample(VALUES, draw.randint(1, 2))) if "In" in operator else frozenset(),
            )
            for operator in operators
        ),
        nothing=draw.random() < 0.1,
    )


@pytest.mark.parametrize("seed", range(20))
def test_selectors_that_match_are_found_once(seed):
    draw = random.Random(seed)
    index, there = SelectorIndex(), []
    for _ in range(200):
        if there and draw.random() < 0.4:
            gone = there.pop(draw.randrange(len(there)))
            index.remove(gone)
        else:
            there.append(drawn_query(draw))
            index.add(there[-1].selector, there[-1].namespaces, there[-1])
        labels = drawn_labels(draw)
        found = list(map(id, index.candidates(labels)))
        assert len(found) == len(set(found))
        assert {id(each) for each in there if each.matches(labels)} <= set(found) <= set(map(id, there))


@pytest.mark.parametrize("seed", range(20))
def test_label_sets_that_match_are_found_once(seed):
    draw = random.Random(seed)
    index, there = LabelIndex(), {}
    for number in range(200):
        if there and draw.random() < 0.4:
            gone = draw.choice(list(there))
            del there[gone]
            index.remove(gone)
        else:
            there[number] = drawn_labels(draw)
            index.add(number, there[number])
            index.add(number, there[number])  # as for a second pod with the same labels
        query = drawn_query(draw)
        found = [each for each, _ in index.candidates(query)]
        assert len(found) == len(set(found))
        matching = {each for each, labels in there.items() if query.matches(labels)}
        assert matching <= set(found) <= set(there)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        pytest.param({"app": "a", "managed-by": "helm"}, [0], id="by what tells them apart"),
        pytest.param({"managed-by": "helm"}, [], id="not by what all ask for"),
        pytest.param({}, [], id="not without labels"),
    ],
)
def test_few_others_are_found(labels, found):
    selectors = [selector_of_map({"app": value, "managed-by": "helm"}) for value in VALUES]
    index = SelectorIndex()
    index.add(selector_of_map({"managed-by": "helm"}), None, None)  # takes that label's place
    for number, selector in enumerate(selectors):
        index.add(selector, None, number)
    assert [each for each in index.candidates(LabelSet("default", labels)) if each is not None] == found


def test_equal_selectors_of_other_namespaces_are_not_found():
    index, labels = SelectorIndex(), LabelIndex()
    for number in range(100):
        index.add(FREE[0], frozenset((f"n{number}",)), number)
        labels.add(number, LabelSet(f"n{number}", {"app": "a"}))
    # The first takes the label's place, all others are found by their namespace.
    assert sorted(index.candidates(LabelSet("n7", {"app": "a"}))) == [0, 7]
    assert [number for number, _ in labels.candidates(PodQuery(frozenset(("n7",)), FREE[0]))] == [7]


def test_what_asks_for_no_label_is_always_found():
    index = SelectorIndex()
    for selector in (EVERYTHING, NOTHING, *FREE):
        index.add(selector, None, selector)
    assert list(index.candidates(LabelSet("default", {"app": "b"}))) == [EVERYTHING, NOTHING, FREE[1]]


def test_only_sets_with_the_label_are_found():
    index = LabelIndex()
    for number, value in enumerate(VALUES):
        index.add(number, LabelSet("default", {"app": value}))
    index.add(3, LabelSet("default", {}))
    assert [number for number, _ in index.candidates(PodQuery(None, FREE[1]))] == [1]
    index.add(4, LabelSet("default", {"app": "b"}))
    assert sorted(number for number, _ in index.candidates(PodQuery(None, FREE[1]))) == [1, 4]
    assert len(list(index.candidates(PodQuery(None, EVERYTHING)))) == 5
