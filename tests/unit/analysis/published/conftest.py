"""Figures of probes, which their part of the change names: here wherever they are not yet."""

from __future__ import annotations

import pytest

from squall.scenarios.published.figures import FIGURES, FigureKind

OF_PROBES = {
    "bound_by": FigureKind("bound by", "text"),
    "warm_call_ns": FigureKind("warmed-up call, median", "ns"),
    "call_kernel_ns": FigureKind("kernels of a call, median", "ns"),
    "crossover_size_count": FigureKind("size from which kernels take longer", "count"),
    "not_measured": FigureKind("not measured", "text"),
    "stage_prep_ns": FigureKind("CPU preparation, median", "ns", True),
    "stage_h2d_ns": FigureKind("copy to the device, median", "ns", True),
    "stage_inference_ns": FigureKind("inference, median", "ns", True),
}


@pytest.fixture(autouse=True)
def figures_of_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in OF_PROBES.items():
        if name not in FIGURES:
            monkeypatch.setitem(FIGURES, name, kind)
