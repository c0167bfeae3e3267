"""Plots as PNG and SVG: of the stated size, the same for the same data, another for other data."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context, rcParams

from squall.analysis.report.plots import Plot, band, curve
from squall.analysis.report.png import ROW_PX, WIDTH_PX, write_png
from squall.analysis.report.trace_plots import trace_plots
from squall.analysis.traces.info import trace_summary
from squall.scenarios.errors import AnalysisError

S = 1_000_000_000


def plots(seed: int) -> list[Plot]:
    """Rates, dispersion and gaps of a trace."""
    times = np.sort(np.random.default_rng(seed).integers(0, 900 * S, 5_000))
    return trace_plots(times, trace_summary(times))


def test_a_png_has_the_stated_size_and_differs_when_the_data_differ(tmp_path: Path) -> None:
    first = write_png(tmp_path / "a.png", plots(1), "Title").read_bytes()
    assert first[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", first[16:24]) == (
        WIDTH_PX,
        2 * ROW_PX + 44,
    )  # three plots: two rows, and the title
    rates = [
        write_png(tmp_path / f"{i}.png", plots(seed)[:1]).read_bytes() for i, seed in enumerate((1, 1, 2))
    ]
    assert rates[0] == rates[1] != rates[2]


def test_settings_of_the_working_folder_change_nothing(tmp_path: Path) -> None:
    """What matplotlib reads from a `matplotlibrc` there is in `rcParams` when it is imported."""
    plain = write_png(tmp_path / "plain.png", plots(1)[:1], "Title").read_bytes()
    read = {
        "text.usetex": True,
        "text.latex.preamble": r"\input{x}",
        "axes.facecolor": "red",
        "savefig.dpi": 30,
    }
    with rc_context(read):
        assert write_png(tmp_path / "read.png", plots(1)[:1], "Title").read_bytes() == plain
        assert rcParams["text.usetex"]  # restored


@pytest.mark.parametrize("kind", ["line", "step", "ccdf", "loglog"])
def test_every_kind_of_plot_and_style_is_drawn_the_same_each_time(kind: str, tmp_path: Path) -> None:
    x: list[float] = [1.0, 10.0, 100.0]
    styles = ("", "faint", "points", "solid", "reference")
    curves = [
        curve(f"a {style} curve", x, [0.8, None if style == "faint" else 0.2, 0.1], style) for style in styles
    ]
    traces = [band("band", x, [0.9, 0.5, 0.2], [0.5, 0.2, None]), *curves]
    plots = [
        Plot("A plot", "x, s", "share", kind, traces, note="A note. " * 30),
        Plot("A plot", "x", "y", kind, absent="not recorded"),
    ]
    first, again = (
        write_png(tmp_path / name, plots).read_text(encoding="utf-8") for name in ("a.svg", "b.svg")
    )
    assert [
        words for words in ("x, s", "not recorded", *(one["name"] for one in traces)) if words not in first
    ] == []
    assert again.splitlines() == first.splitlines()


def test_another_suffix_and_no_plot_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=r"written as \.png or \.svg"):
        write_png(tmp_path / "a.jpg", plots(1))
    with pytest.raises(AnalysisError, match="no plot to write"):
        write_png(tmp_path / "a.png", [])


def test_settings_of_the_working_folder_that_are_no_text_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matplotlib waits at a pipe, lets the fault of bytes that are no UTF-8 out of its import, and prints the rest."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "matplotlibrc"
    makers: dict[str, Callable[[], object]] = {
        "it is no file": lambda: os.mkfifo(path),
        "it is a link": lambda: path.symlink_to(__file__),
        "it is no UTF-8": lambda: path.write_bytes(b"axes.grid: \xff\n"),
        "it has control characters": lambda: path.write_text("\x1b[2J: 1\n"),
        "it has more than 1 MiB": lambda: path.write_bytes(bytes(2**20 + 1)),
    }
    for reason, make in makers.items():
        make()
        with pytest.raises(AnalysisError) as raised:
            write_png(tmp_path / "a.png", plots(1)[:1])
        assert str(raised.value) == f"{path}: {reason}, and matplotlib would read it: remove it"
        path.unlink()
    path.write_text("axes.grid:\tTrue  # größer\r\n")
    assert write_png(tmp_path / "a.png", plots(1)[:1]).exists()
