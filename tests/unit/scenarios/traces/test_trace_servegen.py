"""Client windows of ServeGen: what is drawn has the rate, the law and the clients of the rows."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from squall.scenarios.arrays import Int64s
from squall.scenarios.errors import ScenarioError
from squall.scenarios.exact.renewals import Law
from squall.scenarios.traces.part import session_number
from squall.scenarios.traces.reading import TraceOptions, open_trace, read_trace
from squall.scenarios.traces.servegen import law_of

S = 1_000_000_000
HEADER = "model,client,window_start_s,rate,cv,iat_family,shape,scale\n"


def counts_of(law: Law, n_draws: int, length: float) -> Int64s:
    """Arrivals in so many mean gaps from the start."""
    rng = np.random.default_rng(4)
    return np.array([law.points(rng, length).size for _ in range(n_draws)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shape"), [("Gamma", 0.1), ("Gamma", 3.0), ("Weibull", 0.4), ("Weibull", 2.0)]
)
def test_the_mean_count_is_rate_times_length_even_in_short_windows(family: str, shape: float) -> None:
    # Stationary: E[N(t)] = rate·t exactly for every t. 4000 draws of t = 2 mean gaps; 4 standard errors of the mean.
    counts = counts_of(law_of(family, shape), 4_000, 2.0)
    assert abs(counts.mean() - 2.0) < 4 * counts.std() / math.sqrt(4_000)


def test_a_first_gap_of_the_law_itself_would_be_seen() -> None:
    """The twin: begun with an ordinary gap, Gamma of shape 0.1 has far more arrivals in a short window."""
    rng = np.random.default_rng(4)
    ends = [np.searchsorted(np.cumsum(rng.standard_gamma(0.1, 400) / 0.1 / 2.0), 1.0) for _ in range(4_000)]
    counts = np.array(ends)
    assert abs(counts.mean() - 2.0) > 4 * counts.std() / math.sqrt(4_000)


@pytest.mark.parametrize(("family", "shape", "c2"), [("Gamma", 0.25, 4.0), ("Weibull", 0.5, 5.0)])
def test_gaps_have_the_mean_and_the_cv_of_the_law(family: str, shape: float, c2: float) -> None:
    # Weibull 0.5: c2 = Γ(5)/Γ(3)² - 1 = 24/4 - 1 = 5. Batches give the standard errors: 40 of 5000 gaps.
    points = law_of(family, shape).points(np.random.default_rng(1), 210_000.0)
    gaps = np.diff(points)[:200_000].reshape(40, -1)
    for values, expected in ((gaps.mean(axis=1), 1.0), (gaps.var(axis=1) / gaps.mean(axis=1) ** 2, c2)):
        bias = expected * 0.02  # of a variance ratio at n = 5000: about c2·(skew)/n, below 2%
        assert abs(values.mean() - expected) < 4 * values.std(ddof=1) / math.sqrt(40) + bias


def test_both_layouts_and_a_folder_of_chunks_give_the_same_clients(tmp_path: Path) -> None:
    rows = "0,1.5,1.0,Gamma,1.0,0.66\n600,0.0,0.0,,0.0,0.0\n1200,2,3,Weibull,0.5,0.1\n"
    chunk = tmp_path / "chunk-7-trace.csv"
    chunk.write_text(rows)
    (tmp_path / "chunk-9-trace.csv.gz").write_bytes(gzip.compress(rows.encode()))
    one = read_trace(chunk)
    assert open_trace(chunk).format == "servegen"
    assert one.session is not None
    assert set(one.session.tolist()) == {session_number("7")}
    assert not ((one.stamp_ns >= 600 * S) & (one.stamp_ns < 1200 * S)).any()
    assert (one.stamp_ns < 1800 * S).all()

    both = read_trace(tmp_path, TraceOptions(format="servegen"))
    assert both.session is not None
    assert both.stamp_ns[both.session == session_number("7")].tolist() == one.stamp_ns.tolist()

    table = tmp_path / "table.csv"
    named = [
        f",7,{start},{rest}\n"
        for start, _, rest in (row.partition(",") for row in rows.split())
        if ",," not in rest
    ]
    table.write_text(HEADER + "".join(reversed(named)))
    assert open_trace(table).format == "servegen"
    assert read_trace(table).stamp_ns.tolist() == one.stamp_ns.tolist()  # whatever the order of the rows


def test_each_client_is_drawn_apart_from_the_others_and_always_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(HEADER + "x,1,0,0.5,1,Gamma,1,2\ny,1,0,0.5,1,Gamma,1,2\n")
    first, again = read_trace(path), read_trace(path)
    assert first.session is not None
    assert first.stamp_ns.tolist() == again.stamp_ns.tolist()
    x, y = (first.stamp_ns[first.session == session_number(name)].tolist() for name in ("x/1", "y/1"))
    assert x != y
    path.write_text(HEADER + "y,1,0,0.5,1,Gamma,1,2\n")
    assert read_trace(path).stamp_ns.tolist() == y
    path.write_text(HEADER + "y,1,0,0,1,Gamma,1,2\n")
    with pytest.raises(ScenarioError, match="no window with a rate above 0"):
        read_trace(path)
