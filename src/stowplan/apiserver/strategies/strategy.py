"""What is special about a kind: defaults, admission, validation and what an update may change.

A Strategy says how the verbs treat its kind. The one here suits a kind about which there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol

from stowplan.api.meta import Json
from stowplan.apiserver.failures import FieldError
from stowplan.apiserver.names import subdomain_errors
from stowplan.apiserver.store import Record


class Lookup(Protocol):
    """How a strategy looks up other objects."""

    def find(self, collection: str, name: str, namespace: str = "") -> Record | None: ...

    def all(self, collection: str) -> Iterable[Record]: ...


class Strategy:
    """Methods change the object that they are given, or return its errors."""

    @staticmethod
    def name_errors(name: str) -> tuple[str, ...]:
        return subdomain_errors(name)

    has_status: ClassVar[bool] = False
    """Whether the status is only written through the subresource, and not with the rest."""
    has_generation: ClassVar[bool] = False
    creates_on_update: ClassVar[bool] = False
    updates_need_version: ClassVar[bool] = False
    returns_deleted: ClassVar[bool] = False
    """Whether a delete answers with the object, rather than with a Status."""
    orphans_by_default: ClassVar[bool] = False
    """Whether a delete that says nothing about dependents leaves them behind."""
    checks_metadata_twice: ClassVar[bool] = True
    """The API checks the metadata of an update for every kind, and for most once more with the rest."""
    checks_updates_whole: ClassVar[bool] = False
    """Whether `update_errors` are all errors of an update, without those of `errors`."""
    fields: Mapping[str, str] = {}
    """Fields for selectors beside metadata.name and metadata.namespace, and where they are in the object."""

    def default(self, data: Json) -> None:
        """Set defaults, on create and update."""

    def admit(self, data: Json, lookup: Lookup) -> None:
        """Run admission on a new object, after defaults and before validation. Raises Failure."""

    def admit_update(self, data: Json, old: Json, lookup: Lookup) -> None:
        """As `admit`, for an object that is replaced."""

    def prepare_create(self, data: Json) -> None:
        if self.has_status:
            data.pop("status", None)

    def prepare_update(self, data: Json, old: Json) -> None:
        """The status stays as it was; a changed spec makes a new generation."""
        if self.has_status:
            _keep(data, old, "status")
        if self.has_generation and data.get("spec") != old.get("spec"):
            _count_generation(data)

    def prepare_status_update(self, data: Json, old: Json) -> None:
        """All but the status stays as it was, metadata that clients may set excepted."""
        for field in {*data, *old} - {"status", "metadata", "kind", "apiVersion"}:
            _keep(data, old, field)

    def prepare_part(self, data: Json, old: Json, part: str) -> None:
        """Before `prepare_update`, for a write through this subresource: all but its part stays as it was."""

    def part_errors(self, data: Json, old: Json, part: str) -> Iterable[FieldError]:
        """As `update_errors`, for a write through this subresource."""
        return self.update_errors(data, old)

    def errors(self, data: Json) -> Iterable[FieldError]:
        return ()

    def create_errors(self, data: Json) -> Iterable[FieldError]:
        """Errors of a new object, in addition to `errors`."""
        return ()

    def update_errors(self, data: Json, old: Json) -> Iterable[FieldError]:
        """Errors of an update, in addition to `errors`."""
        return ()

    def status_errors(self, data: Json, old: Json) -> Iterable[FieldError]:
        return ()

    def is_held(self, data: Json) -> bool:
        """Whether the kind's own finalizers hold the object, besides those in its metadata."""
        return False

    def grace_seconds(self, data: Json, asked: int | None) -> int | None:
        """How long the object stays after its deletion; None if this kind goes at once."""
        return None

    def warnings(self, data: Json) -> list[str]:
        return []


def _keep(data: Json, old: Json, field: str) -> None:
    if field in old:
        data[field] = old[field]
    else:
        data.pop(field, None)


def _count_generation(data: Json) -> None:
    data["metadata"]["generation"] = data["metadata"].get("generation", 0) + 1
