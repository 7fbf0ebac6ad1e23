"""The few words that random objects are made of, and selectors over them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
HOSTNAME, ZONE, REGION = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
TOPOLOGY_KEYS = (ZONE, HOSTNAME, "rack", REGION)
OWN = "the pod's own label"
NAMESPACES = ("default", "prod", "dev")

NODE_LABELS = {
    ZONE: ("za", "zb", "zc", ""),
    REGION: ("r1", "r2"),
    "rack": ("1", "2"),
    "disk": ("ssd", "hdd", ""),
    "size": ("1", "5", "-7", "+3", "big", "9223372036854775808"),
}
POD_LABELS = {"app": ("web", "db", ""), "tier": ("x", "y"), "hash": ("h1", "h2")}
NAMESPACE_LABELS = {"env": ("prod", "test"), "team": ("a", "b")}


def some(mapping: dict[str, Any]) -> st.SearchStrategy[Json]:
    """A dict with some of the keys, each with one of its values."""
    return st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in mapping.items()}
    )


def most(mapping: dict[str, Any]) -> st.SearchStrategy[Json]:
    """The same, with few of the keys left out."""
    each = {key: st.sampled_from((*values, *values[:2], None)) for key, values in mapping.items()}
    return st.fixed_dictionaries(each).map(without_none)


def one(mapping: dict[str, Any]) -> st.SearchStrategy[Json]:
    """A dict with one of the keys."""
    return st.sampled_from([{key: value} for key, values in mapping.items() for value in values])


def without_none(found: Json) -> Json:
    return {key: value for key, value in found.items() if value is not None}


def few(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=most)


def perhaps(usual: st.SearchStrategy[Any], rare: st.SearchStrategy[Any], of: int) -> st.SearchStrategy[Any]:
    """The rare one once in a while."""
    return st.integers(1, of).flatmap(lambda turn: rare if turn == of else usual)


def seldom(usual: Any, rare: st.SearchStrategy[Any], of: int = 8) -> st.SearchStrategy[Any]:
    return perhaps(st.just(usual), rare, of)


def requirements(words: dict[str, tuple[str, ...]], numbers: bool = False) -> st.SearchStrategy[Json]:
    """A requirement on one of the labels; now and then one that cannot be built."""
    keys = st.sampled_from((*words, "missing"))
    return keys.flatmap(lambda key: _requirement(key, words.get(key, ("v",)), numbers))


def _requirement(key: str, words: tuple[str, ...], numbers: bool) -> st.SearchStrategy[Json]:
    values = st.lists(st.sampled_from((*words, "other")), min_size=1, max_size=2)
    kinds = [
        st.fixed_dictionaries(
            {"key": st.just(key), "operator": st.sampled_from(("In", "NotIn")), "values": values}
        ),
        st.fixed_dictionaries({"key": st.just(key), "operator": st.sampled_from(("Exists", "DoesNotExist"))}),
    ]
    if numbers:
        bound = st.sampled_from((["0"], ["1"], ["4"], ["x"], ["-5"], ["1", "2"]))
        kinds.append(
            st.fixed_dictionaries(
                {"key": st.just("size"), "operator": st.sampled_from(("Gt", "Lt")), "values": bound}
            )
        )
    return st.one_of(kinds)


MISTAKES = st.sampled_from(
    (
        {"key": "app", "operator": "In"},
        {"key": "app", "operator": "Exists", "values": ["web"]},
        {"key": "not a key", "operator": "Exists"},
        {"key": "Prefix/app", "operator": "Exists"},
        {"key": "app", "operator": "NotIn", "values": ["no value!"]},
    )
)


def selectors(
    words: dict[str, tuple[str, ...]] = POD_LABELS, mistakes: bool = False
) -> st.SearchStrategy[Json | None]:
    """A label selector: none, empty, or with labels and expressions."""
    each = perhaps(requirements(words), MISTAKES, 15) if mistakes else requirements(words)
    full = st.fixed_dictionaries({}, optional={"matchLabels": some(words), "matchExpressions": few(each, 2)})
    equal = one(words).map(lambda labels: {"matchLabels": labels})
    right = each.map(lambda expression: {"matchExpressions": [expression]})
    return st.one_of(equal, equal, equal, right, right, full, st.just({}), st.none())


def own_selectors(mistakes: bool = False) -> st.SearchStrategy[Json | None]:
    """A selector in a pod, often of pods that are like it: see `resolved`."""
    own = st.sampled_from(sorted(POD_LABELS)).map(lambda key: {OWN: key})
    return st.one_of(own, own, selectors(mistakes=mistakes))


def resolved(found: Any, labels: Json) -> Any:
    """What was drawn, with selectors that stand for the pod's own labels made of these."""
    if isinstance(found, list):
        return [resolved(each, labels) for each in found]
    if not isinstance(found, dict):
        return found
    if OWN in found:
        return {"matchLabels": {key: value for key, value in labels.items() if key == found[OWN]}}
    return {key: resolved(value, labels) for key, value in found.items()}


FIELDS = st.fixed_dictionaries(
    {
        "key": st.sampled_from(("metadata.name", "metadata.name", "metadata.other")),
        "operator": st.sampled_from(("In", "In", "NotIn", "Exists")),
        "values": st.lists(st.sampled_from(("n00", "n01", "n02", "gone")), min_size=1, max_size=2),
    }
)


def node_terms(mistakes: bool = True) -> st.SearchStrategy[Json]:
    if not mistakes:
        each = requirements({key: tuple(filter(_is_usable, words)) for key, words in NODE_LABELS.items()})
        field = st.sampled_from(("n00", "n01")).map(
            lambda name: {"key": "metadata.name", "operator": "NotIn", "values": [name]}
        )
        return st.fixed_dictionaries(
            {}, optional={"matchExpressions": few(each, 2), "matchFields": few(field, 1)}
        )
    each = requirements(NODE_LABELS, numbers=True)
    expressions, fields = few(perhaps(each, MISTAKES, 15), 2), seldom([], few(FIELDS, 2), 3)
    return st.fixed_dictionaries({}, optional={"matchExpressions": expressions, "matchFields": fields})


def _is_usable(value: str) -> bool:
    """Whether a selector may name it; nodes may have more than that."""
    return value == "" or value[0].isalnum()
