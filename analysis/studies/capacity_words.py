"""The answer in a sentence, and the lines of the screen: words of `decisions.html.j2`."""

from __future__ import annotations

from collections.abc import Sequence

from squall.analysis.report.templates import decision
from squall.analysis.studies.capacity_answer import Answer, Settings


def sentence(answer: Answer, settings: Settings) -> str:
    """What answers the question.

    `carries 300/s (95 %: 291 to 309) within p(95)<50ms; safe for 9 of 10 bursts: 281/s`
    """
    return decision("capacity", answer, settings)[0]


def fact_lines(answer: Answer, settings: Settings) -> list[str]:
    """What stands below the sentence."""
    return decision("capacity_facts", answer, settings)


def lines(answers: Sequence[Answer], settings: Settings) -> list[str]:
    """The screen: the answer first; of several sets of servers each."""
    found = []
    for answer in answers:
        head = f"{answer.variant}: " if len(answers) > 1 else ""
        found += [f"{head}{sentence(answer, settings)}", *fact_lines(answer, settings), *answer.notes]
    return [*found, *efficiency_lines(answers)]


def efficiency_lines(answers: Sequence[Answer]) -> list[str]:
    """Capacity of all servers against that of one, where both are known: C(N) / (N C(1))."""
    return [
        f"scaling efficiency of {name}: {ratio:.2f} of so many single ones"
        for name, ratio in scaling(answers).items()
    ]


def scaling(answers: Sequence[Answer]) -> dict[str, float]:
    """C(N) / (N C(1)) of each set of several servers, by its name."""
    known = {one.n_servers: one for one in answers if one.capacity_hz is not None}
    if 1 not in known or known[1].capacity_hz is None:
        return {}
    single_hz = known[1].capacity_hz
    return {
        one.variant: one.capacity_hz / (n * single_hz)
        for n, one in known.items()
        if n > 1 and one.capacity_hz is not None
    }
