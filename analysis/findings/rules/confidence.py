"""How sure a finding is: high, medium or low, with every reason why it is not high."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from squall.analysis.findings.rules.classifier import Classification
from squall.analysis.findings.rules.rule import Measures, Rule
from squall.analysis.limits import LIMITS
from squall.analysis.wording import count_text, share_text

LEVELS = ("high", "medium", "low")
NO_RULE = "no rule holds"


@dataclass(frozen=True)
class Demands:
    """What a finding must meet to be of high confidence, each with its reason."""

    clear_margin: float = 0.25
    """A quarter beyond its threshold: thresholds are set to a quarter at best."""
    bare_margin: float = 0.05
    """Below it, another run of the same seed may fall on the other side."""
    n_batches: int = 30
    """Fewer, and one odd batch moves a mean by more than 3 %; of a rule about requests, so many of these."""
    attribution_ratio: float = 0.99
    """Share of operations on the GPU that are tied to a batch; what is not tied is missing from head, body and tail."""
    taken_ratio: float = LIMITS.taken_ratio / 2
    """CPU that others had, of what the server could have used, or time of its GPU: beyond it times are not the server's
    alone, unless no more than `consequence_ratio` of the response times comes of it."""
    consequence_ratio: float = LIMITS.consequence_ratio / 2
    foreign_heat_ratio: float = 0.05
    """Share of a GPU's time that others may have before its heat and power are said to be theirs, too."""
    profiling_ratio: float = 1.2
    """p50 of profiled over bare runs: beyond it the report shows the profiler as much as the server."""


DEMANDS = Demands()


@dataclass(frozen=True)
class RunState:
    """What of the whole run weakens its findings: losses of its manifest, its self-checks that are not met, and the p50
    of profiled over that of bare runs where it is one of pairs (`squall.analysis.compare.overhead`)."""

    losses: Sequence[str] = ()
    unmet_checks: Sequence[str] = ()
    profiling_ratio: float | None = None


@dataclass
class Confidence:
    """`level` is one of LEVELS; `reasons` say why it is not high."""

    level: str = LEVELS[0]
    reasons: list[str] = field(default_factory=list)

    def lower(self, level: str, reason: str) -> None:
        """At most `level`, for `reason`."""
        self.level = max(self.level, level, key=LEVELS.index)
        self.reasons.append(reason)


def confidence_of(
    found: Classification, measures: Measures, state: RunState, demands: Demands = DEMANDS
) -> Confidence:
    """The confidence in a classification that names a rule; low where it names none."""
    confidence = Confidence()
    named = found.named
    if named is None:
        confidence.lower("low", NO_RULE)
        return confidence
    margin = named.margin or 0.0
    if margin < demands.bare_margin:
        confidence.lower("low", f"at its threshold: margin {margin:.2f}")
    elif margin < demands.clear_margin:
        confidence.lower("medium", f"near its threshold: margin {margin:.2f}")
    n, noun = measures.get(named.rule.counted), named.rule.counted.removeprefix("n_")
    if n is None or n < demands.n_batches:
        confidence.lower("low", f"{count_text(n)} {noun}, fewer than {demands.n_batches}")
    if named.rule.needs_report:
        _weigh_report(confidence, measures, state, demands)
    if "cpu_taken_ratio" not in named.rule.measures:
        weigh_cpu(confidence, measures, demands)
    weigh_gpu(confidence, named.rule, measures, demands)
    if before := found.unassessed:
        names = ", ".join(one.rule.name for one in before)
        confidence.lower("medium", f"not assessed before it: {names}")
    weigh_run(confidence, state)
    return confidence


def weigh_cpu(confidence: Confidence, measures: Measures, demands: Demands = DEMANDS) -> None:
    """Lowers it where others had much of the CPU that the server could have used, unless that is known to have made
    little of the response times."""
    taken, made = measures.get("cpu_taken_ratio"), measures.get("cpu_consequence_ratio")
    if (
        taken is None
        or taken <= demands.taken_ratio
        or (made is not None and made <= demands.consequence_ratio)
    ):
        return
    level = "low" if taken > LIMITS.taken_ratio else "medium"
    of_times = "" if made is None else f", which made {share_text(made)} of the response times"
    confidence.lower(
        level,
        f"clients, squall and others had {share_text(taken)} of the CPU that the server could have used{of_times}",
    )


def weigh_gpu(confidence: Confidence, rule: Rule, measures: Measures, demands: Demands = DEMANDS) -> None:
    """Lowers it where other processes used the GPU. They heat it and draw its power: a rule about throttling is high
    only where they are known not to. That they used it is, where it was compared with
    moments or a GPU without them."""
    if "gpu_foreign_ratio" in rule.measures:
        if measures.get("gpu_is_bound"):
            confidence.lower(
                "medium", "nothing was measured without them: it is the most that they can explain"
            )
        return
    foreign, made = measures.get("gpu_foreign_ratio"), measures.get("gpu_consequence_ratio") or 0.0
    if "throttled_ratio" in rule.measures:
        if foreign is None:
            confidence.lower("medium", "it is not known whether other processes use its GPU")
        elif foreign >= demands.foreign_heat_ratio:
            confidence.lower("low", f"other processes had {share_text(foreign)} of its GPU, and heat it too")
    elif foreign is not None and foreign > demands.taken_ratio and made > demands.consequence_ratio:
        level = "low" if foreign > LIMITS.taken_ratio else "medium"
        confidence.lower(
            level,
            f"other processes had {share_text(foreign)} of its GPU: {share_text(made)} of the response times",
        )


def weigh_run(confidence: Confidence, state: RunState) -> None:
    """Lowers it to medium for losses of the run, and for self-checks that are not met."""
    if state.losses:
        confidence.lower("medium", f"the run lost something: {state.losses[0]}")
    if state.unmet_checks:
        confidence.lower("medium", f"self-checks not met: {', '.join(state.unmet_checks)}")


def _weigh_report(confidence: Confidence, measures: Measures, state: RunState, demands: Demands) -> None:
    tied = measures.get("attribution_ratio")
    if tied is None:
        confidence.lower("medium", "share of operations tied to batches unknown")
    elif tied < demands.attribution_ratio:
        level = "medium" if tied >= 1 - 10 * (1 - demands.attribution_ratio) else "low"
        confidence.lower(level, f"{share_text(tied)} of the operations on the GPU are tied to a batch")
    profiled, n_held = measures.get("profiled_ratio"), measures.get("n_profiled_in_windows")
    if (
        n_held is not None
    ):  # windows are spread over the phase: how many batches they hold counts, not their share
        if n_held < demands.n_batches:
            confidence.lower(
                "low", f"{count_text(n_held)} batches lie in windows, fewer than {demands.n_batches}"
            )
    elif profiled is not None and profiled < 0.5:
        confidence.lower("medium", f"only {share_text(profiled)} of its batches were profiled")
    cost = state.profiling_ratio
    if cost is not None and cost > demands.profiling_ratio:
        confidence.lower("low", f"profiling made the median latency {cost:.2f} times as long")
