"""What every encoder writes, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from squall.scenarios.traces.formats import FORMATS, Format, TraceFormat, record_of
from squall.scenarios.traces.parts.options import TraceOptions
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.reading import open_trace, read_trace
from squall.scenarios.traces.writing import lost_in, write_trace

S = 1_000_000_000
WRITTEN = [one for one in FORMATS if one.write is not None]
INSTANTS: list[TraceFormat] = [one.name for one in WRITTEN if one.name != "servegen"]
FROM_FIRST = ("intervals", "fixed-schedule")
TOKENS = ("ContextTokens", "GeneratedTokens")
RENAMED = {
    "mooncake": ("input_length", "output_length"),
    "bailian": ("input_length", "output_length"),
    "burstgpt": ("Request tokens", "Response tokens"),
}
TEXTS = [one for one in WRITTEN if not one.compresses_itself]
N_ROWS = 9


def rows() -> TracePart:
    """Over three of ServeGen's windows, each size and a few sessions, two rows at one instant."""
    stamp_ns = np.array([0, 1, 1, 5, 600, 601, 602, 1_300, 1_400], np.int64) * S
    names = (*TOKENS, "bytes", "input_length", "output_length")
    sizes = {name: np.arange(N_ROWS, dtype=np.int64) + place for place, name in enumerate(names)}
    return TracePart(stamp_ns, sizes, np.array([3, 3, 5, -1, 3, 5, 5, 3, 7], np.int64))


def pattern(session: NDArray[np.int64]) -> list[int]:
    """Which rows share a session: the index of the first row with the same number."""
    return [session.tolist().index(number) for number in session.tolist()]


@st.composite
def traces(draw: st.DrawFn) -> TracePart:
    """Rows within an hour, from the trace's own zero or from today, with the tokens of Azure and sessions."""
    origin_ns = draw(st.sampled_from([0, 1_700_000_000 * S]))
    offsets = sorted(draw(st.lists(st.integers(0, 3_600 * S), min_size=1, max_size=12)))
    n_rows = len(offsets)
    sizes = {}
    for name in TOKENS:
        values = draw(st.lists(st.integers(-1, 2**40), min_size=n_rows, max_size=n_rows))
        # a column all empty is no column
        sizes[name] = np.array([max(values[0], 0), *values[1:]], dtype=np.int64)
    numbers = st.one_of(st.integers(0, 3), st.integers(0, 2**63 - 1))
    sessions = draw(st.lists(numbers, min_size=n_rows, max_size=n_rows))
    stamp_ns = np.array(offsets, dtype=np.int64) + origin_ns
    return TracePart(stamp_ns, sizes, np.array(sessions, dtype=np.int64))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.sampled_from(INSTANTS), st.integers(1, 12), st.sampled_from(["", ".gz", ".zst"]))
def test_what_is_written_is_read_back(
    tmp_path: Path, part: TracePart, format: TraceFormat, piece_rows: int, suffix: str
) -> None:
    suffix = "" if format in ("parquet", "arrow") else suffix
    path = tmp_path / f"trace{suffix}"
    assert write_trace(path, format, part.pieces(piece_rows)) == len(part)
    named = TraceOptions(format="intervals") if format == "intervals" else TraceOptions()
    assert open_trace(path, named).format == format
    back = read_trace(path, named)

    step_ns = record_of(format).resolution_ns
    first_ns = part.stamp_ns[0] // step_ns * step_ns if format in FROM_FIRST else 0
    assert back.stamp_ns.tolist() == (part.stamp_ns // step_ns * step_ns - first_ns).tolist()

    lost = lost_in(format, part)
    for name, new_name in zip(TOKENS, RENAMED.get(format, TOKENS), strict=True):
        is_lost = f"the size column {name!r}" in lost
        assert is_lost == (new_name not in back.sizes)
        assert is_lost or back.sizes[new_name].tolist() == part.sizes[name].tolist()
    assert part.session is not None
    if "the sessions" in lost:
        assert back.session is None
    else:
        assert back.session is not None
        assert pattern(back.session) == pattern(part.session)
        if format != "bailian":
            assert back.session.tolist() == part.session.tolist()
    said = [phrase for phrase in lost if "digits" in phrase or "first arrival" in phrase]
    assert bool(said) == (back.stamp_ns.tolist() != part.stamp_ns.tolist())


def text_of(format: Format, parts: Sequence[TracePart], folder: Path) -> bytes:
    assert format.write is not None
    with (folder / "trace").open("wb") as file:
        format.write(file, "", parts[0], parts)
    return (folder / "trace").read_bytes()


@pytest.mark.parametrize("format", TEXTS, ids=lambda one: one.name)
def test_the_text_is_the_same_however_the_rows_are_cut_into_parts(format: Format, tmp_path: Path) -> None:
    whole = text_of(format, [rows()], tmp_path)
    assert whole.endswith(b"\n")
    for most_rows in range(1, N_ROWS):
        assert text_of(format, list(rows().pieces(most_rows)), tmp_path) == whole
