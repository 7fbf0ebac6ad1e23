"""The methods that are called on a plugin: by extension point, with what, and how."""

from __future__ import annotations

METHODS_OF_POINT = {
    "preEnqueue": ("pre_enqueue",),
    "queueSort": ("queue_sort",),
    "preFilter": ("pre_filter",),
    "filter": ("filter", "filter_nodes"),
    "postFilter": ("post_filter",),
    "preScore": ("pre_score",),
    "score": ("score", "score_nodes"),
    "reserve": ("reserve",),
    "permit": ("permit",),
    "preBind": ("pre_bind",),
    "bind": ("bind",),
    "postBind": ("post_bind",),
}
"""What makes a plugin take part in a point, as files name it."""
PARAMETERS: dict[str, tuple[str, ...]] = {
    "pre_enqueue": ("pod",),
    "queue_sort": ("queued",),
    **dict.fromkeys(("pre_filter", "filter_nodes", "pre_score", "score_nodes"), ("state", "pod", "nodes")),
    **dict.fromkeys(("filter", "score"), ("state", "pod", "node")),
    **dict.fromkeys(("add_pod", "remove_pod"), ("state", "pod", "other", "node")),
    "post_filter": ("state", "pod", "decision"),
    "normalize_score": ("state", "pod", "scores"),
    **dict.fromkeys(("reserve", "unreserve", "permit"), ("state", "pod", "node_name")),
    **dict.fromkeys(("pre_bind", "bind", "post_bind"), ("state", "pod", "node_name")),
    "events_to_register": (),
    "queueing_hint": ("pod", "event", "old", "new"),
    "sign_pod": ("pod",),
    "run": (),
}
"""All methods, with what they are called with."""
ASYNC = frozenset(("pre_bind", "bind", "post_bind", "run"))
MAY_YIELD = frozenset(("filter_nodes", "events_to_register"))
NEEDS = {
    "add_pod": ("pre_filter",),
    "remove_pod": ("pre_filter",),
    "normalize_score": ("score", "score_nodes"),
    "unreserve": ("reserve",),
    "queueing_hint": ("events_to_register",),
}
"""Methods that are called only on a plugin that has one of these too."""
