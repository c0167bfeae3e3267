"""How the parts of a published experiment follow one another, and how it is taken up again: runs are fakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from squall.analysis.studies.published_page import screen_lines
from squall.cluster.commands.decisions.probe_part import run_probe_part
from squall.cluster.commands.decisions.reproduce import _print
from squall.cluster.commands.decisions.reproduced_folder import FILE
from squall.cluster.commands.decisions.reproduced_parts import (
    JSON_FILE,
    PAGE_FILE,
    Wanted,
    plan_lines,
    reproduce_experiment,
)
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ClusterError, ScenarioError, StoreError
from squall.scenarios.published.experiment import PublishedExperiment, load_published
from tests.sweep_runs import SITE, FakeRuns
from tests.unit.scenarios.test_published import PARTS, write

TWO_PARTS = {
    "latency": PARTS["latency"],
    "depth": {"about": "d", "gives": ["sm_util_ratio"], "set": {"phases.burst.duration": "1s"}},
}


class KnownRuns(FakeRuns):
    """Their figures are kept beside them, so that nobody reads their directories."""

    def __call__(self, one: Scenario, out: Path, ray: str | None, interrupts: Interrupts) -> RunResult:
        result = super().__call__(one, out, ray, interrupts)
        (out / f"{result.run_dir.name}.figures.json").write_text('{"figures": {}, "under": ""}')
        return result


@pytest.fixture
def experiment(tmp_path: Path) -> PublishedExperiment:
    return load_published(write(tmp_path, parts=TWO_PARTS))


def reproduce(
    experiment: PublishedExperiment, out: Path, runs: FakeRuns, resume: Path | None = None, *parts: str
) -> Path:
    wanted = Wanted(out, resume, None, "squall reproduce own.yaml", parts)
    return reproduce_experiment(experiment, wanted, Interrupts(), runs.around())[0]


def only(out: Path) -> Path:
    (folder,) = (path for path in out.iterdir() if path.is_dir())
    return folder


def test_every_row_is_run_in_every_part_with_its_seeds_and_once(
    experiment: PublishedExperiment, tmp_path: Path
) -> None:
    runs = KnownRuns()
    folder = reproduce(experiment, tmp_path / "out", runs)
    assert len(runs.digests) == 2 * 3 + 2 * 1
    found = json.loads((folder / JSON_FILE).read_text())
    told = [(run["part"], run["row"], run["seed"]) for run in found["runs"]]
    assert sorted(told) == [
        ("depth", "eight", 1),
        ("depth", "one", 1),
        *(("latency", row, seed) for row in ("eight", "one") for seed in (1, 2, 3)),
    ]
    assert (folder / PAGE_FILE).read_text().startswith("<!doctype html>")
    again = KnownRuns()
    assert reproduce(experiment, tmp_path / "out", again, folder) == folder
    assert again.digests == []


def test_a_full_disk_in_the_second_part_leaves_the_page_of_the_first_and_the_rest_is_run_later(
    experiment: PublishedExperiment, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="no space"):
        reproduce(experiment, tmp_path / "out", KnownRuns(statuses={7: StoreError("no space")}))
    folder = only(tmp_path / "out")
    assert len(json.loads((folder / JSON_FILE).read_text())["runs"]) == 7
    rest = KnownRuns()
    reproduce(experiment, tmp_path / "out", rest, folder)
    assert len(rest.digests) == 1
    assert len(json.loads((folder / JSON_FILE).read_text())["runs"]) == 8


def test_what_ended_an_experiment_is_told_also_where_its_page_cannot_be_written(
    experiment: PublishedExperiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(number: int, _: object) -> None:
        if number == 0:
            (only(tmp_path / "out") / JSON_FILE).mkdir()

    runs = KnownRuns(statuses={0: StoreError("no space")}, before=spoil)
    with pytest.raises(StoreError, match="no space"):
        reproduce(experiment, tmp_path / "out", runs)
    said = capsys.readouterr().err
    assert "the page of what was run is not written: " in said
    assert "goes on with it" in said


def test_a_run_that_fails_is_told_with_its_reason_and_run_again_later(
    experiment: PublishedExperiment, tmp_path: Path
) -> None:
    folder = reproduce(experiment, tmp_path / "out", KnownRuns(statuses={0: ClusterError("no such GPU")}))
    runs = json.loads((folder / JSON_FILE).read_text())["runs"]
    assert [run["reason"] for run in runs if run["status"] == "FAILED"] == ["no such GPU"]
    rest = KnownRuns()
    reproduce(experiment, tmp_path / "out", rest, folder)
    assert len(rest.digests) == 1
    again = json.loads((folder / JSON_FILE).read_text())["runs"]
    assert sorted(run["status"] for run in again) == ["FAILED"] + 8 * ["VALID"]  # nothing is hidden
    (row,) = {run["row"] for run in again if run["status"] == "FAILED"}
    failed, redone = (run for run in again if (run["part"], run["row"]) == ("depth", row))
    assert (failed["status"], redone["status"]) == ("FAILED", "VALID")


def test_an_invalid_run_is_told_beside_the_one_that_was_run_in_its_place(
    experiment: PublishedExperiment, tmp_path: Path
) -> None:
    folder = reproduce(experiment, tmp_path / "out", KnownRuns(statuses={0: "INVALID"}), None, "depth")
    runs = json.loads((folder / JSON_FILE).read_text())["runs"]
    assert [(run["status"], run["attempt"]) for run in runs if run["row"] == runs[0]["row"]] == [
        ("INVALID", 1),
        ("VALID", 2),
    ]


def test_what_would_be_run_is_said_of_the_parts_that_are_asked(experiment: PublishedExperiment) -> None:
    lines = plan_lines(experiment, SITE, ("depth",))
    assert "2 runs, 0 finished" in lines
    assert not any(line.startswith("latency") for line in lines)
    with pytest.raises(ScenarioError, match="--part deep: own has no such part"):
        plan_lines(experiment, SITE, ("deep",))


def test_lines_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    _print({}, ["p50 [published by bold] ended"], as_json=False)
    assert capsys.readouterr().out == "p50 [published by bold] ended\n"


def test_a_valid_run_whose_directory_cannot_be_read_is_lost_and_told(
    experiment: PublishedExperiment, tmp_path: Path
) -> None:
    wanted = Wanted(tmp_path / "out", None, None, "squall reproduce own.yaml", ("depth",))
    _, found = reproduce_experiment(experiment, wanted, Interrupts(), FakeRuns().around())
    assert [run.status for run in found.without_valid_run] == ["LOST", "LOST"]
    for run in found.without_valid_run:
        assert run.reason.startswith(f"{run.run} cannot be read any more: ")
        assert f"{run.row} (depth): no run counts, the last is LOST: {run.reason}" in screen_lines(found)


def test_a_folder_of_another_experiment_is_refused_in_one_line(
    experiment: PublishedExperiment, tmp_path: Path
) -> None:
    folder = reproduce(experiment, tmp_path / "out", KnownRuns())
    other = load_published(write(tmp_path, parts=PARTS))
    small = load_published(write(tmp_path, parts=TWO_PARTS), is_small=True)
    named = load_published(write(tmp_path, parts=TWO_PARTS, name="other"))
    for asked, expected in (
        (other, "was begun with another own.yaml"),
        (small, "holds no rehearsal: leave out --small"),
        (named, "holds own, and other was asked for"),
    ):
        with pytest.raises(ScenarioError, match=expected):
            reproduce(asked, tmp_path / "out", KnownRuns(), folder)
    (folder / FILE).write_text("{")
    with pytest.raises(ScenarioError, match="is damaged"):
        reproduce(experiment, tmp_path / "out", KnownRuns(), folder)
    with pytest.raises(ScenarioError, match="holds no reproduced experiment"):
        reproduce(experiment, tmp_path / "out", KnownRuns(), tmp_path)


def test_one_part_is_run_alone_and_the_others_later(experiment: PublishedExperiment, tmp_path: Path) -> None:
    runs = KnownRuns()
    folder = reproduce(experiment, tmp_path / "out", runs, None, "depth")
    assert len(runs.digests) == 2
    assert {run["part"] for run in json.loads((folder / JSON_FILE).read_text())["runs"]} == {"depth"}
    rest = KnownRuns()
    reproduce(experiment, tmp_path / "out", rest, folder)
    assert len(rest.digests) == 6
    with pytest.raises(ScenarioError, match="--part deep: own has no such part, there are"):
        reproduce(experiment, tmp_path / "out", KnownRuns(), folder, "deep")


def test_a_file_in_the_place_of_a_part_is_one_line(experiment: PublishedExperiment, tmp_path: Path) -> None:
    folder = reproduce(experiment, tmp_path / "out", KnownRuns(), None, "depth")
    (folder / "latency").touch()
    with pytest.raises(StoreError, match="latency is no folder, and the runs of latency go there: remove it"):
        reproduce(experiment, tmp_path / "out", KnownRuns(), folder)


def test_a_file_in_the_place_of_the_probe_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "probe").touch()
    with pytest.raises(StoreError, match="probe is no folder, and the runs of probe go there: remove it"):
        run_probe_part(load_published("e4"), tmp_path, Interrupts())
