"""`squall capacity`: its runs, files and resuming on a simulated clock, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from squall.analysis.report.summary import summarise
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.deployed import ServingFacts
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.capacity_answer import Answer, Settings, answer_of
from squall.analysis.studies.capacity_page import plots_of
from squall.analysis.studies.capacity_rows import Row, read_rows, rows_bytes
from squall.analysis.studies.capacity_search import Found
from squall.cluster.cli import app
from squall.cluster.commands.decisions.capacity import settings_of, with_promises
from squall.cluster.commands.decisions.capacity_search import CapacitySearch, resumed_rows
from squall.cluster.commands.decisions.levels import bottleneck_text, read_run
from squall.cluster.commands.decisions.minutes import phases_s
from squall.cluster.draining import Draining
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measurer
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, StoreError
from tests.regime_runs import Batcher, diagnose, write_batched_run
from tests.simulated_runs import SimulatedRuns
from tests.synthetic_runs import synthesise

SERVICE_S = 0.01
POISSON = {"kind": "poisson", "rate": "50/s"}
PHASES: list[dict[str, Any]] = [
    {"name": "warm", "kind": "warmup", "duration": "2s", "arrivals": POISSON},
    {"name": "main", "kind": "measure", "duration": "60s", "arrivals": POISSON},
    {"name": "drain", "kind": "drain", "duration": "1s"},
]
CLOSED = [
    word
    for change in (
        "phases.main.arrivals={kind: closed, users: 3}",
        "phases.warm.arrivals={kind: closed, users: 3}",
        "promises={service: p(95)<50ms}",
    )
    for word in ("--set", change)
]
URLS = [{"url": f"http://127.0.0.1:{8_000 + 10 * place}"} for place in range(3)]


def scenario(**changes: Any) -> Scenario:
    mapping = {
        "name": "carried",
        "seed": 1,
        "model": {"name": "linear_head", "queue_delay": "20ms"},
        "phases": PHASES,
        "promises": {"response": "p(95)<76.1ms"},
    }
    return scenario_from_mapping({**mapping, **changes}, "carried.yaml")


def settings(one: Scenario, scale: Any = "time", seeds: int = 3, most: str | None = None) -> Settings:
    return settings_of(one, scale, seeds, "2%", None, most, "10%")


def searching(
    folder: Path, runs: SimulatedRuns, one: Scenario | None = None, rows: list[Row] | None = None, **more: Any
) -> CapacitySearch:
    one = one or scenario()
    folder.mkdir(exist_ok=True)
    measurer = Measurer(folder, None, Interrupts(), runs, Screen(), Draining(runs.left))
    stated = settings(one, **more)
    command = "squall capacity carried.yaml"
    return CapacitySearch(one, stated, measurer, command, rows or [], runs.read)


def stored(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "capacity.json").read_text())
    return found


def test_the_capacity_of_a_known_server_is_found_by_whole_runs(tmp_path: Path) -> None:
    runs = SimulatedRuns(SERVICE_S)
    (answer,) = searching(tmp_path, runs, seeds=5).run(by_gpus=False)
    assert (answer.kind, answer.state) == ("found", "done")
    assert answer.interval is not None
    # 0.8 of 100/s; the interval misses it in one of twenty families of seeds, and then by little
    assert answer.interval.low_hz * 0.95 < 80.0 < answer.interval.high_hz * 1.05
    assert answer.at_capacity is not None
    assert answer.at_capacity.peak_1s_hz is not None
    assert answer.at_capacity.peak_1s_hz > answer.at_capacity.rate_hz
    found = stored(tmp_path)
    assert found["answer"].startswith("carries ")
    assert " within p(95)<76.1ms; safe for 9 of 10 bursts: " in found["answer"]
    assert found["boundary_summary"]["binding_constraint"] == "response p(95)<76.1ms"
    edge = found["boundary_summary"]
    assert edge["feasible_max_hz"] < edge["infeasible_min_hz"] < 1.021 * edge["feasible_max_hz"]
    assert edge["first_breach"]["rate_hz"] > 70.0
    rows = read_rows(str(tmp_path / "probes.parquet"))
    assert len(rows) == answer.n_runs == len(runs.digests) == len(set(runs.digests))
    page = (tmp_path / "capacity.html").read_text()
    assert found["answer"][1:].replace("<", "&lt;") in page
    assert "Goodput against offered rate" in page


BESIDE_S = 12.0


class TimedRuns(SimulatedRuns):
    """Each run takes its phases and `BESIDE_S`, on `now_s`; `load_s` has the first part of each."""

    now_s = 0.0

    def __call__(self, scenario: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        self.load_s = [*getattr(self, "load_s", []), phases_s(scenario)]
        self.now_s += self.load_s[-1] + BESIDE_S
        return super().__call__(scenario, out, ray, interrupts)


@pytest.mark.parametrize("rate", ["80/s", "50/s"])
def test_the_minutes_of_a_search_are_told_before_it_begins_and_are_about_those_that_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rate: str
) -> None:
    runs = TimedRuns(SERVICE_S)
    monkeypatch.setattr("squall.cluster.measured.time.monotonic", lambda: runs.now_s)
    arrivals = {"kind": "poisson", "rate": rate}
    phases = [{**one, "arrivals": arrivals} if "arrivals" in one else one for one in PHASES]
    searching(tmp_path, runs, scenario(phases=phases)).run(by_gpus=False)
    lines = [line.removeprefix("squall ") for line in capsys.readouterr().err.splitlines()]
    told = [place for place, line in enumerate(lines) if "minutes are left" in line]
    minutes = [float(lines[place].split(" minutes")[0].split()[-1]) for place in told]
    begun = [place for place, line in enumerate(lines) if line.startswith("seed ")]
    assert told[0] == 0
    assert lines[0].startswith(f"3 seeds, about 16 probes to come; if these lie at {rate[:2]}.0/s, at least ")
    assert begun[0] < told[1] < begun[1], "with what a run takes beside its phases, after the first"
    assert f"and {BESIDE_S:.0f} s a run beside them (measured over 1 run)" in lines[told[1]]
    if rate == "80/s":  # where the edges are; the number of probes is a mean of many searches
        assert minutes[0] == pytest.approx(sum(runs.load_s) / 60, rel=0.3)
        assert minutes[1] == pytest.approx((runs.now_s - runs.load_s[0] - BESIDE_S) / 60, rel=0.3)
    n_first = sum(place < told[2] for place in begun)
    rest_s = sum(runs.load_s[n_first:]) + BESIDE_S * (len(runs.load_s) - n_first)
    assert minutes[2] == pytest.approx(rest_s / 60, rel=0.3), (
        "from any start, once the first seed has its edge"
    )


def test_a_search_that_was_cut_off_goes_on_without_a_run_twice(tmp_path: Path) -> None:
    whole = SimulatedRuns(SERVICE_S)
    searching(tmp_path / "whole", whole).run(by_gpus=False)
    for ends_at in (1, 6):
        folder = tmp_path / f"cut-{ends_at}"
        cut = SimulatedRuns(SERVICE_S, ends_at=ends_at)
        with pytest.raises(KeyboardInterrupt):
            searching(folder, cut).run(by_gpus=False)
        rest = SimulatedRuns(SERVICE_S)
        rows = resumed_rows(folder, settings(scenario()))
        assert len(rows) == ends_at
        searching(folder, rest, rows=rows).run(by_gpus=False)
        assert cut.digests + rest.digests == whole.digests
        ours, theirs = stored(folder), stored(tmp_path / "whole")
        for found in (ours, theirs):
            found.pop("minutes")
            for where in (found["at_capacity"], found["boundary_summary"]["first_breach"]):
                where.pop("run")
        assert ours == theirs


def test_another_scenario_promise_or_scale_is_not_resumed(tmp_path: Path) -> None:
    searching(tmp_path, SimulatedRuns(SERVICE_S), seeds=1).run(by_gpus=False)
    assert resumed_rows(tmp_path, settings(scenario(), seeds=7))
    other = scenario(promises={"response": "p(95)<80ms"})
    with pytest.raises(ScenarioError, match=r"scenario or promises changed since: [0-9a-f]{12} then"):
        resumed_rows(tmp_path, settings(other))
    with pytest.raises(ScenarioError, match="--scale changed since: time then, amplitude now"):
        resumed_rows(tmp_path, settings(scenario(), "amplitude"))
    with pytest.raises(ScenarioError, match="no search to go on with"):
        resumed_rows(tmp_path / "nowhere", settings(scenario()))
    (tmp_path / "probes.parquet").write_bytes(b"PAR1")
    with pytest.raises(StoreError, match="is not the probes of a search"):
        resumed_rows(tmp_path, settings(scenario()))
    (tmp_path / "capacity.json").write_text("{}")
    with pytest.raises(ScenarioError, match="is not that of a search"):
        resumed_rows(tmp_path, settings(scenario()))


def test_a_trace_that_was_made_anew_is_not_resumed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    phases = [PHASES[0], {**PHASES[1], "arrivals": {"kind": "trace", "file": str(trace)}}, PHASES[2]]
    one = scenario(phases=phases)
    trace.write_text("".join(f"{place / 40}\n" for place in range(2_400)))
    stated = settings(one)
    (tmp_path / "capacity.json").write_text(json.dumps({"settings": asdict(stated)}))
    (tmp_path / "probes.parquet").write_bytes(rows_bytes([]))
    assert resumed_rows(tmp_path, settings(one)) == []
    trace.write_text("".join(f"{place / 41}\n" for place in range(2_400)))
    with pytest.raises(ScenarioError, match=r"the schedule \(a trace, or squall itself\) changed since"):
        resumed_rows(tmp_path, settings(one))


def test_an_invalid_run_is_run_once_more_and_then_bounds_from_above(tmp_path: Path) -> None:
    runs = SimulatedRuns(SERVICE_S, lambda _, rate_hz: "INVALID" if rate_hz > 70.0 else "VALID")
    (answer,) = searching(tmp_path, runs, seeds=2).run(by_gpus=False)
    assert (answer.kind, answer.capacity_hz, answer.interval, answer.safe) == (
        "client limit",
        None,
        None,
        None,
    )
    told = stored(tmp_path)["answer"]
    assert told.startswith("client limit: carries ")
    assert told.endswith("more could not be measured: worker-0: CPU at 99 %")
    rows = read_rows(str(tmp_path / "probes.parquet"))
    replaced = [row for row in rows if row.is_replaced]
    assert replaced
    assert all(rows[rows.index(row) + 1].digest == row.digest for row in replaced)
    assert answer.boundary_summary.infeasible_min_hz is None


def test_nothing_passes_and_nothing_fails_are_answers_of_their_own(tmp_path: Path) -> None:
    strict = scenario(promises={"response": "p(95)<5ms"})
    (answer,) = searching(tmp_path / "a", SimulatedRuns(SERVICE_S), strict).run(by_gpus=False)
    assert answer.kind == "nothing passes"
    assert (
        stored(tmp_path / "a")["answer"]
        == "nothing passes: broken at every load that was tried within p(95)<5ms"
    )
    (answer,) = searching(tmp_path / "b", SimulatedRuns(0.001), seeds=1, most="70/s").run(by_gpus=False)
    assert answer.kind == "nothing fails"
    assert "carries 70.0/s, the most that was tried" in stored(tmp_path / "b")["answer"]
    (answer,) = searching(tmp_path / "c", SimulatedRuns(SERVICE_S), most="80.6/s", seeds=3).run(by_gpus=False)
    told = stored(tmp_path / "c")["answer"]
    kinds = {one.seed: one.kind for one in answer.per_seed}
    assert sorted(kinds.values()) == ["found", "nothing fails", "nothing fails"]
    assert told.startswith(
        f"nothing fails of seed {', '.join(str(one) for one in kinds if kinds[one] != 'found')}: "
    )
    assert " in all seeds within p(95)<76.1ms" in told


def test_the_amplitude_is_named_everywhere(tmp_path: Path) -> None:
    (answer,) = searching(tmp_path, SimulatedRuns(SERVICE_S), scale="amplitude", seeds=2).run(by_gpus=False)
    found = stored(tmp_path)
    assert found["settings"]["scale"] == "amplitude"
    assert "scaled by amplitude" in found["answer"]
    assert any("amplitude" in note for note in answer.notes)
    assert "scaled by amplitude" in (tmp_path / "capacity.html").read_text()
    assert answer.kind == "found"


def test_servers_are_measured_all_one_and_one_down(tmp_path: Path) -> None:
    runs = SimulatedRuns(SERVICE_S)
    three = scenario(servers=URLS, model={"name": "linear_head"}, promises={"response": "p(95)<100ms"})
    answers = searching(tmp_path, runs, three, seeds=2).run(by_gpus=True)
    assert [(one.variant, one.n_servers, one.kind) for one in answers] == [
        ("all", 3, "found"),
        ("one", 1, "found"),
        ("one down", 2, "found"),
    ]
    found = stored(tmp_path)
    efficiency = found["scaling_efficiency_ratio"]
    # in turn, each of N servers sees gaps of N arrivals, more even than one's: it carries a little more each
    assert efficiency.keys() == {"all", "one down"}
    assert 1.0 < efficiency["one down"] < efficiency["all"] < 1.2
    single, whole = answers[1].capacity_hz, answers[0].capacity_hz
    assert single is not None
    assert whole is not None
    assert efficiency["all"] == pytest.approx(whole / (3 * single))
    assert "Capacity against servers" in (tmp_path / "capacity.html").read_text()


def test_of_several_promises_the_one_that_breaks_first_is_named(tmp_path: Path) -> None:
    promises = {"response": ["p(95)<76.1ms", "p(99)<1s"], "goodput{within:40ms}": "rate>0.9"}
    (answer,) = searching(tmp_path, SimulatedRuns(SERVICE_S), scenario(promises=promises), seeds=2).run(
        by_gpus=False
    )
    assert answer.boundary_summary.binding_constraint == "goodput{within:40ms} rate>0.9"
    # p90 of the response time is below 40 ms up to a load of about 0.75, where p95 is 60 ms
    assert answer.capacity_hz is not None
    assert 70.0 < answer.capacity_hz < 79.0
    told = stored(tmp_path)["answer"]
    assert "within p(95)<76.1ms and p(99)<1s and goodput{within:40ms} rate>0.9" in told
    rows = read_rows(str(tmp_path / "probes.parquet"))
    first, second, *_ = plots_of([answer], rows)
    assert first.y_label == "worst figure over its limit"
    assert [one["name"] for one in first.traces] == [
        "capacity, 95%",
        "seed 1",
        "seed 2",
        "seed 3",
        "seed 4",
        "limit",
    ]
    assert [one["name"] for one in second.traces] == ["ok and in time", "ok within the phases", "offered"]


def test_the_curve_of_one_promised_time_is_in_ms(tmp_path: Path) -> None:
    (answer,) = searching(tmp_path, SimulatedRuns(SERVICE_S), seeds=2).run(by_gpus=False)
    rows = read_rows(str(tmp_path / "probes.parquet"))
    plot = plots_of([answer], rows)[0]
    limit, seed = plot.traces[-1], plot.traces[1]
    assert (plot.y_label, limit["y"]) == ("response p(95), ms", [76.1, 76.1])
    own = {row.rate_hz: row.response_p95_ns for row in rows if row.seed == 1}
    assert {
        rate: pytest.approx(value * 1e6) for rate, value in zip(seed["x"], seed["y"], strict=True) if value
    } == own


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunStore, Summary]:
    run = synthesise()
    run.derived = False
    store = run.write(tmp_path_factory.mktemp("made"))
    return store, summarise(store)


def test_the_level_of_a_run_directory_is_that_of_its_measured_requests(
    made: tuple[RunStore, Summary],
) -> None:
    store, summary = made
    seen = read_run(RunResult(store.run_dir, summary, "VALID"))
    assert seen.level is not None
    assert (seen.n_servers, seen.n_server_nodes) == (1, 1)
    assert seen.level.n == summary.measure.outcomes.n
    assert seen.level.n_ok == summary.measure.outcomes.n_ok
    assert seen.level.offered_hz == pytest.approx(seen.level.n * 1e9 / summary.measure.duration_ns)


def test_what_limits_a_level_is_told_with_what_to_try_first(
    tmp_path: Path, made: tuple[RunStore, Summary]
) -> None:
    findings, *_ = diagnose(write_batched_run(tmp_path, Batcher(), (1.2,), seconds=1.0))
    _, summary = made
    told = bottleneck_text(replace(summary, findings=tuple(findings)))
    assert "An instance ends at about " in told
    assert "First: an instance more, 2 in place of 1; " in told


def test_the_delay_of_the_batchers_is_that_of_the_server_not_of_the_scenario(tmp_path: Path) -> None:
    run = synthesise()
    run.derived = False
    store = run.write(tmp_path)
    (server, facts), *_ = store.manifest.servers.items()
    serving = {"m": ServingFacts(queue_delay_ns=3_000_000), "n": ServingFacts(queue_delay_ns=1_000_000)}
    amended = replace(store.manifest, servers={server: replace(facts, serving=serving)})
    store._write_manifest(amended)  # as a run against such servers has it
    seen = read_run(RunResult(store.run_dir, None, "VALID"))
    assert seen.queue_delay_ns == 3_000_000
    runs = SimulatedRuns(SERVICE_S)
    search = searching(tmp_path / "search", runs, seeds=1)
    assert search.settings.queue_delay_ns == 20_000_000
    search.read = lambda result: replace(runs.read(result), queue_delay_ns=seen.queue_delay_ns)
    search.run(by_gpus=False)
    assert stored(tmp_path / "search")["settings"]["queue_delay_ns"] == 3_000_000


def test_a_short_run_is_marked(tmp_path: Path) -> None:
    main: dict[str, object] = {**PHASES[1], "duration": "1s"}
    phases = [main, PHASES[2]]
    (answer,) = searching(tmp_path, SimulatedRuns(SERVICE_S), scenario(phases=phases), seeds=2).run(
        by_gpus=False
    )
    assert any(note.startswith("short: the run at the capacity has ") for note in answer.notes)


def held(*texts: str, **changes: Any) -> list[str]:
    return [one.text for one in with_promises(scenario(**changes), texts, "carried.yaml").promises or ()]


def test_promises_of_the_command_line_stand_beside_the_scenarios() -> None:
    assert held("p(99)<200ms") == ["response p(95)<76.1ms", "response p(99)<200ms"]
    assert held("failures: rate<1%", promises=None) == ["failures rate<0.01"]
    assert held("response{phase:main}: p(90)<20", promises=None) == ["response{phase:main} p(90)<20ms"]
    assert held("goodput{within:80ms} rate>0.9", promises=None) == ["goodput{within:80ms} rate>0.9"]
    assert held("max < 1s", promises=None) == ["response max<1s"]


def test_no_load_is_tried_at_which_a_phase_is_too_short_to_be_measured(tmp_path: Path) -> None:
    """At 20 times its rate a phase of 20 s lasts 1 s: less may lie between two samples of the workers."""
    short = scenario(phases=[{**one, "duration": "20s"} for one in PHASES])
    base_hz = settings(short).base_hz
    stated = settings(short)
    assert stated.most_hz == pytest.approx(20.0 * base_hz)
    long = settings(scenario(phases=[{**one, "duration": "200s"} for one in PHASES]))
    assert long.most_hz == pytest.approx(100.0 * long.start_hz)
    assert long.most_reason == ""
    assert settings(short, scale="amplitude").most_hz == pytest.approx(100.0 * base_hz)
    (answer,) = searching(tmp_path, SimulatedRuns(1e-5), short, seeds=2).run(by_gpus=False)
    assert answer.kind == "nothing fails"
    (note,) = [one for one in answer.notes if "was tried" in one]
    assert (
        "phase 'main', 20s at the scenario's own rate, lasts less than 1s, too short to be measured" in note
    )
    with pytest.raises(ScenarioError, match=r"--most: above .* too short to be measured: make it longer"):
        settings(short, most=f"{21.0 * base_hz}/s")
    windowed = scenario(promises={"response{window:10s}": "p(90)<80ms"})
    assert settings(windowed).most_hz == pytest.approx(6.0 * base_hz), (
        "60 s hold a window of 10 s up to there"
    )
    with pytest.raises(ScenarioError, match=r"capacity: at .*/s phase 'main', 900ms"):
        settings(scenario(phases=[{**one, "duration": "900ms"} for one in PHASES]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--promise", "p(95)>50ms"], "--promise: promises: response: p"),
        (["--promise", "speed: p(95)<50ms"], "unknown metric"),
        (["--promise", "failures: p(95)<50ms"], "unknown statistic of failures"),
        (["--promise", "p(95)<50 req"], "--promise"),
        (["--promise", "p(95)<70ms"], "--promise"),
        (["--precision", "much"], "--precision: 'much' is no share"),
        (["--precision", "60%"], "--precision: 60% is not from 0.1% to 50%"),
        (["--low", "90%"], "--low: 90% is not from 0 to 50%"),
        (["--start", "300"], "--start: "),
        (["--start", "0/s"], "--start: 0/s must be above 0"),
        (["--start", "300/s", "--most", "200/s"], "--most: 200/s is below --start 300/s"),
        (["--gpus"], "--gpus: needs servers"),
        (CLOSED, "a closed loop follows its server"),
        (["--set", "promises={response: {threshold: p(95)<50ms, at: 300/s}}"], "capacity looks for the load"),
        (["--set", "promises=null"], "promises nothing: add --promise"),
        (["--resume", "nowhere"], "nowhere: no such folder"),
        (
            ["--scale", "amplitude", "--set", "phases.main.arrivals={kind: trace, file: t.txt}"],
            "use --scale time",
        ),
    ],
)
def test_what_cannot_be_searched_is_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(json.dumps(scenario().to_mapping()))
    done = CliRunner().invoke(app, ["capacity", "s.yaml", *words])
    assert isinstance(done.exception, ScenarioError), done.output
    assert told in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.exception.exit_code == 2
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("found", 0),
        ("nothing passes", 4),
        ("nothing fails", 4),
        ("undecided", 4),
        ("client limit", 3),
        ("not measured", 3),
    ],
)
def test_the_answer_says_the_exit_code(
    kind: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps(scenario().to_mapping()))

    def answered(search: CapacitySearch, by_gpus: bool) -> list[Answer]:
        del by_gpus
        search.answers = [
            replace(answer_of("all", Found("searching", ()), search.settings, [], True), kind=kind)
        ]
        return search.answers

    monkeypatch.setattr(CapacitySearch, "run", answered)
    done = CliRunner().invoke(
        app, ["capacity", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "runs"), "--json"]
    )
    assert done.exit_code == code
    assert json.loads(done.stdout)["kind"] == kind
