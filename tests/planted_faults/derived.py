"""Checks of a run that takes no server: `python -m tests.planted_faults.derived KIND FOLDER` prints a JSON object
of the names that are unmet, and of those that are assessed at all.

made up: the analysis of a made-up run. h200: a real export of nsys through scrub, ingest and analysis. regime: the
analysis of a planted run with kernels.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.findings.self_checks import self_checks
from squall.analysis.join.batch_costs import write_batch_costs
from squall.analysis.join.join import write_joined
from squall.analysis.metrics.run import run_metrics
from squall.analysis.nsys.report import NsysReport
from squall.analysis.nsys.scrub import scrub
from squall.analysis.report.identities import Identity, cost_identities
from squall.analysis.storage.store import RunStore
from tests.h200_runs import write_h200_run
from tests.regime_runs import Op, Phase, write_regime_run
from tests.synthetic_runs import synthesise

_EXPORT = Path(__file__).parent.parent / "fixtures" / "h200" / "two_heads.nsys.sqlite.xz"
_OURS = "'squall|m_' || ((globalTid >> 24) & 16777215) || '|' || rowid"


def h200_run(folder: Path) -> RunStore:
    """The real export of two heads, its ranges named as ours."""
    path = folder / "two_heads.sqlite"
    path.write_bytes(lzma.decompress(_EXPORT.read_bytes()))
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"UPDATE NVTX_EVENTS SET text = {_OURS} WHERE text = 'execute'")
        file.commit()
    scrub(path, folder / "report")
    return write_h200_run(folder, NsysReport(folder / "report"))


def regime_run(folder: Path) -> RunStore:
    """One phase of 40 batches of twenty kernels."""
    return write_regime_run(folder, [Phase("steady", (Op(12.0),) * 20)])


def made_up_run(folder: Path) -> RunStore:
    """Requests, batches, Triton's counts; without the samples of the workers, which are not of these requests."""
    run = synthesise()
    run.derived, run.omit = False, {"worker_samples"}
    return run.write(folder)


MAKERS = {"made up": made_up_run, "h200": h200_run, "regime": regime_run}


def checked(store: RunStore) -> tuple[list[SelfCheck], list[Identity]]:
    """Derives what the checks read, and makes them."""
    write_batch_costs(store)
    if store.has("requests"):
        write_joined(store)
    return self_checks(store, run_metrics(store)), cost_identities(store)


def told(kind: str, folder: Path) -> dict[str, list[str]]:
    """Names of the checks of such a run that are unmet, and of those that are assessed at all."""
    checks, counts = checked(MAKERS[kind](folder))
    return {
        "unmet": [
            *(one.name for one in checks if one.status == "unmet"),
            *(one.name for one in counts if not one.is_met),
        ],
        "assessed": [
            *(one.name for one in checks if one.status != "not assessed"),
            *(one.name for one in counts),
        ],
    }


if __name__ == "__main__":
    print(json.dumps(told(sys.argv[1], Path(sys.argv[2]))))
