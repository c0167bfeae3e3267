"""What every arrival process does: the example of each kind, envelopes of each shape and each residual, replays."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from squall.scenarios.arrivals.kinds import OpenArrivals, OpenPart
from squall.scenarios.arrivals.varying import AnyShape, Modulated
from squall.scenarios.strict_yaml import parse_yaml
from tests.plan_catalogue import UNITS

S = 1_000_000_000
HORIZON_NS = 60 * S
N_RUNS = 16
ENVELOPE = {"kind": "envelope", "rate": "100/s"}
HAWKES = {"kind": "hawkes", "n": 0.6, "beta": 2.0}

EXAMPLES = [parse_yaml(kind.example, "example") for kind in get_args(OpenArrivals)]
SHAPES = [parse_yaml(shape.example, "example") for shape in get_args(get_args(AnyShape)[0])]
TRACE: dict[str, Any] = {"kind": "trace", "file": "service.csv"}
CASES: dict[str, dict[str, Any]] = {
    **{section["kind"]: section for section in EXAMPLES},
    **{f"shape {shape['kind']}": ENVELOPE | {"shape": shape} for shape in SHAPES},
    **{
        f"residual {name}": ENVELOPE | {"curve": [1, 0, 3], "bin": "7s", "residual": unit}
        for name, unit in {**UNITS, "hawkes": HAWKES}.items()
    },
    "replay": TRACE,
    "thinned replay": TRACE | {"rate_scale": {"kind": "thin", "keep": 0.5}},
    "cut stretches": {
        "kind": "concatenate",
        "parts": [
            {"duration": "25s", "arrivals": ENVELOPE | {"shape": {"kind": "ramp", "from": 0, "to": 2}}},
            {
                "duration": "80s",
                "arrivals": ENVELOPE | {"shape": {"kind": "diurnal", "peak": 2, "period": "90s"}},
            },
            {"duration": "1s", "arrivals": {"kind": "poisson", "rate": "1/s"}},
        ],
    },
}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OpenArrivals]:
    """All of them by name, with a file to replay."""
    file = tmp_path_factory.mktemp("replay") / "service.csv"
    at_ns = np.cumsum(np.random.default_rng(1).integers(0, S // 5, 500))
    file.write_text("timestamp_ns\n" + "".join(f"{one}\n" for one in at_ns))

    def with_file(section: dict[str, Any]) -> dict[str, Any]:
        nested = {"shape": with_file(section["shape"])} if "shape" in section else {}
        return section | nested | ({"file": str(file)} if section["kind"] == "trace" else {})

    adapter = TypeAdapter(OpenPart)
    return {name: adapter.validate_python(with_file(section)) for name, section in CASES.items()}


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**64), horizon_ns=st.integers(1, HORIZON_NS))
@example(seed=0, horizon_ns=HORIZON_NS)  # where ticks and constant arrivals would come next
@settings(max_examples=2)
def test_a_schedule_is_sorted_int64_inside_the_horizon_and_the_same_for_the_same_seed(
    every: dict[str, OpenArrivals], name: str, seed: int, horizon_ns: int
) -> None:
    offsets = every[name].draw(np.random.default_rng(seed), horizon_ns, HORIZON_NS)
    assert offsets.dtype == np.int64
    assert (np.diff(offsets) >= 0).all()
    assert offsets.size == 0 or (offsets[0] >= 0 and offsets[-1] < horizon_ns)
    assert np.array_equal(offsets, every[name].draw(np.random.default_rng(seed), horizon_ns, HORIZON_NS))


@pytest.mark.parametrize("name", CASES)
def test_the_expected_count_rises_from_0_to_what_is_stated(every: dict[str, OpenArrivals], name: str) -> None:
    arrivals = every[name]
    n_steps = 12 if "trace" in name or "replay" in name else 60  # each reads the file of a trace
    counts = [
        arrivals.expected_count(HORIZON_NS * step // n_steps, HORIZON_NS) for step in range(n_steps + 1)
    ]
    assert counts[0] == 0
    assert (np.diff(counts) >= 0).all()
    if "replay" not in name and name not in ("trace", "cut stretches"):
        assert counts[-1] == pytest.approx(arrivals.stated_count(HORIZON_NS))


@pytest.mark.parametrize("name", CASES)
def test_as_many_arrive_as_are_expected(every: dict[str, OpenArrivals], name: str) -> None:
    rng = np.random.default_rng(5)
    runs = [every[name].draw(rng, HORIZON_NS) for _ in range(N_RUNS)]
    for end_ns in (S, 25 * S, HORIZON_NS):
        counts = np.array([np.searchsorted(run, end_ns) for run in runs])
        # standard error of the mean count by the dispersion of the counts themselves; one of a fixed schedule
        error = 5 * float(counts.std()) / math.sqrt(N_RUNS) + 1
        assert counts.mean() == pytest.approx(every[name].expected_count(end_ns, HORIZON_NS), abs=error)


@pytest.mark.parametrize("horizon_ns", [1, HORIZON_NS // 3, HORIZON_NS])
@pytest.mark.parametrize("name", CASES)
def test_a_rate_curve_covers_the_horizon_and_its_area_never_falls(
    every: dict[str, OpenArrivals], name: str, horizon_ns: int
) -> None:
    arrivals = every[name]
    if not isinstance(arrivals, Modulated):
        return
    fixed = arrivals.fixed(HORIZON_NS)
    rng = np.random.default_rng(1)
    curve = fixed.curve(horizon_ns) if fixed else arrivals.random(rng, horizon_ns)
    assert curve.edges_ns.shape == curve.cum.shape
    assert curve.edges_ns[0] == curve.cum[0] == 0
    assert curve.edges_ns[-1] >= horizon_ns
    assert (np.diff(curve.edges_ns) > 0).all()
    assert (np.diff(curve.cum) >= 0).all()
