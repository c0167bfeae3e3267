"""Recorded runs, derived again and held to what was derived of them before: every table, key and word.

    python -m tests.reference            derives each of tests/reference again and says what differs
    python -m tests.reference --write    takes what is derived now as what is expected (only where a change is meant)

A folder of `tests/reference` holds runs (a `manifest.json` each), at any depth, beside the files of the command that
made them; those of `STUDIES` what a command of several runs concludes from, and its result. README.md there says how
each was made.
"""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from rich.console import Console
from typer.testing import CliRunner

from squall import scenarios
from squall.analysis.report.screen import render
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.schema import TABLES
from squall.analysis.studies.capacity_rows import read_rows
from squall.cluster.cli import app
from squall.cluster.commands.decisions.capacity import settings_of, with_promises
from squall.cluster.commands.decisions.capacity_search import FILE as CAPACITY
from squall.cluster.commands.decisions.capacity_search import PROBES, CapacitySearch
from squall.cluster.commands.decisions.seeds import run_seeds
from squall.cluster.commands.decisions.sweep_journal import read_state
from squall.cluster.commands.decisions.sweep_results import found_by, sweep_json
from squall.cluster.commands.printed import screen_text
from squall.cluster.driver.run import RunResult
from squall.cluster.interrupts import Interrupts
from squall.cluster.measured import Measurer
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import load_scenario
from squall.scenarios.experiment import load_experiment
from squall.scenarios.published.experiment import bundled_names, load_published
from tests.plan_catalogue import cases

ROOT = Path(__file__).parent / "reference"
SCREEN = "screen.txt"
DIGESTS = "scenario_digests.json"
RESULT = "expected.json"
_PLACES = ("side_a", "side_b", "seconds")
_DIGITS = 9
"""Significant digits to which floats are equal: sums may be made in another order."""
_MOST_TOLD = 5


def names() -> list[str]:
    """The folders of recorded runs."""
    return sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in STUDIES)


def run_dirs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.rglob("manifest.json"))


def derive_again(name: str, folder: Path) -> Path:
    """A copy of the reference in `folder` without anything derived, then derived by the commands of squall."""
    copy = Path(shutil.copytree(ROOT / name, folder / name))
    for run in run_dirs(copy):
        for path in (run / "tables").iterdir():
            if TABLES[path.name].is_derived:
                shutil.rmtree(path)
        for made in ("summary.json", SCREEN):
            (run / made).unlink(missing_ok=True)
        shown = r"\s*".join(map(re.escape, str(run)))  # it may be wrapped anywhere
        (run / SCREEN).write_text(re.sub(shown, "RUN", _call("analyze", str(run)) + _long_screen(run)))
        (run / "report.html").unlink(missing_ok=True)
    return copy


def study_differences(name: str, folder: Path) -> Iterator[str]:
    """What differs between the result of a recorded command of several runs and what is concluded of them now."""
    expected = _read(ROOT / name / RESULT)
    found = STUDIES[name](folder)
    yield from _of_json(f"{name}/{RESULT}", _without_places(expected), _without_places(found))


def _check(folder: Path) -> Any:
    """Concluded from the summaries of the recorded runs, in the order in which they were made."""
    summaries = iter(sorted((ROOT / "check").glob("*/summary.json")))

    def recorded(*_: object) -> RunResult:
        path = next(summaries)
        summary = Summary.from_json(_read(path))
        return RunResult(path.parent, summary, summary.verdict.status)

    scenario = load_scenario(ROOT / "check" / "scenario.yaml")
    n_seeds = len({run["seed"] for run in _read(ROOT / "check" / RESULT)["runs"]})
    made, _ = run_seeds(scenario, folder, None, Interrupts(), n_seeds, {}, recorded)
    return _read(made / "check.json")


def _compare(_: Path) -> Any:
    return json.loads(_call("compare", str(ROOT / "compare"), "--json"))


def _sweep(_: Path) -> Any:
    """Concluded from its journal."""
    experiment = load_experiment(ROOT / "sweep" / "scenario.yaml")
    return sweep_json(
        found_by(
            experiment, read_state(ROOT / "sweep"), _read(ROOT / "sweep" / RESULT)["design"]["n_planned"]
        )
    )


def _capacity(folder: Path) -> Any:
    """Concluded from its probes, of which none is lacking."""
    scenario = with_promises(load_scenario(ROOT / "capacity" / "scenario.yaml"), (), "capacity")
    settings = settings_of(scenario, "time", 2, "25%", "75/s", None, "25%")
    rows = read_rows(str(ROOT / "capacity" / PROBES))
    search = CapacitySearch(
        scenario, settings, Measurer(folder, None, Interrupts(), _none, Screen()), "", rows
    )
    search.run(by_gpus=False)
    return _read(folder / CAPACITY)


def _none(*_: object) -> RunResult:
    raise AssertionError("a run that was recorded is asked for again")


STUDIES: dict[str, Callable[[Path], Any]] = {
    "capacity": _capacity, "check": _check, "compare": _compare, "sweep": _sweep,
}  # fmt: skip
"""Commands of several runs: what makes their result again, as its file has it."""


def _without_places(result: Any) -> Any:
    """Without where the runs lie and how long they took."""
    if isinstance(result, dict):
        return {key: _without_places(value) for key, value in result.items() if key not in _PLACES}
    return [_without_places(value) for value in result] if isinstance(result, list) else result


def _long_screen(run: Path) -> str:
    """What `--verbose` prints of the summary that was just made."""
    summary = Summary.from_json(_read(run / "summary.json"))
    return screen_text(
        Console(width=100, file=io.StringIO()),
        lambda width: render(summary, str(run), width, is_verbose=True),
    )


def _call(*arguments: str) -> str:
    """What a command prints. Raises AssertionError where it ends by an error of squall's own."""
    ended = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"}, catch_exceptions=False)
    assert ended.exit_code in (0, 3, 4, 99), ended.output
    return ended.stdout


def differences(expected: Path, found: Path) -> Iterator[str]:
    """What differs between two such folders, a line each, of the runs in them."""
    for folder in run_dirs(expected):
        run = folder.relative_to(expected)
        yield from _of_tables(expected / run, found / run)
        manifests = (
            _without_bytes(_read(folder / "manifest.json")) for folder in (expected / run, found / run)
        )
        yield from _of_json(f"{run}/manifest.json", *manifests)
        name = "summary.json"
        yield from _of_json(f"{run}/{name}", _read(expected / run / name), _read(found / run / name))
        yield from _of_words(f"{run}/{SCREEN}", expected / run / SCREEN, found / run / SCREEN)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _without_bytes(manifest: Any) -> Any:
    """Without what it says of the bytes of its files, which a version of Parquet's writer may change."""
    for entry in (manifest.get("tables") or {}).values():
        for file in entry["files"]:
            del file["sha256"], file["bytes"]
    return manifest


def _of_tables(expected: Path, found: Path) -> Iterator[str]:
    there, here = ({path.name for path in (run / "tables").iterdir()} for run in (expected, found))
    yield from (f"{expected.name}: table {name} is in one of both only" for name in sorted(there ^ here))
    for name in sorted(there & here):
        a, b = (ds.dataset(run / "tables" / name).to_table() for run in (expected, found))
        of_a, of_b = ({field.name: str(field.type) for field in table.schema} for table in (a, b))
        for column in sorted(of_a.keys() | of_b.keys()):
            if of_a.get(column) != of_b.get(column):
                yield f"{expected.name}: {name}.{column}: {of_a.get(column)} against {of_b.get(column)}"
        both = [column for column in of_a if column in of_b]
        rows_a, rows_b = (
            Counter(repr(_rounded(row)) for row in table.select(both).to_pylist()) for table in (a, b)
        )
        missing, more = rows_a - rows_b, rows_b - rows_a
        for word, rows in (("missing", missing), ("not expected", more)):
            if rows:
                yield f"{expected.name}: {name}: {rows.total()} rows {word}, such as {sorted(rows)[0]}"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(of_key) for key, of_key in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _of_json(where: str, expected: Any, found: Any) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys()):
            if (key in expected) != (key in found):
                yield f"{where}.{key}: only {'expected' if key in expected else 'found'}"
            else:
                yield from _of_json(f"{where}.{key}", expected[key], found[key])
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (a, b) in enumerate(zip(expected, found, strict=True)):
            yield from _of_json(f"{where}[{number}]", a, b)
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(expected, found, rel_tol=10.0**-_DIGITS):
            yield f"{where}: {expected!r} against {found!r}"
    elif expected != found or type(expected) is not type(found):
        yield f"{where}: {expected!r} against {found!r}"


def _of_words(where: str, expected: Path, found: Path) -> Iterator[str]:
    a, b = (path.read_text().split() if path.exists() else [] for path in (expected, found))
    if a != b:
        at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        yield f"{where}: word {at}: {' '.join(a[at : at + 8])!r} against {' '.join(b[at : at + 8])!r}"


def scenario_digests() -> dict[str, str]:
    """Of every scenario in the repository that names no folder of this machine: demo, published experiments, the
    catalogue of plans, the reference runs."""
    files = {"demo": Path(scenarios.__file__).parent / "config" / "demo.yaml"}
    files |= {
        name: ROOT / name / "scenario.yaml" for name in names() if (ROOT / name / "scenario.yaml").exists()
    }
    loaded = {name: load_scenario(path) for name, path in files.items()}
    for name in bundled_names():
        for part, experiment in load_published(name).parts.items():
            loaded |= {f"{name} {part} {cell.label}": cell.scenario for cell in experiment.cells}
    with tempfile.TemporaryDirectory() as folder:
        loaded |= {f"catalogue: {name}": scenario for name, scenario in cases(Path(folder)).items()}
        here = (folder, str(ROOT.parents[1]))
        told = {name: json.dumps(scenario.to_mapping()) for name, scenario in loaded.items()}
    return {
        name: loaded[name].digest() for name, text in told.items() if not any(one in text for one in here)
    }


def every_difference(name: str, folder: Path) -> list[str]:
    """What differs of a reference, derived again in `folder`."""
    if name in STUDIES:
        return list(study_differences(name, folder))
    return list(differences(ROOT / name, derive_again(name, folder)))


def write(name: str, folder: Path) -> None:
    """Takes what is derived now as what is expected."""
    if name in STUDIES:
        (ROOT / name / RESULT).write_text(json.dumps(STUDIES[name](folder), indent=1) + "\n")
        return
    found = derive_again(name, folder)
    shutil.rmtree(ROOT / name)
    shutil.copytree(found, ROOT / name)


def main(arguments: list[str]) -> int:
    n_different = 0
    for name in [*names(), *STUDIES]:
        with tempfile.TemporaryDirectory() as folder:
            if "--write" in arguments:
                write(name, Path(folder))
                continue
            told = every_difference(name, Path(folder))
        n_different += bool(told)
        print(f"{name}: {'equal' if not told else ''}", *told[:_MOST_TOLD], sep="\n  " if told else "")
    if "--write" in arguments:
        (ROOT / DIGESTS).write_text(json.dumps(scenario_digests(), indent=1) + "\n")
    return min(n_different, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
