"""What must hold after a run that met a fault: pure functions of what was seen; each answers "" or what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.bench.fault_cells import DIES_OF

DOCUMENTED_CODES = frozenset({0, 1, 2, 3, 4, 99})
NEVER_SENT = frozenset({"unsent"})
_OURS = ("squall ", "squall: ")
_NAMED = 3


@dataclass(frozen=True)
class Server:
    """The server's own counts: ids that it executed, by its records, and what its statistics last said.

    `n_succeeded` is None where nobody could ask. `has_all_records`: False where it could not write some of them.
    """

    executed: frozenset[int] = frozenset()
    n_succeeded: int | None = None
    has_all_records: bool = True


@dataclass(frozen=True)
class Seen:
    """All that is known of one run after it has ended, and after `squall resume` where that was called for.

    `rows`: (request id, outcome) of table `requests`, None without one. `received`: outcome by id in spill files.
    `codes`: exit codes that this fault allows. `lying`: what no message names.
    `code` None: it had to be killed. `has_begun`: the start instant was chosen, so that every arrival has a row.
    """

    code: int | None
    codes: frozenset[int]
    stderr: tuple[str, ...]
    stdout: str
    seconds: float
    limit_s: float
    n_planned: int
    has_begun: bool
    state: str
    status: str
    rows: tuple[tuple[int, str], ...] | None
    received: Mapping[int, str] = field(default_factory=dict)
    server: Server = Server()
    running: tuple[str, ...] = ()
    lying: tuple[str, ...] = ()
    next_run: str = ""
    is_driver_killed: bool = False
    tracebacks: str = ""


def _few(ids: Sequence[object]) -> str:
    shown = ", ".join(str(one) for one in ids[:_NAMED])
    return f"{len(ids)} ({shown}{', …' if len(ids) > _NAMED else ''})"


def rows(seen: Seen) -> str:
    """Every planned arrival has exactly one row, and there is no other."""
    if seen.rows is None:
        return "no table requests" if seen.has_begun else ""
    counts = Counter(request_id for request_id, _ in seen.rows)
    twice = sorted(one for one, n in counts.items() if n > 1)
    foreign = sorted(one for one in counts if not 0 <= one < seen.n_planned)
    missing = sorted(set(range(seen.n_planned)) - set(counts))
    found = [
        f"{what} {_few(ids)}"
        for what, ids in (("twice", twice), ("not planned", foreign), ("missing", missing))
        if ids
    ]
    return "; ".join(found)


def outcomes(seen: Seen) -> str:
    """No row says what the server's own counts contradict, and a run that lost a record is not VALID."""
    by_id = dict(seen.rows or ())
    server, found = seen.server, []
    denied = sorted(one for one in server.executed if by_id.get(one) in NEVER_SENT)
    if denied:
        found.append(f"unsent, but executed: {_few(denied)}")
    invented = sorted(one for one, outcome in by_id.items() if outcome == "ok" and one not in server.executed)
    if invented and server.has_all_records:
        found.append(f"ok, but never executed: {_few(invented)}")
    n_sent = sum(outcome not in NEVER_SENT for outcome in by_id.values())
    if by_id and server.n_succeeded is not None and server.n_succeeded > n_sent:
        found.append(f"the server answered {server.n_succeeded}, {n_sent} rows were sent or lost")
    if seen.status == "VALID" and {"lost", "unsent"} & set(by_id.values()):
        found.append("VALID with lost or unsent rows")
    return "; ".join(found)


def received(seen: Seen) -> str:
    """Every row that a spill file held is in the table, as it was."""
    by_id = dict(seen.rows or ())
    lost = sorted(one for one, outcome in seen.received.items() if by_id.get(one) != outcome)
    if not lost:
        return ""
    first = lost[0]
    return (
        f"{_few(lost)} of {len(seen.received)} spilled rows; {first} was {seen.received[first]}, "
        f"is {by_id.get(first, 'absent')}"
    )


def message(seen: Seen) -> str:
    """One line says why it failed, or the verdict stands on the screen; nothing else's noise."""
    noise = [line for line in seen.stderr if line.strip() and not line.startswith(_OURS)]
    if noise and seen.code not in DIES_OF:
        return f"noise, {len(noise)} lines: {noise[0][:100]}"
    if seen.is_driver_killed or (seen.code is not None and seen.code < 0):
        return ""
    errors = [line for line in seen.stderr if line.startswith("squall: ")]
    if seen.code in (0, 3, 99):
        if errors:
            return f"exit {seen.code} with an error: {errors[0][:100]}"
        said = re.findall(r"^\W*(VALID|INVALID)\b", seen.stdout, re.MULTILINE)
        return "" if seen.status in said else f"the verdict {seen.status} is not on the screen"
    if any("internal error" in one for one in errors):
        return next(one for one in errors if "internal error" in one)[:100]
    return "" if len(errors) == 1 else f"{len(errors)} error lines"


def exit_code(seen: Seen) -> str:
    """One of those that are documented and that this fault allows, and the one that the verdict has."""
    if seen.code is None:
        return "did not end"
    if seen.code not in seen.codes or (seen.code >= 0 and seen.code not in DOCUMENTED_CODES):
        return f"exit {seen.code}"
    wanted = {0: "VALID", 3: "INVALID", 99: "VALID"}.get(seen.code)
    return (
        ""
        if wanted is None or seen.status == wanted
        else f"exit {seen.code}, but {seen.status or 'no verdict'}"
    )


def sealed(seen: Seen) -> str:
    """The directory, where there is one, is sealed with a verdict."""
    if not seen.state:
        return "no run directory" if seen.has_begun else ""
    if seen.state != "sealed":
        return f"state {seen.state}"
    return "" if seen.status in ("VALID", "INVALID", "ABORTED") else f"verdict {seen.status!r}"


def running(seen: Seen) -> str:
    """No process of the run lives on."""
    return _few(seen.running) if seen.running else ""


def lying(seen: Seen) -> str:
    """Nothing of it lies in temporary folders, shared memory or beside the tables, but spills that a message names."""
    return _few(seen.lying) if seen.lying else ""


def in_time(seen: Seen) -> str:
    """It ended within its limit."""
    return "" if seen.seconds <= seen.limit_s else f"{seen.seconds:.0f} s, limit {seen.limit_s:.0f} s"


def next_run(seen: Seen) -> str:
    """A clean run in the same place works; "" where none was made."""
    return seen.next_run


CHECKS: dict[str, Callable[[Seen], str]] = {
    "rows": rows,
    "outcomes": outcomes,
    "received": received,
    "message": message,
    "exit code": exit_code,
    "sealed": sealed,
    "running": running,
    "lying about": lying,
    "time": in_time,
    "next run": next_run,
}


def failures(seen: Seen) -> dict[str, str]:
    """What is wrong, by check; empty if all is well."""
    found = {name: check(seen) for name, check in CHECKS.items()}
    return {name: why for name, why in found.items() if why}
