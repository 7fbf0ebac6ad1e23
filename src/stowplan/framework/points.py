"""The methods of a plugin by extension point, read off the base class."""

from __future__ import annotations

import inspect

from stowplan.framework.plugin import Plugin

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
"""Which methods make a plugin take part in an extension point, by its name in a configuration."""
METHODS = {
    name: method
    for name, method in vars(Plugin).items()
    if inspect.isfunction(method) and not name.startswith("_")
}
"""All methods of a plugin that are called, as the base class declares them."""
PARAMETERS = {name: tuple(inspect.signature(method).parameters)[1:] for name, method in METHODS.items()}
ASYNC = frozenset(name for name, method in METHODS.items() if inspect.iscoroutinefunction(method))
MAY_YIELD = frozenset(("filter_nodes", "events_to_register"))
NEEDS = {
    "add_pod": ("pre_filter",),
    "remove_pod": ("pre_filter",),
    "normalize_score": ("score", "score_nodes"),
    "unreserve": ("reserve",),
    "queueing_hint": ("events_to_register",),
}
"""Methods that are called only on a plugin that overrides one of these too."""
