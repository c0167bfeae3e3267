"""docs/experiments.md is what its files say, and each file is what squall writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from docs.make.experiments import FILES, LARGEST_FILE_BYTES, PAGE, page_text, read_file, take_in
from squall.analysis.published.words import value_text
from squall.scenarios.errors import AnalysisError
from tests.planted_experiment import judged, noisy_runs, published


def test_the_page_is_made_of_the_files() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "python -m docs.make.experiments"


def test_kept_files_are_in_their_short_form_and_no_rehearsals() -> None:
    for path in sorted(FILES.glob("*.json")):
        found = read_file(path)
        assert path.read_text(encoding="utf-8") == found.to_text(), f"python -m docs.make.experiments {path}"
        assert path.stem == found.published.name
        assert path.stat().st_size <= LARGEST_FILE_BYTES
        assert not found.is_small


def test_a_file_is_taken_in_under_the_name_of_its_experiment(tmp_path: Path) -> None:
    truth = {"linear_head": {"throughput_hz": 4000.0}}
    found = judged(published(), noisy_runs(truth, 3, np.random.default_rng(1)))
    left = tmp_path / "reproduction.json"
    left.write_text(json.dumps(found.to_json(), indent=1))
    (kept,) = take_in([left], tmp_path)
    assert kept.name == "heads.json"
    assert read_file(kept) == found
    left.unlink()
    value = found.value("linear_head", "throughput_hz")
    assert value is not None
    assert f"| {value_text(value)} |" in page_text(tmp_path)


def test_seeds_that_ran_apart_are_put_together_and_none_counts_twice(tmp_path: Path) -> None:
    truth = {"linear_head": {"throughput_hz": 4000.0}}
    runs = noisy_runs(truth, 3, np.random.default_rng(1))
    whole = judged(published(), runs)
    seeds = sorted({run.seed for run in runs})
    paths = []
    for name, own in (("a", seeds[:2]), ("b", seeds[2:])):
        paths.append(tmp_path / name)
        part = judged(published(), [run for run in runs if run.seed in own])
        paths[-1].write_text(json.dumps(part.to_json()))
    (kept,) = take_in(paths, tmp_path)
    together, alone = (one.value("linear_head", "throughput_hz") for one in (read_file(kept), whole))
    assert together == alone
    assert together is not None
    assert together.n == 3
    with pytest.raises(AnalysisError, match="seed 3 is in two of them"):
        take_in([paths[1], paths[1]], tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "e9.json").write_text("{}")
    with pytest.raises(AnalysisError, match=r"^e9\.json: "):
        page_text(tmp_path)
