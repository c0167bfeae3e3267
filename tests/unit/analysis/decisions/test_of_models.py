"""Promises about one of several models: only requests that ask it count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from squall.analysis.decisions.figures import PromiseFigures
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from tests.known import known
from tests.synthetic_runs import MODEL, OTHER, SLOWER_NS, SyntheticRun, synthesise_two_models
from tests.unit.analysis.decisions.test_of_run import promised, screen_of

MakeRun = Callable[..., RunStore]
MS = 1_000_000
PLACES = (("server-0", MODEL), ("server-0", OTHER))


@pytest.fixture
def mixed() -> SyntheticRun:
    """`OTHER` answers `SLOWER_NS` later; nothing is derived."""
    run = synthesise_two_models(places=PLACES)
    run.derived = False
    return run


def held(make_run: MakeRun, run: SyntheticRun, promises: dict[str, str]) -> dict[str, PromiseFigures]:
    return {one.scope: one for one in known(summarise(make_run(promised(run, promises))).promises)}


def response_ns(run: SyntheticRun, model: str) -> list[float]:
    """Of its requests in the measured phase, sorted; infinite of one that failed."""
    rows = run.tables["requests"]
    return sorted(
        done - due if outcome == "ok" else float("inf")
        for kind, phase, outcome, done, due in zip(
            *(rows[name] for name in ("request_kind", "phase", "outcome", "done_ns", "scheduled_ns")),
            strict=True,
        )
        if (kind, phase) == (model, "burst")
    )


def test_the_promise_of_one_model_is_kept_while_the_others_is_broken(
    make_run: MakeRun, mixed: SyntheticRun
) -> None:
    of_model, of_other = response_ns(mixed, MODEL), response_ns(mixed, OTHER)
    n = len(of_model)
    rank = -(-n * 90 // 100) - 1
    limit = of_model[rank] + SLOWER_NS // 2  # between the two p90
    assert of_model[rank] < limit < of_other[rank]
    condition = f"p(90)<{limit / MS:.6f}ms"
    found = held(
        make_run,
        mixed,
        {f"response{{model:{name}}}": condition for name in (MODEL, OTHER)} | {"failures": "rate<5%"},
    )
    kept, broken = found[f"{{model:{MODEL}}}"], found[f"{{model:{OTHER}}}"]
    assert (kept.verdict, kept.n, kept.value) == ("kept", n, of_model[rank])
    assert (broken.verdict, broken.n, broken.value) == ("broken", n, of_other[rank])
    assert broken.n_late == sum(one >= limit for one in of_other)
    assert broken.late_by_model == {}, "it is about one model"
    assert found[""].n == 2 * n


def test_of_requests_of_both_the_model_of_most_late_ones_is_named(
    make_run: MakeRun, mixed: SyntheticRun
) -> None:
    of_model, of_other = response_ns(mixed, MODEL), response_ns(mixed, OTHER)
    limit = of_model[len(of_model) // 2]
    store = make_run(promised(mixed, {"response": f"p(95)<{limit / MS:.6f}ms"}))
    summary = summarise(store)
    (broken,) = known(summary.promises)
    late = {name: sum(one >= limit for one in own) for name, own in ((MODEL, of_model), (OTHER, of_other))}
    assert [(name, one.n_late) for name, one in broken.late_by_model.items()] == [
        (OTHER, late[OTHER]),
        (MODEL, late[MODEL]),
    ]
    text = " ".join(" ".join(screen_of(summary)).split())
    assert (
        f"most late ask {OTHER}: {late[OTHER]:,} of {sum(late.values()):,}, of {len(of_other):,} that do"
        in text
    )


def test_it_holds_within_windows_bursts_and_phases(make_run: MakeRun, mixed: SyntheticRun) -> None:
    """No request of `OTHER` is in time, and of `MODEL` all that ended ok."""
    every = ("window:4s", "burst:each", "burst:in", "burst:out", "phase:burst")
    promises = {
        f"goodput{{model:{name},{tags},within:1s}}": "rate>0.5" for tags in every for name in (MODEL, OTHER)
    }
    rows = mixed.tables["requests"]
    rows["outcome"] = [
        "timeout" if kind == OTHER else outcome
        for kind, outcome in zip(rows["request_kind"], rows["outcome"], strict=True)
    ]
    found = list(held(make_run, mixed, promises).values())
    assert len(found) == len(promises)
    for kept, broken in zip(found[::2], found[1::2], strict=True):
        assert [one.verdict for one in (kept, broken)] == ["kept", "broken"]
        assert broken.n == broken.n_late > 0
        assert kept.n_parts == broken.n_parts == broken.n_parts_broken


def test_a_request_of_which_nobody_knows_the_model_may_be_of_any(
    make_run: MakeRun, mixed: SyntheticRun
) -> None:
    kinds = mixed.tables["requests"]["request_kind"]
    for at, kind in enumerate(kinds):
        kinds[at] = "" if at % 4 == 0 else kind
    found = held(make_run, mixed, {f"response{{model:{name}}}": "p(80)<10s" for name in (MODEL, OTHER)})
    other, model = found[f"{{model:{OTHER}}}"], found[f"{{model:{MODEL}}}"]
    assert (
        other.n_unknown
        == model.n_unknown
        == kinds.count("")
        - sum(
            kind == "" and phase != "burst"
            for kind, phase in zip(kinds, mixed.tables["requests"]["phase"], strict=True)
        )
    )
    assert {one.verdict for one in found.values()} == {"undecided"}
    assert model.reason == f"of {model.n_unknown:,} requests it is not known which model they ask"
