"""The locustfiles of other tests are true ones: `locust` itself runs them; and each of its options is known to us."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from squall.scenarios.config import locust as load
from tests.integration import bad_locustfiles
from tests.integration.serving import serving

FOLDER = Path(__file__).parent / "locustfiles"
ENDLESS = {"shape_steps"}
"""Under `locust` a shape runs until it says None, whatever --run-time says."""
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in {"__init__", *ENDLESS})
FAILING = {("http_user", "refused")}
TIMEOUT_S = 60.0
_LIST_OPTIONS = """
import json
from locust.argument_parser import default_args_dict, get_parser
print(json.dumps([action.option_strings for action in get_parser()._actions]))
"""
LEFT = {
    "--config-users", "--web-host-display-name", "--web-auth", "--web-login", "--tls-cert", "--tls-key",
    "--class-picker", "--build-path", "--legacy-ui", "--web-base-path", "--enable-rebalancing", "--loglevel", "-L",
    "--equal-weights", "--profile", "--otel",
}  # fmt: skip
"""Options that are Locust's to honour: of its web page, of its runner, of what it tells others."""


def started(file: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "locust", "-f", str(file), "--headless", "-u", "3", "-r", "10", "-t", "6s", "-L",
        "ERROR", "--only-summary", *options,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.beside
def test_locust_itself_runs_each_of_them(tmp_path: Path) -> None:
    with serving(tmp_path / "server") as (_, endpoint):
        more = {"own_option": ["--tenant", "me"]}
        running = {
            name: started(
                FOLDER / f"{name}.py",
                "--host",
                str(endpoint.url),
                "--json-file",
                str(tmp_path / name),
                *more.get(name, []),
            )
            for name in NAMES
        }
        said = {name: process.communicate(timeout=TIMEOUT_S)[0] for name, process in running.items()}
    for name in NAMES:
        rows = {one["name"]: one for one in json.loads((tmp_path / f"{name}.json").read_text())}
        assert sum(one["num_requests"] for one in rows.values()) > 10, said[name]
        failed = {row for row, told in rows.items() if told["num_failures"]}
        assert {(name, row) for row in failed} <= FAILING, said[name]
        if name == "own_option":
            assert set(rows) == {"look of me"}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.beside
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bad_locustfiles.SYNTAX_ERROR, "SyntaxError: "),
        (bad_locustfiles.NO_USERS, "No User class found!"),
        (bad_locustfiles.ABSTRACT_USERS, "No User class found!"),
        (bad_locustfiles.MISSING_IMPORT, "No module named 'no_such_package_of_a_test'"),
        (bad_locustfiles.RAISES_ON_IMPORT, "no account is left"),
        (bad_locustfiles.NO_TASKS, "No tasks defined on Idle"),
        (bad_locustfiles.ON_START_RAISES, "ValueError: no such account"),
        (bad_locustfiles.ON_START_RAISES_FOR_SOME, "ValueError: this account is locked"),
        (bad_locustfiles.WEIGHT_0, "There are no users with weight > 0."),
        (bad_locustfiles.TASK_RAISES, "KeyError: 'token'"),
    ],
)
def test_bad_ones_fail_there_too(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "locustfile.py"
    file.write_text(text)
    process = started(file, "--host", "http://127.0.0.1:9")
    assert said in process.communicate(timeout=TIMEOUT_S)[0]
    assert process.returncode != 0


@pytest.mark.slow
def test_each_option_of_locust_is_ours_or_squalls_or_left_to_it() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", _LIST_OPTIONS], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    found = {option for options in json.loads(listed.stdout.splitlines()[-1]) for option in options}
    assert found - load.OURS.keys() - {*load.SQUALLS, *load.INSTEAD} == LEFT
    assert load.OURS.keys() <= found
    assert {*load.SQUALLS, *load.INSTEAD} <= found
