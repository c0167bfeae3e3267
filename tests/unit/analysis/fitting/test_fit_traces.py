"""The best fitted generator of each public trace, where those are at hand."""

from __future__ import annotations

import pytest

from tests.bench.traces import SOURCES, TRACES, Source, row_of, table


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.file.split(".")[0]))
def test_the_best_fit_of_a_trace_lies_in_its_bands(source: Source) -> None:
    if not (TRACES / source.file).exists():
        pytest.skip(f"needs the public trace {source.file} in ../shared/traces")
    row = row_of(source)
    assert row.report.best.fits, row.report.verdict()
    assert row.misses == [], list(table([row]))
    # a twin that must fail: nothing but the mean rate is right
    assert not row.report.find("poisson").fits
