"""Everything that a user can get wrong: one line, the right exit code, no traceback, nothing left running."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.command import Command
from tests.integration.live_runs import RAY_AUTH, Bench, scenario_mapping

pytestmark = pytest.mark.beside

_NO_INDEX = {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0",
}  # fmt: skip


def _refused(bench: Bench, live: Any, code: int) -> str:
    """The error line of a command that ended with `code` and left no run that looks good."""
    assert live.end() == code, live.lines
    line: str = live.error_line()
    if bench.out.is_dir() and any(bench.out.iterdir()):
        assert bench.aborted().tables() == []
    assert bench.stdout() == ""
    bench.wait_until_gone()
    return line


def _changed(path: str, value: Any) -> dict[str, Any]:
    """The light scenario with the key at dotted `path` set; phases by index."""
    mapping = scenario_mapping()
    *parents, last = path.split(".")
    at: Any = mapping
    for key in parents:
        at = at[int(key)] if key.isdigit() else at.setdefault(key, {})
    at[last] = value
    return mapping


def test_a_wrong_value_is_named_with_exit_code_2(alone: Bench) -> None:
    live = alone.start("run", alone.write(_changed("clients.tineout", "1s")), "--out", alone.out)
    assert "clients.tineout: unknown key, did you mean 'timeout'?" in _refused(alone, live, 2)
    assert not alone.out.exists()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("clients.timeout", "1 parsec", "clients.timeout"),
        ("phases.0.arrivals.rate", "-5/s", "phases[0].arrivals"),
        ("phases.0.arrivals", {"kind": "trace", "file": "absent.csv"}, "absent.csv"),
        ("model.name", "seqlen_heat", "seqlen_heat"),
        ("server.url", "localhost:8000", "server.url"),
        (
            "clients",
            {"data": {"path": "streams.json"}, "sequences": {"length": 3, "concurrent": 2}},
            "clients: data: its entries are not played as sequences",
        ),
    ],
)
def test_each_wrong_value_is_named(command: Command, alone: Bench, path: str, value: Any, said: str) -> None:
    code, _, line = command("run", alone.write(_changed(path, value)), "--out", alone.out)
    assert code == 2
    assert line.startswith("squall: ")
    assert line.count("\n") == 1
    assert said in line
    assert not alone.out.exists()


def test_a_malformed_trace_is_refused_with_its_row(command: Command, alone: Bench) -> None:
    (alone.folder / "trace.csv").write_text("timestamp\n0.1\n0.2\nsoon\n")
    mapping = _changed("phases.0.arrivals", {"kind": "trace", "file": "trace.csv"})
    code, out, line = command("run", alone.write(mapping), "--out", alone.out)
    assert (code, out, line.count("\n")) == (2, "", 1)
    assert "trace.csv" in line
    assert "row" in line or "line" in line
    assert "soon" in line


@pytest.mark.parametrize("name", ["analyze", "report"])
def test_a_folder_that_is_no_run_is_refused(command: Command, name: str, tmp_path: Path) -> None:
    code, out, line = command(name, tmp_path)
    assert (code, out, line.count("\n")) == (1, "", 1)
    assert "is not a run directory" in line


def test_a_wrong_option_is_a_usage_error_and_help_is_not(alone: Bench) -> None:
    live = alone.start("run", "--no-such-option")
    assert live.end() == 2
    assert not any("Traceback" in line for line in live.lines)
    assert alone.start("--help").end() == 0


def _failing(error: str, tmp_path: Path) -> str:
    """What a command says in whose place `error` is raised."""
    code = (
        "import squall.cluster.cli, squall.scenarios.config.loader\n"
        f"def fail(*_, **__): raise {error}\n"
        "squall.scenarios.config.loader.load_scenario = fail\n"
        "squall.cluster.cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "x.yaml"], capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_fault_of_ours_is_one_line_with_the_traceback_in_a_file(tmp_path: Path) -> None:
    said = _failing("ZeroDivisionError('on purpose')", tmp_path)
    assert said.startswith("squall: internal error: ZeroDivisionError: on purpose; traceback: ")
    assert "on purpose" in Path(said.split("traceback: ")[1].strip()).read_text()


def test_want_of_memory_is_no_fault_of_ours(tmp_path: Path) -> None:
    assert _failing("MemoryError", tmp_path).startswith(
        "squall: out of memory: free some, or raise the limit"
    )
    assert not list(tmp_path.glob("squall-error-*"))


def test_a_server_that_is_not_there_is_named(joined: Bench) -> None:
    live = joined.start_run(scenario_mapping(), "--server", "http://127.0.0.1:9")
    assert _refused(joined, live, 1) == "squall: no Triton is ready at http://127.0.0.1:9: Connection refused"
    assert not any("joining Ray" in line for line in live.lines), "what needs no Ray is checked before it"


@pytest.mark.slow
def test_something_else_than_triton_at_the_url_is_named(joined: Bench) -> None:
    code = (
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "while True:\n c, _ = s.accept(); c.sendall(b'SSH-2.0-x\\r\\n'); c.close()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        url = f"http://127.0.0.1:{other.stdout.readline().strip()}"
        try:
            live = joined.start_run(scenario_mapping(), "--server", url)
            assert f"no Triton is ready at {url}" in _refused(joined, live, 1)
        finally:
            other.kill()


def test_an_unreachable_ray_is_named_within_seconds(alone: Bench) -> None:
    live = alone.start("run", alone.write(scenario_mapping()), "--out", alone.out, "--ray", "127.0.0.1:9")
    assert live.end(20) == 1
    assert live.error_line() == "squall: cannot join Ray at 127.0.0.1:9: Connection refused"


def test_tritons_own_reason_is_shown_for_a_model_that_fails_to_load(joined: Bench) -> None:
    version = joined.folder / "models" / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("raise RuntimeError('the weights are gone')\n")
    (version.parent / "config.pbtxt").write_text(
        'name: "broken"\nbackend: "python"\nmax_batch_size: 8\n'
        'input [{name: "x", data_type: TYPE_FP32, dims: [4]}]\n'
        'output [{name: "y", data_type: TYPE_FP32, dims: [2]}]\n'
    )
    mapping = scenario_mapping(
        model={"name": "broken", "repository": str(version.parent.parent), "max_batch_size": 8}
    )
    line = _refused(joined, joined.start_run(mapping), 1)
    assert "broken" in line
    assert "the weights are gone" in line


@pytest.mark.slow
def test_a_repository_without_the_model_is_named(joined: Bench) -> None:
    mapping = scenario_mapping(
        model={"name": "absent", "repository": str(joined.folder), "max_batch_size": 8}
    )
    line = _refused(joined, joined.start_run(mapping), 1)
    why = "has no model 'absent', which is a folder with config.pbtxt or versions"
    assert line == f"squall: model.repository: {joined.folder} {why}"


def test_a_port_that_is_taken_is_named(joined: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = _refused(joined, joined.start_run(scenario_mapping(server={"http_port": port})), 1)
    assert line == f"squall: server.http_port: port {port} on 127.0.0.1: Address already in use"


def test_no_free_port_is_named() -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("a network namespace with few ports needs root, unshare and ip")
    code = (
        "from squall.cluster.node.server import free_ports; from squall.scenarios.config.servers import ServerConfig\n"
        "from squall.scenarios.errors import TargetError\n"
        "try: free_ports(ServerConfig())\n"
        "except TargetError as error: print(error)\n"
    )
    few = 'ip link set lo up && echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range && exec "$@"'
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", few, "sh", sys.executable, "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "ip_local_port_range" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"a network namespace with few ports: {done.stderr.strip()}")
    assert done.stdout.strip() == "no free port on 127.0.0.1: Address already in use", done.stderr


@pytest.mark.slow
def test_a_cut_off_cache_and_no_package_index_say_what_to_do(alone: Bench) -> None:
    if shutil.which("tritonserver"):
        pytest.skip("tritonserver is on the PATH: no wheel is fetched")
    cache = alone.folder / "cache"
    (cache / "triton-nvidia-pytriton-0.7.0" / "pytriton").mkdir(parents=True)
    live = alone.start_run(scenario_mapping(), env={**_NO_INDEX, "SQUALL_CACHE_DIR": str(cache)})
    line = _refused(alone, live, 1)
    assert "nvidia-pytriton==0.7.0 is not cached and could not be fetched" in line
    assert "pass --server URL" in line
    assert [path.name for path in cache.iterdir()] == ["triton-nvidia-pytriton-0.7.0"]


def test_a_damaged_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from squall.cluster.node.triton_home import find_triton
    from squall.scenarios.errors import TargetError

    home = tmp_path / "triton-nvidia-pytriton-0.7.0"
    home.mkdir()
    (home / "complete").touch()
    monkeypatch.setenv("SQUALL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(TargetError, match="damaged: remove"):
        find_triton()


@contextmanager
def _closed_stderr() -> Iterator[int]:
    read, write = os.pipe()
    os.close(read)
    try:
        yield write
    finally:
        os.close(write)


@pytest.mark.slow
def test_a_terminal_that_went_away_and_a_bare_environment_do_not_stop_a_run(joined: Bench) -> None:
    bare = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
    assert joined.ray is not None
    with _closed_stderr() as stderr:
        done = subprocess.run(
            [sys.executable, "-m", "squall.cluster.cli", "run", str(joined.write(scenario_mapping())), "--json",
             "--out", str(joined.out), "--ray", joined.ray],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            env=bare | RAY_AUTH | {"TMPDIR": str(joined.tmp)},
            timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 3)
    assert joined.store().is_sealed
    joined.wait_until_gone()
