"""What docs/arrivals.md holds for `docs.make.gallery`: its snippets as processes, its trace, its tables'
places."""

from __future__ import annotations

import re
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from squall.analysis.arrays import Int64s
from squall.scenarios.arrivals.kinds import OpenArrivals, UserArrivals
from squall.scenarios.config.loader import load_scenario
from squall.scenarios.errors import AnalysisError
from squall.scenarios.exact.draws import lognormal
from squall.scenarios.traces.parts.part import TracePart
from squall.scenarios.traces.writing import write_trace
from squall.scenarios.units import NS_PER_S

PHASE_NS = 600 * NS_PER_S
SEEDS = range(1, 10)

TRACE_NAME = "service.csv"
TRACE_RATE_HZ = 10
TRACE_SPAN_NS = 3_600 * NS_PER_S
N_SESSIONS = 200


_SNIPPET = re.compile(r"^### `([\w-]+)`\n(?:(?!#).*\n)*?```yaml\n([^`]*)```", re.MULTILINE)
_SHAPE = re.compile(r"^\| `[\w-]+` \|.*`(\{kind: ([\w-]+),[^`]*\})` \|$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A snippet of the page and the process that it describes."""

    name: str
    text: str
    arrivals: OpenArrivals
    horizon_ns: int = PHASE_NS

    @cached_property
    def draws(self) -> tuple[Int64s, ...]:
        """Offsets from nine seeds."""
        return tuple(self.draw(seed) for seed in SEEDS)

    def draw(self, seed: int) -> Int64s:
        """Offsets in ns, (n,), sorted."""
        return self.arrivals.draw(np.random.default_rng(seed), self.horizon_ns)


def snippets(page: str) -> dict[str, str]:
    """`arrivals: …` of each section `### `kind``, by kind: its first YAML block."""
    return dict(_SNIPPET.findall(page))


def shape_snippets(page: str) -> dict[str, str]:
    """An envelope for each shape, by kind: from the last column of the table of shapes."""
    found = {kind: text for text, kind in _SHAPE.findall(page)}
    return {
        kind: f"arrivals: {{kind: envelope, rate: 100/s, shape: {text}}}\n" for kind, text in found.items()
    }


def read_example(name: str, text: str, folder: Path, horizon_ns: int = PHASE_NS) -> Example:
    """The example of a snippet, whose trace file is in `folder`. Raises ScenarioError as a scenario file does."""
    path = folder / "example.yaml"
    phase = f"name: {name}\nkind: measure\nduration: {horizon_ns}ns\n{text}"
    path.write_text(
        f"name: {name}\nseed: 1\nmodel: {{name: any}}\nphases:\n"
        f"  -{textwrap.indent(phase, '    ')[3:]}  - {{name: drain, kind: drain, duration: 1s}}\n",
        encoding="utf-8",
    )
    arrivals = load_scenario(path).phases[0].arrivals
    if arrivals is None or isinstance(arrivals, UserArrivals):
        raise AnalysisError(f"{name}: the snippet has no open arrivals")
    return Example(name, text, arrivals, horizon_ns)


def example_trace() -> TracePart:
    """An hour of made-up traffic with sizes and sessions, on stamps of 1 µs; the same on every call.

    A web server's hour at 10/s; lognormal token counts; sessions with Zipf shares.
    """
    rng = np.random.default_rng(4)
    text = f"arrivals: {{kind: envelope, preset: nasa-web, rate: {TRACE_RATE_HZ}/s}}\n"
    with tempfile.TemporaryDirectory() as folder:
        service = read_example("service", text, Path(folder), TRACE_SPAN_NS).arrivals
    stamp_ns = service.draw(rng, TRACE_SPAN_NS) // 1_000 * 1_000
    bounds = np.cumsum(1 / np.arange(1, N_SESSIONS + 1))
    session = np.searchsorted(bounds[:-1] / bounds[-1], rng.random(stamp_ns.size), side="right")
    sizes = {"input_length": (6.5, 1.0), "output_length": (5.0, 0.7)}
    tokens = {
        name: np.rint(lognormal(rng, *law, stamp_ns.size)).astype(np.int64) for name, law in sizes.items()
    }
    return TracePart(stamp_ns, tokens, session.astype(np.int64))


def write_example_trace(path: Path) -> int:
    """`example_trace` as CSV. Returns the rows."""
    return write_trace(path, "csv", [example_trace()])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_block(page: str, name: str, content: str) -> str:
    """The page with what stands between `<!-- made: name -->` and `<!-- end -->` replaced."""
    begin, end = f"<!-- made: {name} -->\n", "<!-- end -->"
    head, found, rest = page.partition(begin)
    if not found or end not in rest:
        raise AnalysisError(f"the page has no place for {name!r}: write {begin.strip()} and {end.strip()}")
    return f"{head}{begin}{content}\n{end}" + rest.partition(end)[2]
