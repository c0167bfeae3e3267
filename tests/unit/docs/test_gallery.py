"""The page of arrivals: its snippets are scenarios, its pictures and tables are made from them."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from docs.make import gallery, gallery_page
from squall.scenarios.arrivals.kinds import OpenArrivals
from squall.scenarios.arrivals.varying import AnyShape, EnvelopeArrivals
from squall.scenarios.errors import AnalysisError, ScenarioError
from squall.scenarios.series.burstiness import idc_shifted
from squall.scenarios.units import NS_PER_S

PAGE = gallery.PAGE.read_text(encoding="utf-8")
IMAGES = gallery.PAGE.parent / "arrivals"
SNIPPETS = gallery_page.snippets(PAGE)
SHAPES = gallery_page.shape_snippets(PAGE)
LARGEST_IMAGE_BYTES = 64 * 1024


def kinds(union: object) -> set[str]:
    return {str(get_args(model.model_fields["kind"].annotation)[0]) for model in get_args(union)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's trace."""
    folder = tmp_path_factory.mktemp("gallery")
    gallery_page.write_example_trace(folder / gallery_page.TRACE_NAME)
    return folder


def test_every_kind_of_arrivals_and_of_shapes_has_a_snippet() -> None:
    assert set(SNIPPETS) == kinds(OpenArrivals)
    assert set(SHAPES) == kinds(get_args(AnyShape)[0])


@pytest.mark.parametrize("kind", SNIPPETS)
def test_a_snippet_is_a_valid_process_of_its_kind_at_100_a_second(kind: str, folder: Path) -> None:
    example = gallery_page.read_example(kind, SNIPPETS[kind], folder)
    assert example.arrivals.kind == kind
    phase_ns = gallery_page.PHASE_NS
    rate_hz = example.arrivals.expected_count(phase_ns, phase_ns) * NS_PER_S / phase_ns
    assert rate_hz == pytest.approx(100, rel=0.03)  # the trace and the concatenation are cut where they are
    offsets = example.draws[0]
    assert offsets.size > 1_000
    assert offsets[0] >= 0
    assert offsets[-1] < gallery_page.PHASE_NS


@pytest.mark.parametrize("kind", SHAPES)
def test_the_example_of_a_shape_is_an_envelope_of_that_shape(kind: str, folder: Path) -> None:
    example = gallery_page.read_example(kind, SHAPES[kind], folder, gallery.SHOWN_NS)
    assert isinstance(example.arrivals, EnvelopeArrivals)
    assert example.arrivals.shape is not None
    assert example.arrivals.shape.kind == kind
    # The mean over the phase is the rate: exactly for a fixed curve, in expectation for a random one.
    assert example.arrivals.expected_count(gallery.SHOWN_NS, gallery.SHOWN_NS) == pytest.approx(6_000)


def test_a_snippet_that_is_no_scenario_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"arrivals\.rat: unknown key, did you mean 'rate'"):
        gallery_page.read_example("poisson", "arrivals: {kind: poisson, rat: 100/s}\n", tmp_path)
    with pytest.raises(AnalysisError, match="closed: the snippet has no open arrivals"):
        gallery_page.read_example("closed", "arrivals: {kind: closed, users: 3}\n", tmp_path)


@pytest.mark.parametrize("name", [*SNIPPETS, "shapes"])
def test_a_picture_is_there_named_and_small(name: str) -> None:
    assert re.search(rf"^!\[[^]]+\]\(arrivals/{name}\.png\)$", PAGE, re.MULTILINE)
    data = (IMAGES / f"{name}.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    rows = -(-len(SHAPES) // 2) if name == "shapes" else 1
    assert width > height / rows
    assert len(data) < rows * LARGEST_IMAGE_BYTES


def test_no_picture_is_older_than_its_snippet_or_the_code(folder: Path) -> None:
    examples = {kind: gallery_page.read_example(kind, text, folder) for kind, text in SNIPPETS.items()}
    shapes = [
        gallery_page.read_example(kind, text, folder, gallery.SHOWN_NS) for kind, text in SHAPES.items()
    ]
    drawn = json.loads((IMAGES / "drawn.json").read_text(encoding="utf-8"))
    assert drawn == gallery.digests(examples, shapes), "run `make docs`"
    text = SNIPPETS["gamma"].replace("cv: 2}", "cv: 2.1}")
    assert text != SNIPPETS["gamma"]
    changed = gallery.digests({"gamma": gallery_page.read_example("gamma", text, folder)}, shapes[1:])
    assert {name for name in changed if changed[name] != drawn[name]} == {"gamma", "shapes"}


@pytest.mark.parametrize("kind", ["poisson", "gamma", "hawkes"])
def test_the_table_of_examples_has_the_figures_of_the_code(kind: str, folder: Path) -> None:
    example = gallery_page.read_example(kind, SNIPPETS[kind], folder)
    row = gallery.figures_table({kind: example}).splitlines()[-1]
    assert row in PAGE, "run `make docs`"


def test_the_tables_of_presets_have_the_parameters_of_the_code() -> None:
    assert gallery.preset_tables() in PAGE, "run `make docs`"


def test_every_kind_stands_in_the_table_of_examples() -> None:
    block = PAGE.partition("<!-- made: figures -->\n")[2].partition("<!-- end -->")[0]
    assert set(re.findall(r"^\| \[`([\w-]+)`\]", block, re.MULTILINE)) == set(SNIPPETS)


def test_the_curve_of_dispersion_is_that_of_the_formula_on_the_page(folder: Path) -> None:
    """MMPP, IDC(w) = 1 + 2λτ(f - 1)(1 - b)·g(w/τ), within four standard errors of the mean of nine draws.

    Inside a phase of T the sample's own mean takes about IDC(T)·w/T off: 400·10/600 = 7 of 321, under one of them.
    """
    example = gallery_page.read_example("mmpp", SNIPPETS["mmpp"], folder)
    place = gallery.WINDOWS_NS.index(10 * NS_PER_S)
    found = [idc_shifted(draw, 10 * NS_PER_S, 0, gallery_page.PHASE_NS) for draw in example.draws]
    assert None not in found
    stderr = np.std(np.array(found, float), ddof=1) / 3
    mean = gallery.mean_dispersion(example)[place]
    assert mean == pytest.approx(np.mean(np.array(found, float)))
    assert abs(mean - mmpp_idc(10, tau_s=2)) < 4 * stderr
    assert abs(mean - mmpp_idc(10, tau_s=1)) > 4 * stderr


def mmpp_idc(window_s: float, tau_s: float) -> float:
    """At 100/s, peak 3, base 0.5: 2λτ(f - 1)(1 - b) = 200 τ."""
    x = window_s / tau_s
    return float(1 + 200 * tau_s * (1 - (1 - np.exp(-x)) / x))


def test_the_expected_rate_of_a_picture_is_that_of_the_process(folder: Path) -> None:
    step = gallery_page.read_example("step", SHAPES["step"], folder, gallery.SHOWN_NS)
    (plot,) = gallery.shape_plots([step])
    arrivals, expected, _ = plot.series
    # 100/s on average over a minute, 1 for 20 s and 3 for 40 s: 42.86/s and 128.57/s; half of it in a bin of 0.5 s.
    assert expected.y[:40] == pytest.approx([21.43] * 40, abs=0.01)
    assert expected.y[40:] == pytest.approx([64.29] * 81, abs=0.01)
    counts = [float(y) for y in arrivals.y[:-1] if y is not None]
    assert sum(counts) == np.searchsorted(step.draws[0], gallery.SHOWN_NS)


def test_a_block_is_replaced_and_a_page_without_it_refused() -> None:
    page = "a\n<!-- made: x -->\nold\n<!-- end -->\nb\n<!-- made: y -->\n<!-- end -->\n"
    once = gallery_page.with_block(page, "x", "| new |")
    assert once == page.replace("old", "| new |")
    assert gallery_page.with_block(once, "x", "| new |") == once
    assert "y -->\n1\n<!-- end" in gallery_page.with_block(page, "y", "1")
    with pytest.raises(AnalysisError, match="no place for 'z'"):
        gallery_page.with_block(page, "z", "1")


def test_the_trace_of_the_page_is_the_same_each_time_and_has_sizes_and_sessions(folder: Path) -> None:
    from squall.scenarios.traces.reading import read_trace

    part, again = gallery_page.example_trace(), read_trace(folder / gallery_page.TRACE_NAME)
    assert np.array_equal(part.stamp_ns, again.stamp_ns)
    assert np.array_equal(part.sizes["input_length"], again.sizes["input_length"])
    assert again.session is not None
    assert np.unique(again.session).size == gallery_page.N_SESSIONS
    # A Hawkes residual of n 0.29 has a variance of counts of n_expected/(1 - n)² = 36,000/0.5: five standard errors.
    assert abs(len(part) - 36_000) < 5 * np.sqrt(36_000 / 0.5)


@pytest.mark.slow
def test_make_docs_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "arrivals.md"
    page.write_text(PAGE, encoding="utf-8")
    written = gallery.make_page(page)
    assert page.read_text(encoding="utf-8") == PAGE, "run `make docs`"
    assert {path.name for path in written} == {path.name for path in IMAGES.glob("*.png")}
