"""The best fitted generator of each public trace, where those are at hand."""

from __future__ import annotations

import pytest

from tests.bench.traces import SOURCES, TRACES, Source, row_of, table

LONG = ("nasa_http_1995-07-13_counts.csv.gz", "nasa_http_1995-08-01.csv.gz")
"""Traces of whole days, whose fits take minutes."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(one, marks=pytest.mark.long if one.file in LONG else (), id=one.file.split(".")[0])
        for one in SOURCES
    ],
)
def test_the_best_fit_of_a_trace_lies_in_its_bands(source: Source) -> None:
    if not (TRACES / source.file).exists():
        pytest.skip(f"needs the public trace {source.file} in ../shared/traces")
    row = row_of(source)
    assert row.report.best.fits, row.report.verdict()
    assert row.misses == [], list(table([row]))
    # a twin that must fail: nothing but the mean rate is right
    assert not any(one.fits for one in row.report.ranked if one.fitted.name == "poisson")
