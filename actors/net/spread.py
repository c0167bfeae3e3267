"""Over the addresses of one server's name: where its next connection goes, how many each has had, which is left out.

at the start    A B A B …        each to the address with the fewest, among equals the first
B takes none    A A A …          it is left out, and told
no one does     A B …            all are tried again
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Sequence

from squall.actors.net.stream import Address
from squall.scenarios.records import AddressFacts
from squall.scenarios.units import NS_PER_S

SILENT = "it takes no connections"
PATIENCE_NS = 5 * NS_PER_S
"""For the connections that went to silent addresses first."""
_OWN = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


def is_own(error: OSError) -> bool:
    """Whether a connection failed for want of something here, such as files: no address is to blame."""
    return error.errno in _OWN


class Spread:
    """Of one client. Addresses are known by their number."""

    def __init__(self, addresses: Sequence[Address], is_one_at_a_time: bool = False) -> None:
        """`is_one_at_a_time`: all go to the first address that takes connections."""
        self.addresses = tuple(addresses)
        self._is_one_at_a_time = is_one_at_a_time
        self._n_now = [0] * len(self.addresses)
        self._n_made = [0] * len(self.addresses)
        self._why = [""] * len(self.addresses)
        self._is_out = [False] * len(self.addresses)

    @property
    def has_several(self) -> bool:
        """Whether connections go to more than one address."""
        return len(self.addresses) > 1 and not self._is_one_at_a_time

    def take(self) -> int:
        """Where the next connection goes, which counts from now on; `release` or `leave_out` follows."""
        numbers = [number for number, is_out in enumerate(self._is_out) if not is_out]
        found = numbers[0] if self._is_one_at_a_time else min(numbers, key=self._n_now.__getitem__)
        self._n_now[found] += 1
        return found

    def came_about(self, number: int) -> None:
        """A connection to that address stands."""
        self._n_made[number] += 1

    def release(self, number: int) -> None:
        """A connection to that address is gone."""
        self._n_now[number] -= 1

    def leave_out(self, number: int, why: str) -> bool:
        """An address took no connection; whether another is left. Where none is, all are tried again."""
        self._is_out[number] = True
        self._why[number] = why
        if not all(self._is_out):
            return True
        self._is_out = [False] * len(self.addresses)
        return False

    def leave_out_silent(self, numbers: Collection[int]) -> bool:
        """Leaves out the addresses of those numbers, which said nothing; False, and none is, if that is every one."""
        if len(set(numbers)) >= len(self.addresses):
            return False
        for number in sorted(numbers):
            self.leave_out(number, SILENT)
        return True

    def used(self, server: str) -> tuple[AddressFacts, ...]:
        """Of each address, in the order of their text."""
        return tuple(
            sorted(
                (
                    AddressFacts(
                        server=server,
                        address=str(address),
                        n_connections=n_made,
                        why_left_out=why if is_out else "",
                    )
                    for address, n_made, why, is_out in zip(
                        self.addresses, self._n_made, self._why, self._is_out, strict=True
                    )
                ),
                key=lambda one: one.address,
            )
        )
