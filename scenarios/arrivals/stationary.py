"""The stationary law of a Markov chain, by sums, products and quotients of whole rows in one order: the same bits on
every CPU, which a least-squares solution by LAPACK is not."""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def stationary_shares(jumps: Matrix) -> list[float]:
    """How often each state is entered in the long run, relative to the others; 0 for one that is left for ever.

    `jumps[i][j]`, i not j, is the weight of j after i; the diagonal is not used. By elimination without a subtraction
    (Grassmann, Taksar, Heyman, Operations Research 33, 1985). Raises ValueError where the chain has more than one
    closed class.
    """
    reached = [_reached(jumps, state) for state in range(len(jumps))]
    closed = {frozenset(after) for after in reached if all(reached[state] == after for state in after)}
    if len(closed) != 1:
        raise ValueError("jumps: some states cannot reach each other, so that there is no one mean rate")
    states = sorted(closed.pop())
    found = [0.0] * len(jumps)
    for state, share in zip(
        states, _eliminated([[jumps[i][j] for j in states] for i in states]), strict=True
    ):
        found[state] = share
    return found


def _reached(jumps: Matrix, first: int) -> set[int]:
    """The states that follow `first`, at once or later."""
    found: set[int] = set()
    todo = [first]
    while todo:
        state = todo.pop()
        new = {j for j, weight in enumerate(jumps[state]) if weight > 0 and j != state} - found
        found |= new
        todo += new
    return found


def _eliminated(weights: list[list[float]]) -> list[float]:
    """Shares of the states of one class: each is taken out, from the last on, its paths being added to the rest."""
    for last in range(len(weights) - 1, 0, -1):
        out = 0.0
        for j in range(last):
            out += weights[last][j]
        for i in range(last):
            weights[i][last] /= out
            for j in range(last):
                weights[i][j] += weights[i][last] * weights[last][j]
    shares = [1.0]
    for state in range(1, len(weights)):
        share = 0.0
        for i in range(state):
            share += shares[i] * weights[i][state]
        shares.append(share)
    return shares
