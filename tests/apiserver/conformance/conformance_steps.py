"""What a conformance case is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


class Step(NamedTuple):
    method: str
    path: str
    body: Any = None
    """Bytes are sent as they are, everything else as JSON."""
    media: str = "application/json"
    accept: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Case(NamedTuple):
    name: str
    steps: tuple[Step, ...]


Api = Callable[[Step], Awaitable[tuple[int, Any]]]
"""Sends a step and gives the status and the body: JSON, a list of events, or text."""
