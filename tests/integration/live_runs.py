"""Real runs of the command, each in a temporary folder of its own, by which its processes are known."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import phase_spans

RUN_TIMEOUT_S = 300.0
"""No run hangs so long: of several, on a host of which others have most of the CPU."""
GONE_TIMEOUT_S = 20.0
RAY_AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Of the Rays that the tests host: known to them and to the drivers that join."""
_RAY_HOST = """
import os, sys, ray
from ray._private.node import Node
for name in ("start_monitor", "start_log_monitor", "start_api_server"):  # a quarter of its CPU, and nothing asks them
    setattr(Node, name, lambda *_, **__: None)
context = ray.init(address="local", include_dashboard=False, object_store_memory=200 * 1024**2, num_cpus=1,
                   _temp_dir=sys.argv[1], log_to_driver=False, _node_ip_address=sys.argv[2] or None)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


MET_ON_A_BUSY_MACHINE = (
    "completeness",
    "losses",
    "ok share",
    "unsent",
    "sent early",
    "clock bound",
    "lost records",
)
"""Checks of a run that do not depend on how much the tests' other processes disturb the workers."""


def wait_until(is_so: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first true answer of `is_so`; fails the test when it takes longer."""
    deadline = time.monotonic() + timeout_s
    while (begun := time.monotonic()) < deadline:
        answer = is_so()
        if answer:
            return answer
        time.sleep(
            max(0.02, 4 * (time.monotonic() - begun))
        )  # a look at every process of a host takes its while
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


def scenario_mapping(**changes: Any) -> dict[str, Any]:
    """A light scenario: half a second of warm-up, 2 s of bursts, a drain until all replies are there (1.5 s on a host
    that is busy), without nsys.

    No request is tried before the load, so that a server counts those of the load alone.
    """
    mapping: dict[str, Any] = {
        "name": "try", "seed": 7,
        "model": {
            "name": "seqlen_head",
            "max_batch_size": 8,
            "queue_delay": "1ms",
            "settings": {"width": 16, "layers": 1, "sequence": 2, "classes": 2},
        },
        "clients": {"workers_per_node": 2, "timeout": "10s", "rows": {"kind": "uniform", "low": 1, "high": 4}},
        "phases": [
            {
                "name": "warmup", "kind": "warmup", "duration": "500ms",
                "arrivals": {"kind": "poisson", "rate": "60/s"},
            },
            {
                "name": "burst", "kind": "measure", "duration": "2s",
                "arrivals": {"kind": "envelope", "preset": "nasa-flash-crowd", "bin": "34ms",
                    "rate": "150/s"},
            },
            {"name": "drain", "kind": "drain", "duration": "15s"},
        ],
        "profile": {"nsys": "off", "nvml": "off"},
        **changes,
    }  # fmt: skip
    if "load" not in mapping:
        mapping["clients"] = {"try_first": False, **mapping["clients"]}
    servers = (mapping.get("server") or {}, *(mapping.get("servers") or ()))
    return without_delay(mapping) if any("url" in one for one in servers) else mapping


def without_delay(mapping: dict[str, Any]) -> dict[str, Any]:
    """The scenario for a server that runs, which has its own batcher."""
    model = {key: value for key, value in mapping["model"].items() if key != "queue_delay"}
    return {**mapping, "model": model}


def planned_rows(store: RunStore) -> dict[str, Any]:
    """Columns of `requests` by name, in the order of the plan, after the check that each arrival has one row."""
    rows: dict[str, Any] = store.read("requests").sort_by("request_id").to_pydict()
    assert rows["request_id"] == list(range(store.manifest.plan.n_arrivals))
    return rows


def unmet(store: RunStore) -> list[str]:
    """Checks of `MET_ON_A_BUSY_MACHINE` that the sealed run does not meet."""
    assert store.manifest.verdict is not None
    is_met = {check.name: check.is_met for check in store.manifest.verdict.checks}
    return [name for name in MET_ON_A_BUSY_MACHINE if not is_met[name]]


@dataclass
class Live:
    """A squall that runs in a session of its own, as under a terminal; its stderr is read as it comes."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    _reader: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self.lines += (line.rstrip("\n") for line in iter(lines.readline, ""))

    def wait_for(self, text: str, timeout_s: float = RUN_TIMEOUT_S) -> None:
        """Waits for a line on stderr that holds `text`."""

        def is_there() -> bool:
            return any(text in line for line in list(self.lines)) or self.process.poll() is not None

        wait_until(is_there, timeout_s, text)
        assert any(text in line for line in list(self.lines)), self.lines

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Signals the whole foreground process group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def end(self, timeout_s: float = RUN_TIMEOUT_S) -> int:
        """The exit code, in bounded time."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"squall did not end within {timeout_s:g} s: {self.lines}") from error
        assert self._reader is not None
        self._reader.join(5)
        return code

    def error_line(self) -> str:
        """The one line that says why it failed: the last of stderr, and the only one that begins so."""
        errors = [line for line in self.lines if line.startswith("squall: ")]
        assert len(errors) == 1, self.lines
        assert self.lines[-1] == errors[0]
        assert not any("Traceback" in line for line in self.lines)
        return errors[0]


@dataclass
class Bench:
    """A folder for one test's runs, and a temporary folder of the processes it starts.

    `within`: words before a command that run it elsewhere.
    """

    folder: Path
    tmp: Path
    ray: str | None = None
    ray_tmp: Path | None = None
    within: tuple[str, ...] = ()

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def write(self, mapping: dict[str, Any]) -> Path:
        path = self.folder / "scenario.yaml"
        path.write_text(yaml.safe_dump(mapping))
        return path

    def start(
        self,
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        module: str = "squall.cluster.entry",
    ) -> Live:
        """Starts `squall ARGUMENTS`; stdout goes to the file `stdout`."""
        return self.start_python("-m", module, *arguments, env=env, cwd=cwd)

    def start_python(
        self, *arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> Live:
        """Starts `python ARGUMENTS`; stdout goes to the file `stdout`."""
        auth = RAY_AUTH if self.ray else {}
        environment = {**os.environ, **auth, "TMPDIR": str(self.tmp), **(env or {})}
        with (self.folder / "stdout").open("w") as stdout:
            return Live(
                subprocess.Popen(
                    [*self.within, sys.executable, *map(str, arguments)], stdin=subprocess.DEVNULL,
                    stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment,
                    start_new_session=True, cwd=cwd,
                )
            )  # fmt: skip

    def start_run(self, mapping: dict[str, Any], *options: str, env: dict[str, str] | None = None) -> Live:
        """`squall run`, on the shared Ray if the bench has one."""
        ray = ["--ray", self.ray] if self.ray else []
        if "--server" in options and "model" in mapping:
            mapping = without_delay(mapping)
        return self.start("run", self.write(mapping), "--out", self.out, *ray, *options, env=env)

    def stdout(self) -> str:
        return (self.folder / "stdout").read_text()

    def store(self) -> RunStore:
        """The one run directory."""
        found = [path for path in self.out.iterdir() if path.is_dir()]  # a disk may have a filler
        assert len(found) == 1, found
        return RunStore.open(found[0])

    def wait_for_phase(self, name: str, at_least_s: float) -> None:
        """Waits until the run is `at_least_s` into the phase."""

        def is_there() -> bool:
            stores = list(self.out.glob("*/manifest.json"))
            spans = {span.name: span for span in phase_spans(self.store().manifest)} if stores else {}
            return name in spans and time.time_ns() > spans[name].start_ns + round(at_least_s * 1e9)

        wait_until(is_there, RUN_TIMEOUT_S, f"{at_least_s:g} s of phase {name}")

    def aborted(self) -> RunStore:
        """The one run directory, sealed as aborted and whole."""
        store = self.store()
        assert store.is_sealed
        assert store.manifest.status == "ABORTED"
        assert store.verify() == []
        return store

    def processes(self) -> list[psutil.Process]:
        """Living processes that the command started; on a shared Ray: servers and their tools."""
        found = processes_of(self.tmp)
        if self.ray_tmp is not None:
            names = ("tritonserver", "triton_python_", "nsys", "QdstrmImporter")
            found += [one for one in processes_of(self.ray_tmp) if _name(one).startswith(names)]
        return found

    def wait_until_gone(self) -> None:
        """Nothing that the command started runs any more, and no scratch folder of it is left."""
        wait_until(lambda: not self.processes(), GONE_TIMEOUT_S, "the end of every process")
        wait_until(lambda: not self._scratch(), GONE_TIMEOUT_S, "no scratch folder")

    def _scratch(self) -> list[Path]:
        folders = filter(None, (self.tmp, self.ray_tmp))
        return [found for folder in folders for found in folder.glob("squall-tmp-*")]


def titled(processes: Iterable[psutil.Process], title: str) -> list[psutil.Process]:
    """Those that live and have `title` in their command line."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended since
            if process.status() != psutil.STATUS_ZOMBIE and title in " ".join(process.cmdline()):
                found.append(process)
    return found


def living_in(namespace: str, title: str) -> list[psutil.Process]:
    """Those that live in a network namespace, whose command line holds `title`."""
    words = ["ip", "netns", "pids", namespace]
    pids = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    living = []
    for pid in map(int, pids):
        with contextlib.suppress(psutil.Error):
            living.append(psutil.Process(pid))
    return titled(living, title)


def processes_of(tmp: Path) -> list[psutil.Process]:
    """Living processes whose temporary folder is `tmp`, or lies in it."""
    found = []
    for process in psutil.process_iter():
        try:
            folder = process.environ().get("TMPDIR", "")
            if process.status() != psutil.STATUS_ZOMBIE and f"{folder}/".startswith(f"{tmp}/"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


class hosted_ray:  # used like a function
    """A Ray in a process of its own, with TMPDIR at `tmp` unless `env` says otherwise; gives its address.

    `host`: the IP address of its node; the one that Ray chooses if empty.
    """

    def __init__(self, tmp: Path, env: dict[str, str], host: str = "") -> None:
        self._files = tmp / "ray"
        self._host = host
        self._env = {**os.environ, **RAY_AUTH, "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(tmp), **env}

    def __enter__(self) -> str:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RAY_HOST, str(self._files), self._host], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self._env,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._files, ignore_errors=True)


@dataclass(frozen=True)
class FullRun:
    """The run that most checks look at: this machine alone, embedded Triton, nsys where it is there."""

    store: RunStore
    summary: dict[str, Any]
    code: int
    secret: str
    scenario: Path
    started: Bench
