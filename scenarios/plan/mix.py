"""How many rows each request carries, and which model, variant or entry it is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import numpy as np
from numpy.typing import NDArray

from squall.scenarios.arrays import Array, Int64s
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
from squall.scenarios.data.drawing import Draw, drawn, entry_dtype, zipf_bounds
from squall.scenarios.errors import ScenarioError
from squall.scenarios.exact import arrays, draws, scalars
from squall.scenarios.model_shares import VariantRange
from squall.scenarios.plan.plan import stream
from squall.scenarios.traces.options import TraceOptions
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
        case LognormalRows():  # rounded to the nearest, then clipped: mean and cv are those before both steps
            found = draws.lognormal(rng, *scalars.lognormal_parameters(config.mean, config.cv), count)
            return np.clip(np.rint(found), 1, config.max).astype(np.int32)
        case ParetoRows():
            # Floor of a Pareto bounded to [min, max + 1), by inversion of its distribution function
            # F(x) = (1 - (L/x)^a) / (1 - (L/H)^a), so x = L · (1 - u · (1 - (L/H)^a))^(-1/a); by expm1 and log1p,
            # since for a small a both powers are next to 1.
            low, high = float(config.min), float(config.max + 1)
            cut = scalars.expm1(config.alpha * scalars.log(low / high))
            found = low * arrays.exp(-arrays.log1p(rng.random(count) * cut) / config.alpha)
            return np.clip(np.floor(found), config.min, config.max).astype(np.int32)
        case ZipfRows():
            places = draws.places(zipf_bounds(config.max, config.exponent), rng, count)
            return (places + 1).astype(np.int32)
        case EmpiricalRows(file=str()):
            return draw_rows(settled(config), rng, count)
        case EmpiricalRows():
            values = np.array(config.values)
            weights = np.ones(values.size) if config.weights is None else np.array(config.weights)
            return draws.by_weight(values, weights, rng, count)
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
) -> Callable[[int], tuple[Array, Array]]:
    """What draws the rows and the variants of the next n requests of a place: a phase, or a phase and a user.

    `loads`, `ranges`, `orders`: of each model, which draws by its own law from streams of its own; no number of a model
    is in the place of a sole one's. Of a trace's own rows, which are not drawn, each is 1. `in_turn`: the number of the
    first request and the step to the next, for entries in sequence.
    """
    parts: list[tuple[Draw, Draw]] = []
    for number, (load, own, order) in enumerate(zip(loads, ranges, orders, strict=True)):
        where = (*place, number) if len(loads) > 1 else place
        law = ConstantRows() if isinstance(load.rows, TraceRows) else load.rows
        rows = partial(draw_rows, law, stream(seed, "rows", *where))
        parts.append((rows, drawn(order, own.n_variants, stream(seed, "variants", *where), *in_turn)))
    if len(parts) == 1:
        return lambda count: (parts[0][0](count), parts[0][1](count))
    dtype, rng = entry_dtype(ranges[-1].stop), stream(seed, "models", *place)
    shares = np.array([load.share for load in loads], np.float64)

    def draw(count: int) -> tuple[Array, Array]:
        """A model's own draws depend on nothing but how many its requests are."""
        models = draws.by_weight(np.arange(shares.size), shares, rng, count)
        rows, variants = np.empty(count, np.int32), np.empty(count, dtype)
        for model, (own_rows, own_variants) in enumerate(parts):
            places = np.flatnonzero(models == model)
            rows[places] = own_rows(places.size)
            variants[places] = np.add(own_variants(places.size), ranges[model].first, dtype=dtype)
        return rows, variants

    return draw


def trace_rows(config: TraceRows | EmpiricalRows, sizes: Int64s) -> NDArray[np.int32]:
    """ceil(size / per_row) held within 1 and max, (n,) int32; a size that is empty in the trace (-1) gives 1 row."""
    assert config.max is not None
    rows = np.ceil(sizes / config.per_row)
    return np.clip(rows, 1, config.max).astype(np.int32)


def settled(config: RowsConfig) -> RowsConfig:
    """The same law without a file and with each value once, so that a draw costs little. Raises ScenarioError."""
    if not isinstance(config, EmpiricalRows):
        return config
    if config.file is not None and config.size is not None:
        columns = read_trace(Path(config.file), TraceOptions(repair=("sort",))).sizes
        sizes = columns.get(config.size, np.empty(0, np.int64))
        sizes = sizes[sizes >= 0]  # without the empty ones
        if not sizes.size:
            raise ScenarioError(
                f"{config.file}: has no size in a column {config.size!r}, its columns of sizes are"
                f" {', '.join(columns) or 'none'}"
            )
        rows, sums = np.unique(trace_rows(config, sizes), return_counts=True)
    else:
        rows, place = np.unique(config.values or (), return_inverse=True)
        weights = config.weights and np.array(config.weights) / max(config.weights)  # no sum leaves float64
        sums = np.bincount(place, weights)
    sums = sums / sums.max()
    return EmpiricalRows(kind="empirical", values=tuple(rows.tolist()), weights=tuple(sums.tolist()))
