"""How many rows each request carries, and which model, variant or entry it is of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.config.rows import (
    ConstantRows,
    EmpiricalRows,
    LognormalRows,
    ParetoRows,
    RowsConfig,
    TraceRows,
    UniformRows,
    ZipfRows,
)
from squall.scenarios.data.drawing import drawn, entry_dtype
from squall.scenarios.errors import ScenarioError
from squall.scenarios.exact import arrays, draws, scalars
from squall.scenarios.model_shares import Draw, VariantRange, drawn_models, mixed, shifted
from squall.scenarios.plan.plan import stream
from squall.scenarios.traces.parts.options import TraceOptions
from squall.scenarios.traces.reading import read_trace

if TYPE_CHECKING:
    from squall.scenarios.config.inputs import DrawnOrder
    from squall.scenarios.plan.closed import ModelLoad


def draw_rows(config: RowsConfig, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Rows of `count` requests, (count,) int32, each in [1, max_rows(config)], drawn independently.

    Raises ScenarioError for a trace file that cannot be used, ValueError for `TraceRows`: `trace_rows` takes those from
    the trace's own requests.
    """
    match config:
        case ConstantRows():
            return np.full(count, config.value, dtype=np.int32)
        case UniformRows():
            return rng.integers(config.low, config.high, count, dtype=np.int32, endpoint=True)
        case LognormalRows():
            return _lognormal(config, rng, count)
        case ParetoRows():
            return _bounded_pareto(config, rng, count)
        case ZipfRows():
            return draws.by_weight(np.arange(1, config.max + 1), zipf_weights(config), rng, count)
        case EmpiricalRows():
            return draws.by_weight(*_empirical(settled(config) if config.file else config), rng, count)
        case TraceRows():
            raise ValueError("rows of kind 'trace' are those of the trace's own requests, they are not drawn")
        case _:
            assert_never(config)


def request_draws(
    seed: int,
    place: tuple[int, ...],
    loads: Sequence[ModelLoad],
    ranges: Sequence[VariantRange],
    orders: Sequence[DrawnOrder | None],
    in_turn: tuple[int, int] = (0, 1),
) -> tuple[Draw, Draw]:
    """What draws the rows and the variants of the next n requests of a place: a phase, or a phase and a user.

    `loads`, `ranges`, `orders`: of each model, which draws by its own law from streams of its own; no number of a model
    is in the place of a sole one's. `in_turn`: the number of the first request and the step to the next, for entries in
    sequence.
    """
    dtype = entry_dtype(ranges[-1].first + ranges[-1].n_variants)
    rows: list[Draw] = []
    variants: list[Draw] = []
    for number, (load, own, order) in enumerate(zip(loads, ranges, orders, strict=True)):
        where = (*place, number) if len(loads) > 1 else place
        rows.append(partial(draw_rows, load.rows, stream(seed, "rows", *where)))
        draw = drawn(order, own.n_variants, stream(seed, "variants", *where), *in_turn)
        variants.append(shifted(draw, own.first, dtype))
    if len(loads) == 1:
        return rows[0], variants[0]
    shares = [load.share for load in loads]
    by_rows, by_variants = (drawn_models(shares, stream(seed, "models", *place)) for _ in "12")
    return mixed(by_rows, rows, np.int32), mixed(by_variants, variants, dtype)


def trace_rows(config: TraceRows | EmpiricalRows, sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """ceil(size / per_row) held within 1 and max, (n,) int32; a size that is empty in the trace (-1) gives 1 row."""
    assert config.max is not None
    rows = np.ceil(sizes / config.per_row)
    return np.clip(rows, 1, config.max).astype(np.int32)


@lru_cache(maxsize=64)
def zipf_weights(config: ZipfRows) -> NDArray[np.float64]:
    """Unnormalised probabilities k^-exponent of k = 1 … max rows."""
    return arrays.power(np.arange(1, config.max + 1, dtype=np.float64), -config.exponent)


@lru_cache(maxsize=1024)
def _lognormal(config: LognormalRows, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Rounded to the nearest, then clipped to [1, max]: mean and cv are those before both steps."""
    found = draws.lognormal(rng, *scalars.lognormal_parameters(config.mean, config.cv), count)
    return np.clip(np.rint(found), 1, config.max).astype(np.int32)


def _bounded_pareto(config: ParetoRows, rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    """Floor of a Pareto bounded to [min, max + 1), by inversion of its distribution function.

    F(x) = (1 - (L/x)^a) / (1 - (L/H)^a), so x = L · (1 - u · (1 - (L/H)^a))^(-1/a); by expm1 and log1p, since for a
    small a both powers are next to 1.
    """
    low, high = float(config.min), float(config.max + 1)
    cut = scalars.expm1(config.alpha * scalars.log(low / high))
    found = low * arrays.exp(-arrays.log1p(rng.random(count) * cut) / config.alpha)
    rows: NDArray[np.int32] = np.clip(np.floor(found), config.min, config.max).astype(np.int32)
    return rows


def settled(config: RowsConfig) -> RowsConfig:
    """The same law without a file and with each value once, so that a draw costs little. Raises ScenarioError."""
    if not isinstance(config, EmpiricalRows):
        return config
    if config.file is not None:
        assert config.size is not None
        values = trace_rows(config, _sizes(config.file, config.size)).astype(np.int64)
        weights = np.ones(values.size)
    else:
        values, weights = _empirical(config)
    rows, place = np.unique(values, return_inverse=True)
    sums = np.bincount(place, weights=weights / weights.max()).astype(np.float64)
    sums = sums / sums.max()
    return EmpiricalRows(kind="empirical", values=tuple(rows.tolist()), weights=tuple(sums.tolist()))


def _empirical(config: RowsConfig) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Values of a settled law and their weights."""
    assert isinstance(config, EmpiricalRows)
    assert config.values is not None
    values = np.asarray(config.values, np.int64)
    weights = np.ones(values.size) if config.weights is None else np.asarray(config.weights, np.float64)
    return values, weights


def _sizes(file: str, name: str) -> NDArray[np.int64]:
    """Sizes in column `name` of a trace file, in order of time, without the empty ones."""
    sizes = read_trace(Path(file), TraceOptions(repairs=("sort",))).sizes
    if name not in sizes:
        known = ", ".join(sizes) or "none"
        raise ScenarioError(f"{file}: has no size column {name!r}, it has {known}")
    found = sizes[name][sizes[name] >= 0]
    if not found.size:
        raise ScenarioError(f"{file}: column {name!r} holds no size")
    return found
