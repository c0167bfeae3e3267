"""How many rows each request carries, and which model, variant or entry it is of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

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
from squall.scenarios.data.drawing import Draw, drawn, drawn_zipf, entry_dtype, zipf_bounds
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
        case LognormalRows():
            # rounded to the nearest, then clipped: mean and cv are those before both steps
            found = draws.lognormal(rng, *scalars.lognormal_parameters(config.mean, config.cv), count)
            return np.clip(np.rint(found), 1, config.max).astype(np.int32)
        case ParetoRows():
            return _bounded_pareto(config, rng, count)
        case ZipfRows():
            entries = drawn_zipf(zipf_bounds(config.max, config.exponent), rng, count)
            return (entries + 1).astype(np.int32)
        case EmpiricalRows():
            return draws.by_weight(*_weighed(config), rng, count)
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
    dtype = entry_dtype(ranges[-1].stop)
    rows: list[Draw] = []
    variants: list[Draw] = []
    for number, (load, own, order) in enumerate(zip(loads, ranges, orders, strict=True)):
        where = (*place, number) if len(loads) > 1 else place
        rows.append(partial(draw_rows, load.rows, stream(seed, "rows", *where)))
        draw = drawn(order, own.n_variants, stream(seed, "variants", *where), *in_turn)
        variants.append(partial(_shifted, draw, dtype(own.first)))
    if len(loads) == 1:
        return rows[0], variants[0]
    shares = np.array([load.share for load in loads], np.float64)

    def mixed(parts: list[Draw], dtype: type[Any]) -> Draw:
        """A model's own draws depend on nothing but how many its requests are."""
        rng = stream(seed, "models", *place)

        def draw(count: int) -> NDArray[Any]:
            models = draws.by_weight(np.arange(shares.size), shares, rng, count)
            found = np.empty(count, dtype)
            for model, part in enumerate(parts):
                places = np.flatnonzero(models == model)
                found[places] = part(places.size)
            return found

        return draw

    return mixed(rows, np.int32), mixed(variants, dtype)


def _shifted(draw: Draw, first: np.unsignedinteger[Any], count: int) -> NDArray[Any]:
    found: NDArray[Any] = draw(count).astype(first.dtype) + first
    return found


def trace_rows(config: TraceRows | EmpiricalRows, sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """ceil(size / per_row) held within 1 and max, (n,) int32; a size that is empty in the trace (-1) gives 1 row."""
    assert config.max is not None
    rows = np.ceil(sizes / config.per_row)
    return np.clip(rows, 1, config.max).astype(np.int32)


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
    values, weights = _weighed(config)
    rows, place = np.unique(values, return_inverse=True)
    sums = np.bincount(place, weights=weights / weights.max()).astype(np.float64)
    sums = sums / sums.max()
    return EmpiricalRows(kind="empirical", values=tuple(rows.tolist()), weights=tuple(sums.tolist()))


def _weighed(config: EmpiricalRows) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Numbers of rows and their weights: as stated, or each number that the sizes of the file make, and how often."""
    if config.file is not None:
        rows, counts = np.unique(trace_rows(config, _sizes(config)), return_counts=True)
        return rows, counts.astype(np.float64)
    assert config.values is not None
    return np.array(config.values), np.array(config.weights or [1.0] * len(config.values), np.float64)


def _sizes(config: EmpiricalRows) -> NDArray[np.int64]:
    """The sizes in its column of the trace file, without the empty ones."""
    assert config.file is not None
    assert config.size is not None
    sizes = read_trace(Path(config.file), TraceOptions(repairs=("sort",))).sizes
    if config.size not in sizes:
        known = ", ".join(sizes) or "none"
        raise ScenarioError(f"{config.file}: has no size column {config.size!r}, it has {known}")
    found = sizes[config.size][sizes[config.size] >= 0]
    if not found.size:
        raise ScenarioError(f"{config.file}: column {config.size!r} holds no size")
    return found
