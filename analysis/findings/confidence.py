"""How sure a finding is: high, medium or low, with every reason why it is not high."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from squall.analysis.findings.rule import Classification, Measures
from squall.analysis.limits import LIMITS
from squall.analysis.wording import count_text, share_text
from squall.scenarios.records import Frozen

LEVELS = ("high", "medium", "low")
NO_RULE = ("low", "no rule holds")

CLEAR_MARGIN = 0.25
"""A quarter beyond its threshold: thresholds are set to a quarter at best."""
BARE_MARGIN = 0.05
"""Below it, another run of the same seed may fall on the other side."""
LEAST_BATCHES = 30
"""Fewer, and one odd batch moves a mean by more than 3 %; of a rule about requests, so many of these."""
ATTRIBUTION_RATIO = 0.99
"""Share of operations on the GPU that are tied to a batch; what is not tied is missing from head, body and tail."""
TAKEN_RATIO = LIMITS.taken_ratio / 2
"""CPU that others had, of what the server could have used, or time of its GPU: beyond it times are not the server's
alone, unless no more than `CONSEQUENCE_RATIO` of the response times comes of it."""
CONSEQUENCE_RATIO = LIMITS.consequence_ratio / 2
FOREIGN_HEAT_RATIO = 0.05
"""Share of a GPU's time that others may have before its heat and power are said to be theirs, too."""
PROFILING_RATIO = 1.2
"""p50 of profiled over bare runs: beyond it the report shows the profiler as much as the server."""

Reason = tuple[str, str]
"""The level that a finding has at most, and why."""


class RunState(Frozen):
    """What of the whole run weakens its findings: losses of its manifest, its self-checks that are not met, and the p50
    of profiled over that of bare runs where it is one of pairs (`squall.analysis.verdict.profiling`)."""

    losses: Sequence[str] = ()
    unmet_checks: Sequence[str] = ()
    profiling_ratio: float | None = None

    @property
    def reasons(self) -> Iterator[Reason]:
        """Losses of the run, and self-checks that are not met."""
        if self.losses:
            yield "medium", f"the run lost something: {self.losses[0]}"
        if self.unmet_checks:
            yield "medium", f"self-checks not met: {', '.join(self.unmet_checks)}"


def reasons_of(found: Classification, measures: Measures, state: RunState) -> Iterator[Reason]:
    """Why a classification that names a rule is not of high confidence; low where it names none."""
    named = found.named
    if named is None:
        yield NO_RULE
        return
    margin = named.margin or 0.0
    if margin < BARE_MARGIN:
        yield "low", f"at its threshold: margin {margin:.2f}"
    elif margin < CLEAR_MARGIN:
        yield "medium", f"near its threshold: margin {margin:.2f}"
    n, noun = measures.get(named.rule.counted), named.rule.counted.removeprefix("n_")
    if n is None or n < LEAST_BATCHES:
        yield "low", f"{count_text(n)} {noun}, fewer than {LEAST_BATCHES}"
    if named.rule.needs_report:
        yield from _of_report(measures, state)
    own = {*named.rule.tried, *named.rule.evidence}
    if "cpu_taken_ratio" not in own:
        yield from cpu_reasons(measures)
    yield from _gpu_reasons(own, measures)
    if before := found.unassessed:
        yield "medium", f"not assessed before it: {', '.join(one.rule.name for one in before)}"
    yield from state.reasons


def cpu_reasons(measures: Measures) -> Iterator[Reason]:
    """That others had much of the CPU that the server could have used, unless that is known to have made little of the
    response times."""
    taken, made = measures.get("cpu_taken_ratio"), measures.get("cpu_consequence_ratio")
    if taken is None or taken <= TAKEN_RATIO or (made is not None and made <= CONSEQUENCE_RATIO):
        return
    of_times = "" if made is None else f", which made {share_text(made)} of the response times"
    yield (
        "low" if taken > LIMITS.taken_ratio else "medium",
        f"clients, squall and others had {share_text(taken)} of the CPU that the server could have used{of_times}",
    )


def _gpu_reasons(own: set[str], measures: Measures) -> Iterator[Reason]:
    """That other processes used the GPU, of a rule with the measures `own`. They heat it and draw its power: a rule
    about throttling is high only where they are known not to. That they used it is, where it was compared with moments
    or a GPU without them."""
    foreign, made = measures.get("gpu_foreign_ratio"), measures.get("gpu_consequence_ratio") or 0.0
    if "gpu_foreign_ratio" in own:
        if measures.get("gpu_is_bound"):
            yield "medium", "nothing was measured without them: it is the most that they can explain"
    elif "throttled_ratio" in own:
        if foreign is None:
            yield "medium", "it is not known whether other processes use its GPU"
        elif foreign >= FOREIGN_HEAT_RATIO:
            yield "low", f"other processes had {share_text(foreign)} of its GPU, and heat it too"
    elif foreign is not None and foreign > TAKEN_RATIO and made > CONSEQUENCE_RATIO:
        yield (
            "low" if foreign > LIMITS.taken_ratio else "medium",
            f"other processes had {share_text(foreign)} of its GPU: {share_text(made)} of the response times",
        )


def _of_report(measures: Measures, state: RunState) -> Iterator[Reason]:
    tied = measures.get("attribution_ratio")
    if tied is None:
        yield "medium", "share of operations tied to batches unknown"
    elif tied < ATTRIBUTION_RATIO:
        level = "medium" if tied >= 1 - 10 * (1 - ATTRIBUTION_RATIO) else "low"
        yield level, f"{share_text(tied)} of the operations on the GPU are tied to a batch"
    profiled, n_held = measures.get("profiled_ratio"), measures.get("n_profiled_in_windows")
    # windows are spread over the phase: how many batches they hold counts, not their share
    if n_held is not None and n_held < LEAST_BATCHES:
        yield "low", f"{count_text(n_held)} batches lie in windows, fewer than {LEAST_BATCHES}"
    elif n_held is None and profiled is not None and profiled < 0.5:
        yield "medium", f"only {share_text(profiled)} of its batches were profiled"
    cost = state.profiling_ratio
    if cost is not None and cost > PROFILING_RATIO:
        yield "low", f"profiling made the median latency {cost:.2f} times as long"
