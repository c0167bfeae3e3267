"""Which cores senders get for themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from squall.actors.process.cores import Cores, Split, core_list, split_cores
from squall.scenarios.errors import ClusterError

ALONE: Mapping[int, Sequence[int]] = {}


def paired(n: int) -> dict[int, tuple[int, int]]:
    """Hardware threads as Linux numbers them: i and i + n / 2 are of one core."""
    return {core: (core % (n // 2), core % (n // 2) + n // 2) for core in range(n)}


@pytest.mark.parametrize(
    ("wanted", "n_workers", "n_usable", "siblings", "of_workers", "n_others"),
    [
        ("auto", 2, 8, ALONE, (7, 6), 6),
        ("auto", 1, 8, ALONE, (7,), 7),
        ("auto", 2, 7, ALONE, (), 0),  # too few cores
        ("auto", 3, 8, ALONE, (), 0),  # more than a quarter
        ("auto", 2, 16, paired(16), (7, 6), 12),  # a core each, its other thread left idle
        ("auto", 2, 8, paired(8), (3, 7), 6),  # a thread each of one core
        ("auto", 0, 64, ALONE, (), 0),
        ("off", 2, 64, ALONE, (), 0),
        (1, 2, 2, ALONE, (1, 1), 1),
        (2, 2, 8, paired(8), (3, 2), 4),
        ((0, 2), 3, 4, ALONE, (0, 2, 0), 2),
        ((7,), 1, 8, paired(8), (7,), 7),  # a list is taken at its word
    ],
)
def test_the_split_of_a_node(
    wanted: Cores,
    n_workers: int,
    n_usable: int,
    siblings: Mapping[int, Sequence[int]],
    of_workers: tuple[int, ...],
    n_others: int,
) -> None:
    found = split_cores(wanted, n_workers, range(n_usable), siblings)
    assert found.of_workers == of_workers
    assert len(found.others) == n_others
    assert not set(found.others) & set(of_workers)
    assert (found == Split()) == (not of_workers)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (2, "2 of the 2 cores here would leave none for others"),
        ((5,), r"core 5 may not be used here; there are 0 to 1"),
        ((0, 1), "no core would be left for others"),
    ],
)
def test_cores_that_are_not_there_are_refused(wanted: Cores, why: str) -> None:
    with pytest.raises(ClusterError, match=f"clients.cores: {why}"):
        split_cores(wanted, 1, (0, 1), ALONE)


def test_the_kernels_lists_of_cores() -> None:
    assert core_list("0,2-4\n") == [0, 2, 3, 4]
    assert core_list("") == []
