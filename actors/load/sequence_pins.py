"""Which connection a sequence has, where it keeps one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

One = TypeVar("One", bound=Hashable)


class Pins(Generic[One]):
    """Connections by key of their sequence; one may have several. A sequence whose connection is gone has none."""

    def __init__(self) -> None:
        self._by_key: dict[int, One] = {}
        self._keys: dict[One, set[int]] = {}

    def of(self, key: int | None) -> One | None:
        """The connection of that sequence."""
        return None if key is None else self._by_key.get(key)

    def holds(self, connection: One) -> bool:
        """Whether it is any sequence's."""
        return connection in self._keys

    def keep(self, key: int | None, connection: One) -> None:
        """From now on it is that sequence's."""
        if key is not None:
            self._by_key[key] = connection
            self._keys.setdefault(connection, set()).add(key)

    def release(self, key: int) -> One | None:
        """The sequence is over; the connection that it had."""
        connection = self._by_key.pop(key, None)
        if connection is not None:
            keys = self._keys[connection]
            keys.discard(key)
            if not keys:
                del self._keys[connection]
        return connection

    def drop(self, connection: One) -> None:
        """The connection is gone, or takes no more requests."""
        for key in self._keys.pop(connection, ()):
            del self._by_key[key]
