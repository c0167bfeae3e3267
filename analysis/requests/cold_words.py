"""How a phase began, in a line, as `cold_words.j2` says it: for the screen, the report, promises and findings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from squall.analysis.requests.cold import ColdFigures, Stretch, WarmUpAdvice
from squall.analysis.wording import macros

_say = partial(macros, "squall.analysis.requests", "cold_words.j2")


def cold_lines(cold: Mapping[str, ColdFigures] | None) -> list[str]:
    """A line for each phase whose beginning, or end, is unlike the rest."""
    return [cold_text(one) for one in (cold or {}).values() if one.is_stated]


def cold_text(one: ColdFigures) -> str:
    """`cold: the first 900 ms of burst hold 64.0 % of the late (1,212 of 1,888); without them p95 7.10 ms; …`."""
    return str(_say().cold(one))


def stretches_text(stretches: tuple[Stretch, ...], phase: str) -> str:
    """`the first 900 ms of burst`, or `3 stretches of burst, 1.20 s in all,`."""
    return str(_say().stretches(stretches, phase))


def advice_text(one: WarmUpAdvice | None) -> str:
    """The warm-up that would have covered it; empty for None."""
    return str(_say().advice(one))
