"""Objects of one kind by key, in arrival order, with a version that tells whether anything changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from stowplan.api.meta import Object

T = TypeVar("T", bound=Object)


class ObjectStore(Generic[T]):
    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self._followers: list[Callable[[T | None, T | None], None]] = []
        self.version = 0
        self.is_served = True
        """False as long as the API server is not known to have the kind, as with a CRD not yet installed."""

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def follow(self, follower: Callable[[T | None, T | None], None]) -> None:
        """Call `follower(old, new)` after each change; None stands for an object that is not there."""
        self._followers.append(follower)

    def put(self, item: T) -> None:
        old = self._objects.get(item.key)
        self._objects[item.key] = item
        self.version += 1
        for follower in self._followers:
            follower(old, item)

    def remove(self, key: str) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            self.version += 1
            for follower in self._followers:
                follower(old, None)
