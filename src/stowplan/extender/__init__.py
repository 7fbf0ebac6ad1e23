"""Serves our plugins, and plain functions, to someone else's scheduler: the extender protocol over HTTP."""

from stowplan.extender.functions import Node, background, predicate, preemption, priority
from stowplan.extender.service import serve

__all__ = ["Node", "background", "predicate", "preemption", "priority", "serve"]
