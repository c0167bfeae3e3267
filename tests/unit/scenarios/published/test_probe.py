"""What a probe may say, and the files of the published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from squall.scenarios.errors import ScenarioError
from squall.scenarios.published.file import PublishedFile
from squall.scenarios.published.probe import OperatorProbe, PipelineProbe, probe_from_mapping

FILES = Path(__file__).parents[4] / "scenarios" / "published"


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def test_an_operator_probe_has_a_row_a_size_and_one_for_all() -> None:
    probe = probe_from_mapping({"kind": "operator", "sizes": [64, 128]})
    assert isinstance(probe, OperatorProbe)
    assert probe.rows == ("64", "128", "all sizes")
    assert probe.device == "gpu"


def test_a_pipelines_variants_are_its_rows() -> None:
    probe = probe_from_mapping({"kind": "pipeline"})
    assert isinstance(probe, PipelineProbe)
    assert probe.rows == (
        "pageable, separate kernels",
        "pinned, separate kernels",
        "pinned, one CUDA graph",
        "pinned, one compiled stage",
    )


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ({"kind": "operator", "sizes": [128, 64]}, "probe: sizes: give each once, the smallest first"),
        ({"kind": "operator", "sizes": []}, "probe.sizes"),
        ({"kind": "operator", "size": 64}, "probe.size: Extra inputs are not permitted"),
        ({"kind": "operator", "schedule": {"warmup": 0}}, "probe.schedule.warmup"),
        ({"kind": "convolution"}, "probe: Input tag 'convolution'"),
        (
            {"kind": "pipeline", "variants": [{"memory": "pinned", "kernels": "graph"}]},
            "pageable with separate",
        ),
        (
            {"kind": "pipeline", "variants": [{"memory": "pageable", "kernels": "separate"}] * 2},
            "is there twice",
        ),
        ({"kind": "pipeline", "top_k": 2000}, "top_k: there are 1000 classes"),
    ],
)
def test_what_a_probe_cannot_be_is_told_in_one_line(stated: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        probe_from_mapping(stated)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_key_paths_change_a_probe_and_leave_what_was_stated() -> None:
    stated = {"kind": "operator", "schedule": {"wait": 3}}
    probe = probe_from_mapping(stated, {"schedule.active": 4, "device": "cpu"})
    assert isinstance(probe, OperatorProbe)
    assert (probe.schedule.wait, probe.schedule.active, probe.device) == (3, 4, "cpu")
    assert stated == {"kind": "operator", "schedule": {"wait": 3}}


def test_a_key_path_through_a_value_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"probe\.device\.name: device holds no keys"):
        probe_from_mapping({"kind": "operator", "device": "cpu"}, {"device.name": 1})


@pytest.mark.parametrize("name", ["e4", "e5"])
def test_a_published_probe_is_whole_and_small_on_a_cpu(name: str) -> None:
    file = PublishedFile(**document(name))
    assert file.probe is not None
    assert file.probe.device == "gpu"
    assert {row.name for row in file.rows} <= set(file.probe.rows)
    assert file.claims
    small = probe_from_mapping(file.probe.model_dump(mode="json"), file.small.set)
    assert small.device == "cpu"
    assert small.kind == file.probe.kind


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"claims": [{"says": "x", "figure": "bound", "of": "63", "equals": "overhead"}]},
            "there is no row '63'",
        ),
        ({"rows": [{"name": "63"}]}, "there is no row '63'"),
        ({"rows": [{"name": "64", "set": {"dtype": "fp32"}}]}, "'64' sets keys"),
        ({"parts": {"a": {"about": "x", "gives": ["bound"]}}}, "a probe has none"),
        ({"probe": None}, "give either scenario or probe"),
    ],
)
def test_a_file_of_a_probe_names_rows_that_it_has(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match="validation error") as error:
        PublishedFile(**{**document("e4"), **change})
    assert told in str(error.value)
