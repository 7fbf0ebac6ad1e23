"""What a plugin does to the API server besides watching, in the words of RBAC."""

from __future__ import annotations

import msgspec


class Right(msgspec.Struct, frozen=True):
    """A resource and the verbs it is asked with: `Right("pods/binding", ("create",))`."""

    resource: str
    """Its plural, or plural/subresource."""
    verbs: tuple[str, ...]
    group: str = ""
    """Empty for the core group."""
