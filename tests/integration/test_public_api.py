"""`squall.run` beside what a notebook has: threads, event loops, Ctrl-C, a kernel that is killed; and its page."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import squall
from tests.integration.live_runs import RAY_AUTH, Bench, Live, scenario_mapping

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ASKS = """
import json, signal, sys
import squall
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in a shell's background hands on that it is ignored
try:
    squall.run(json.loads(sys.argv[1]), out=sys.argv[2], ray=sys.argv[3])
except KeyboardInterrupt as interrupt:
    print("KeyboardInterrupt", *interrupt.__notes__)
"""


def without_figures(text: str) -> str:
    """`text` with every number, name of a run and verdict masked, and no spaces or lines of a frame."""
    masked = re.sub(r"-\d{8}T\d{6}Z-[0-9a-f]{4}", "-#", text)
    masked = re.sub(r"\b(VALID|INVALID)\b", "#", masked)
    masked = re.sub(r"-?\d[\d,]*(\.\d+)?", "#", masked)
    return "\n".join(" ".join(re.sub(r"[─┬┴┼═╪╞╡]+", "─", line).split()) for line in masked.splitlines())


@pytest.mark.beside
def test_what_is_no_figure_is_compared() -> None:
    assert without_figures("│ burst │  12.5 │\n└───┴──┘") == without_figures("│ burst │ 1,002 │\n└─────┴─┘")
    assert without_figures("│ burst │  12.5 │") != without_figures("│ bursts │ 12.5 │")
    assert without_figures("<run a-20261123T004512Z-1a2b: VALID>") == "<run a-#: #>"


@pytest.mark.slow
@pytest.mark.beside
def test_the_page_says_what_its_code_prints(
    alone: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(alone.tmp))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = io.StringIO()
    assert BLOCKS[0][0] == "python"
    for kind, text in BLOCKS:
        if kind == "python":
            assert printed.getvalue() == "", "the page leaves out what this code printed"
            with contextlib.redirect_stdout(printed):
                exec(compile(text, "docs/api.md", "exec"), names)
        else:
            assert without_figures(printed.getvalue()) == without_figures(text)
            printed = io.StringIO()
    assert {squall.Run} <= {type(value) for value in names.values()}
    alone.wait_until_gone()


@pytest.mark.beside
def test_a_run_may_be_asked_for_in_any_thread_and_beside_an_event_loop_and_says_nothing(
    joined: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**RAY_AUTH, "TMPDIR": str(joined.tmp)}.items():
        monkeypatch.setenv(name, value)
    runs: list[squall.Run] = []

    async def ask() -> None:
        runs.append(squall.run(scenario_mapping(), joined.out, ray=joined.ray, seed=11))

    thread = threading.Thread(target=lambda: asyncio.run(ask()))
    thread.start()
    thread.join()
    (run,) = runs
    assert run.path == joined.store().run_dir
    assert run.verdict.status in ("VALID", "INVALID")
    assert joined.store().manifest.seed == 11
    assert run.table("requests", ["outcome"]).num_rows > 0
    assert capfd.readouterr() == ("", "")
    joined.wait_until_gone()


def start_run(bench: Bench) -> Live:
    """Asks for a run from Python, and is in the burst."""
    assert bench.ray is not None
    mapping = scenario_mapping()
    mapping["phases"][1] |= {"duration": "30s"}
    live = bench.start_python("-c", ASKS, json.dumps(mapping), bench.out, bench.ray)
    bench.wait_for_phase("burst", 0.5)
    return live


@pytest.mark.slow
@pytest.mark.beside
def test_ctrl_c_seals_the_run_and_is_raised(joined: Bench) -> None:
    live = start_run(joined)
    live.interrupt()
    assert live.end() == 0, live.lines
    aborted = joined.aborted()
    assert joined.stdout() == f"KeyboardInterrupt the run: {aborted.run_dir}\n"
    assert squall.open_run(aborted.run_dir).verdict.reasons == ("interrupted by SIGINT",)
    assert aborted.has("requests")
    joined.wait_until_gone()


@pytest.mark.slow
@pytest.mark.beside
def test_a_run_whose_owner_is_killed_is_sealed_and_leaves_nothing(joined: Bench) -> None:
    live = start_run(joined)
    live.process.send_signal(signal.SIGKILL)
    live.end()
    joined.wait_until_gone()
    assert joined.aborted().manifest.reasons == ("interrupted by SIGTERM",)


@pytest.mark.beside
def test_a_server_that_is_not_there_is_a_target_error_with_where_the_run_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(squall.TargetError) as raised:
        squall.run(scenario_mapping(server={"url": "http://127.0.0.1:1"}), tmp_path, progress=True)
    (run_dir,) = tmp_path.iterdir()
    assert raised.value.__notes__ == [f"the run: {run_dir}"]
    assert squall.open_run(run_dir).verdict.status == "ABORTED"
    out, err = capfd.readouterr()
    assert out == ""
    assert f"squall aborted run: {run_dir}" in err.splitlines()
