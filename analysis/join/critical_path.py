"""The critical path of each request that passed several executions of a server, and what each step waited for.

    request    │ tokenize ───│    │ embed ──────────────────│  │ rank ──│
                             │ filter ─────│
                                    │ child ───│
    critical path  tokenize        embed                         rank          read from the end: before each step the
                                                                               one that ends last before that begins

What lies within a step of the path, as a model that another one calls, is never on it: that time is the outer one's.
"""

from __future__ import annotations

import numpy as np

from squall.analysis.arrays import Bools, Int64s


def critical_paths(owner: Int64s, start_ns: Int64s, end_ns: Int64s, place: Int64s) -> tuple[Bools, Bools]:
    """Whether each execution is on the path of its `owner`, and whether it is the longest step of that.

    (n,) arrays in any order; executions of one owner have different places, which are in order of start. Of steps that
    end together the one that starts first is on it, of equally long ones the one further from the end is the longest.
    """
    order = np.lexsort((place, start_ns, -end_ns, owner))
    path, rank = _grouped(owner[order])
    start, end = start_ns[order], end_ns[order]
    n_paths = int(path[-1]) + 1 if len(path) else 0
    begins_ns = np.full(n_paths, np.iinfo(np.int64).max)
    longest_ns, longest = np.full(n_paths, np.iinfo(np.int64).min), np.zeros(n_paths, np.intp)
    is_on_path, is_longest = np.zeros(len(path), np.bool_), np.zeros(len(path), np.bool_)
    for rows in _by_rank(rank):  # the last to end of every path, then the second to last
        rows = rows[end[rows] <= begins_ns[path[rows]]]
        is_on_path[rows] = True
        begins_ns[path[rows]] = start[rows]
        longer = rows[end[rows] - start[rows] >= longest_ns[path[rows]]]
        longest_ns[path[longer]], longest[path[longer]] = end[longer] - start[longer], longer
    is_longest[longest] = True
    found_on_path, found_longest = np.empty_like(is_on_path), np.empty_like(is_longest)
    found_on_path[order], found_longest[order] = is_on_path, is_longest
    return found_on_path, found_longest


def _grouped(owner: Int64s) -> tuple[Int64s, Int64s]:
    """Of sorted owners the number of each row's, from 0, and its rank among the rows of that."""
    is_first = np.ones(len(owner), np.bool_)
    is_first[1:] = owner[1:] != owner[:-1]
    number = np.cumsum(is_first) - 1
    return number, np.arange(len(owner)) - np.flatnonzero(is_first)[number]


def _by_rank(rank: Int64s) -> list[Int64s]:
    """Rows of each rank, from 0."""
    order = np.argsort(rank, kind="stable")
    return np.split(order, np.cumsum(np.bincount(rank))[:-1]) if len(rank) else []
