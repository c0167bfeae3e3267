"""Was the load delivered, and could it be measured? Whether a run's numbers are about the server.

Every check states its figure, its limit and what it means (`checks`). One that is not met, or of which the table is
absent, makes the run INVALID. One that has too few samples, or whose figure had no consequence for the sends, is not
assessed and decides nothing. The checks look at the phases of kind `measure` alone, save for completeness, which holds
for the whole run. A closed-loop run has no schedule to hold its sends to: there Little's law takes the place of the
checks of load and lag (`user_checks`). What a server does with a load that was delivered is data: failures beyond what
the user expects lead the reasons, of a VALID run too. Reasons come in the order of their causes (`causes`).
"""

from __future__ import annotations

from squall.analysis.storage.manifest import Manifest
from squall.analysis.storage.sealed import Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.verdict.bottleneck import find_bottleneck
from squall.analysis.verdict.causes import causes_of
from squall.analysis.verdict.check import CLIENT, SENDS
from squall.analysis.verdict.checks import CHECKS, GPU_CHECK
from squall.analysis.verdict.run_view import RunView, has_measured
from squall.analysis.verdict.server_checks import judge_starvation, starved_clients, worst
from squall.analysis.wording import duration_text


def judge_run(store: RunStore) -> Verdict:
    """`judge` over the tables of a run, open or sealed. Raises `MissingTable` if there are no requests."""
    return judge(RunView.read(store))


def judge(view: RunView) -> Verdict:
    """The verdict on a run from its requests, samples and its manifest's plan, phases, nodes and losses.

    Of the samples only those of the workers are required: without `cpu_samples` of the server's node who had its CPU
    is not assessed, and no check.
    """
    manifest = view.manifest
    view.results.clear()
    for check in CHECKS:
        if check.where(view) and (figure := check.figure(view)) is not None:
            view.results[check.name] = check, check.held(figure)
    killed = _driver_ended(manifest)  # then nobody was left to send
    fell_behind = not killed and has_measured(view) and bool(view.unmet(SENDS, CLIENT))
    bottleneck = find_bottleneck(view) if fell_behind else None
    # workers that others leave no CPU at all take no samples, and have no bottleneck of their own
    may_starve = bottleneck is not None or (fell_behind and not manifest.losses)
    starvation = worst([judge_starvation(one) for one in view.cpus])
    causes = causes_of(
        view.failures,
        starvation,
        starved_clients(view.cpus) if may_starve else "",
        bottleneck,
        killed,
        view.results[GPU_CHECK.name][1].reason if GPU_CHECK.name in view.results else "",
    )
    # what was not sent for the kill says nothing of the clients: no advice to add any
    reasons = [
        result.reason
        for check, result in view.results.values()
        if result.is_unmet and not (killed and check.shows == SENDS)
    ]
    return Verdict(
        status="INVALID" if reasons or killed else "VALID",
        reasons=tuple(dict.fromkeys([*(cause.sentence for cause in causes), *reasons])),
        causes=causes,
        failures=view.failures,
        checks=tuple(result for _, result in view.results.values()),
        client_bottleneck=bottleneck,
        starvation=starvation,
    )


def _driver_ended(manifest: Manifest) -> str:
    """When the driver of a run that was resumed had been killed under load, as a sentence; empty if it was not."""
    at_ns = manifest.driver_ended_ns
    if at_ns is None:
        return ""
    phase = next((one for one in reversed(manifest.phases) if one.start_ns <= at_ns), None)
    place = f"{duration_text(at_ns - phase.start_ns)} into phase {phase.name}" if phase else "before the load"
    return (
        f"The run's driver was killed {place}, and the load ended with it: what was due later was not sent, through no"
        " fault of clients or server; run it again."
    )
