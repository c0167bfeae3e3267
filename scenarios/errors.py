"""The whole exception tree of squall.

SquallError                 exit code 1 unless the class says otherwise
├── ScenarioError           a scenario, trace or option is wrong (exit code 2)
├── TargetError             the server or the model is not ready or does not match
├── ClusterError            Ray, placement, a profiler, a clock without a usable bound
│   ├── LostActor           a process of ours on some node died: the run goes on without it
│   └── SessionLost         (squall.actors.nsys.session) the nsys session is gone
├── StoreError              the run directory cannot be written or read
│   ├── SchemaMismatch      a table's columns are not those of `squall.analysis.storage.schema`
│   └── Sealed              the run is sealed and takes no more rows
└── AnalysisError           the tables do not carry the question
    └── MissingTable        the run has no such table
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

Sentences = Iterator[str]
"""What is wrong, one by one; they are made as they are asked for."""


class SquallError(Exception):
    """Anything squall reports to its user as one line. `exit_code` is what the command ends with."""

    exit_code = 1


class ScenarioError(SquallError):
    """A scenario, trace file or option is wrong: where, what stands there, and what is allowed."""

    exit_code = 2


class TargetError(SquallError):
    """The server or the model is not there, not ready, or not what the scenario says."""


class ClusterError(SquallError):
    """Ray, placement, a profiler or the clocks failed."""


class LostActor(ClusterError):
    """A process of ours on a node died or its node is gone. The rest of the run goes on."""


class StoreError(SquallError):
    """The run directory cannot be created, written or read."""


class SchemaMismatch(StoreError):
    """Rows handed to the store do not have the columns that the schema states."""


class Sealed(StoreError):
    """The run is sealed: its raw tables take no more rows."""


class AnalysisError(SquallError):
    """The tables do not carry the figure asked for."""


class MissingTable(AnalysisError):
    """The run has no table of that name."""


@contextmanager
def placed(
    place: object,
    kind: type[Exception] = ValueError,
    caught: type[Exception] | tuple[type[Exception], ...] = (ValueError, ScenarioError),
) -> Iterator[None]:
    """What is `caught` within is one of `kind` that names the place first."""
    try:
        yield
    except caught as error:
        raise kind(f"{place}: {error}") from error


def holding(reasons: Mapping[str, object]) -> Sentences:
    """Those of the sentences that hold."""
    return filter(reasons.get, reasons)


def refuse(reasons: Mapping[str, object]) -> None:
    """Raises ValueError with the first of these sentences that holds."""
    for why in holding(reasons):
        raise ValueError(why)


def way_out(word: str, known: Iterable[str], otherwise: str) -> str:
    """The known word that `word` most likely was meant to be, as a question; `otherwise` where none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
