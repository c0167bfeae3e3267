"""Ctrl-C while modules are imported and while the process ends: one line or nothing, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from squall.cluster.cli import app
from squall.cluster.entry import ORDERLY

_PRELUDE = """
import atexit, os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Interrupting())
if {at_exit}:
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["squall", *{words!r}]
from squall.cluster.entry import main
main()
"""


def ended(words: list[str], module: str = "", at_exit: bool = False) -> subprocess.CompletedProcess[str]:
    """`squall WORDS` that gets SIGINT as it begins to import `module`, or in its exit handlers."""
    program = _PRELUDE.format(module=module, at_exit=at_exit, words=words)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "module",
    [
        "typer",
        "squall.scenarios.config.loader",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("numpy", "pydantic", "duckdb")),
    ],
)
def test_ctrl_c_while_modules_are_imported_is_one_line(module: str) -> None:
    done = ended(["run", "/nonexistent.yaml"] if module != "duckdb" else ["analyze", "/nonexistent"], module)
    assert (done.returncode, done.stderr, done.stdout) == (1, "squall: interrupted by SIGINT\n", "")


def test_ctrl_c_in_a_command_that_has_no_order_to_keep_is_one_line_too() -> None:
    done = ended(["models", "list"], "squall.models.spec")
    assert (done.returncode, done.stderr) == (1, "squall: interrupted\n")


def test_ctrl_c_while_the_process_ends_changes_nothing() -> None:
    done = ended(["models", "list"], at_exit=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "linear_head" in done.stdout


def test_the_commands_that_take_signals_themselves_are_commands() -> None:
    assert {one.callback.__name__ for one in app.registered_commands if one.callback} >= ORDERLY
