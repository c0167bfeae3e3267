"""The table's cells: what is done to which part of a run, and when."""

from __future__ import annotations

from dataclasses import dataclass

STAGES = ("set-up", "warmup", "load", "collecting", "joining")
PARTS = (
    "driver",
    "raylet",
    "gcs_server",
    "worker",
    "agent",
    "observer",
    "forker",
    "supervisor",
    "tritonserver",
    "stub",
)
RAY_PARTS = ("dashboard agent", "runtime env agent")
"""Ray's own helpers: the raylet ends with either."""
STOP_S = 3.0
"""How long `stop` leaves a process stopped; `freeze` leaves it so to the end."""
STARTS_S = (0.25, 0.5, 0.75, 1.0, 1.5)
"""After the start of the command: in the first tenth of a second Python itself still starts."""

_RUN_CODES = frozenset({0, 1, 3, 99})
"""99: a VALID run of which more requests failed than `expect.failures` allows."""
DIES_OF = frozenset({-6, -11})
"""Ray's library aborts its process, or reads through a null pointer, where it gets no memory: as if it were killed."""


@dataclass(frozen=True)
class Cell:
    """`how`: kill, stop (SIGCONT after `STOP_S`), freeze, SIGINT, fill, delete, limit; `stage`: one of STAGES, "Ray
    starts", "exit", or seconds after the start.

    `codes`: exit codes that are right.
    """

    subject: str
    how: str
    stage: str
    codes: frozenset[int] = _RUN_CODES
    needs_mounts: bool = False

    @property
    def name(self) -> str:
        """As `--cells` takes it."""
        return f"{self.subject}/{self.how}/{self.stage}".replace(" ", "-")

    @property
    def is_of_ray(self) -> bool:
        """Whether it needs a Ray of its own, which a run on one machine has only where it is asked to."""
        return self.stage == "Ray starts" or self.subject in ("raylet", "gcs_server", *RAY_PARTS)

    @property
    def is_driver_killed(self) -> bool:
        """Then nobody is left to say anything."""
        return self.subject == "driver" and self.how == "kill"


def all_cells() -> tuple[Cell, ...]:
    """In the order of the table."""
    return (
        Cell("nothing", "happens", "load", frozenset({0, 3})),
        *_processes(),
        *_interrupts(),
        *_full(),
        *_memory(),
    )


def _processes() -> list[Cell]:
    found = []
    for part in (*PARTS, *RAY_PARTS):
        for how in ("kill", "stop", "freeze"):
            if part == "driver" and how == "freeze":
                continue  # nobody would be left to go on
            codes = frozenset({-9}) if (part, how) == ("driver", "kill") else _RUN_CODES
            first = ("Ray starts",) if part in ("driver", "raylet", "gcs_server") else ()
            found += [Cell(part, how, stage, codes) for stage in (*first, *STAGES)]
    return found


def _interrupts() -> list[Cell]:
    starts = [f"{seconds:g} s" for seconds in STARTS_S]
    interrupted = frozenset({1})
    early = frozenset({1, -2})  # Python's own start cannot be caught: it dies of the signal without a word
    ends = _RUN_CODES  # the verdict was told already
    return [
        *(Cell("terminal", "SIGINT", start, early) for start in starts),
        *(Cell("terminal", "SIGINT", stage, interrupted) for stage in ("Ray starts", *STAGES)),
        Cell("terminal", "SIGINT", "exit", ends),
    ]


def _full() -> list[Cell]:
    return [
        *(Cell("output disk", "fill", stage, _RUN_CODES, True) for stage in STAGES),
        *(Cell("scratch disk", "fill", stage, _RUN_CODES, True) for stage in STAGES),
        *(Cell("/dev/shm", "fill", stage, _RUN_CODES, True) for stage in STAGES),
        *(Cell("scratch folder", "delete", stage) for stage in ("warmup", "load", "collecting")),
    ]


def _memory() -> list[Cell]:
    return [
        *(
            Cell("control group's memory", "fill", stage, _RUN_CODES | {-9}, True)
            for stage in ("load", "joining")
        ),
        *(Cell(f"memory of {part}", "limit", "load") for part in ("worker", "agent")),
        *(Cell("memory of driver", "limit", stage, _RUN_CODES | DIES_OF) for stage in ("load", "joining")),
    ]
