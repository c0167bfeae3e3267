"""`squall resume` of a run whose driver was killed: what it says first, and what it says of a run that is not whole."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Any

import pytest

from squall.analysis.storage.store import RunStore
from tests.integration.live_runs import Bench, wait_until
from tests.integration.test_check import MAPPING
from tests.null_process import NullProcess

pytestmark = pytest.mark.beside

_SPILLED_BYTES = 8_192
_PHASES: Any = MAPPING["phases"]


def _killed(bench: Bench) -> RunStore:
    """A run whose driver was killed once a worker had spilled rows of the measured phase, and its workers had ended."""
    assert bench.ray_tmp is not None
    tmp = bench.ray_tmp
    with NullProcess("--service=constant:3ms") as null:
        url = f"http://127.0.0.1:{null.ports['http']}"
        live = bench.start_run(
            {**MAPPING, "server": {"url": url}, "phases": [{**_PHASES[0], "duration": "60s"}, _PHASES[1]]}
        )
        spills = "squall-tmp-*/spill/requests-*.arrows"
        wait_until(
            lambda: any(path.stat().st_size > _SPILLED_BYTES for path in tmp.glob(spills)), 90, "spilled rows"
        )
        os.kill(live.process.pid, signal.SIGKILL)
        live.end()
    return bench.store()


@pytest.mark.slow
def test_the_kill_is_the_first_reason_and_without_the_folder_nothing_changes(joined: Bench) -> None:
    store = _killed(joined)
    assert joined.ray_tmp is not None
    run_dir = store.run_dir
    (folder,) = joined.ray_tmp.glob("squall-tmp-*")
    aside = joined.folder / "aside"
    before = (run_dir / "manifest.json").read_bytes()
    wait_until(lambda: not joined.processes(), 60, "the end of what the driver had started")
    shutil.move(folder, aside)
    live = joined.start("resume", run_dir)
    assert live.end() == 1, live.lines
    assert (
        live.error_line() == f"squall: nothing to gather: what node-0 kept in {folder} is not on this machine"
    )
    assert (run_dir / "manifest.json").read_bytes() == before
    shutil.move(aside, folder)
    live = joined.start("resume", run_dir)
    assert live.end() == 3, live.lines
    sealed = RunStore.open(run_dir)
    assert sealed.manifest.verdict is not None
    assert sealed.manifest.reasons[0].startswith("The run's driver was killed ")
    assert sealed.manifest.verdict.causes[0].kind == "driver killed"
    assert sealed.manifest.verdict.client_bottleneck is None
    told = " ".join(sealed.manifest.reasons)
    assert "add client" not in told
    assert "bottleneck" not in told

    raw = run_dir / "tables" / "requests" / "part-00000.parquet"
    content = raw.read_bytes()
    for damage in (b"", content[:-100], content.replace(b"PAR1", b"PAR2", 1)):
        raw.write_bytes(damage)
        live = joined.start("resume", run_dir)
        assert live.end() == 1, live.lines
        assert f"{raw.relative_to(run_dir)} has changed since the seal" in live.error_line()
    raw.unlink()
    live = joined.start("resume", run_dir)
    assert live.end() == 1, live.lines
    assert f"{raw.relative_to(run_dir)} is missing" in live.error_line()
    raw.write_bytes(content)
    shutil.rmtree(run_dir / "tables" / "joined")
    (run_dir / "summary.json").write_text("{")
    live = joined.start("resume", run_dir)
    assert live.end() == 3, live.lines
    assert RunStore.open(run_dir).verify() == []
    assert RunStore.open(run_dir).has("joined")
