"""What the kernel library records on a real GPU, and what it costs there.

    python -m tests.bench.kernel_library same          counts and names against torch.profiler, causality
    python -m tests.bench.kernel_library rate          100,000 kernels/s for 60 s, and as many as the GPU does for 10 s
    python -m tests.bench.kernel_library cost          a batch with recording on and off, several settings
    python -m tests.bench.kernel_library idle          a batch with the library loaded and off against without it
    python -m tests.bench.kernel_library server HEAD   the same in a Triton under 1,500 requests/s
    python -m tests.bench.kernel_library nsys HEAD     the same by nsys, started and cancelled
    python -m tests.bench.kernel_library loaded HEAD   loaded and off, and the batch library, against neither

Each prints one JSON object. `--library FILE` names the built library where it is not installed. Costs are of windows
that follow one another: one with recording on against the mean of the two beside it that are off, as a ratio; the
interval is the 2.5th to 97.5th percentile of the median ratio over 2,000 resamples of the windows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np

from squall.actors.inject.kernel_library import find_cupti, find_rings, kernel_environment
from squall.actors.inject.kernel_ring import (
    Activities,
    Array,
    KernelKinds,
    KernelRing,
    Names,
    activities,
)  # fmt: skip
from squall.actors.inject.library import built_library
from squall.actors.inject.ring_file import RingError
from tests.bench.kernel_program import GRAPH_KERNELS

_ROOT = Path(__file__).parents[2]
_DRAIN_S = 0.05
_PATIENCE_S = 60.0
KINDS = KernelKinds.KERNELS | KernelKinds.COPIES
ALL = KINDS | KernelKinds.SYNC | KernelKinds.RUNTIME | KernelKinds.DRIVER


class Rings:
    """All rings of a folder: drained by a thread of their own, switched together."""

    def __init__(self, folder: Path, keeps: bool = False) -> None:
        self._folder, self._keeps = folder, keeps
        self._rings: dict[Path, KernelRing] = {}
        self.names: dict[int, Names] = {}
        self.kept: dict[int, list[Activities]] = {}
        self.n_kernels: Counter[int] = Counter()
        self.switch_us: dict[bool, list[float]] = {True: [], False: []}
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._drain_all)
        self._thread.start()

    def _drain_all(self) -> None:
        while not self._ended.wait(_DRAIN_S):
            self.drain()

    def drain(self) -> None:
        with self._lock:
            for path in find_rings(self._folder, self._rings):
                try:
                    self._rings[path] = KernelRing(path)
                except RingError:
                    continue
            for ring in self._rings.values():
                self._take(ring)

    def _take(self, ring: KernelRing) -> None:
        names = self.names.setdefault(ring.pid, Names())
        found = activities(ring.drain(), names)
        self.n_kernels[ring.pid] += len(found.kernels)
        if self._keeps:
            self.kept.setdefault(ring.pid, []).append(found)

    def switch(self, is_on: bool) -> tuple[int, int]:
        """All at once; from when on, until when the last had been."""
        self.drain()
        begun_ns = time.monotonic_ns()
        living = [ring for ring in self._rings.values() if Path(f"/proc/{ring.pid}").exists()]
        for ring in living:
            ring.switch(is_on)
        for ring in living:
            done = ring.switched(_PATIENCE_S)
            if done is None:
                raise RuntimeError(f"{ring.state} did not answer")
            self.switch_us[is_on].append((done.done_ns - begun_ns) / 1e3)
        return begun_ns, time.monotonic_ns()

    def states(self) -> list[str]:
        return [str(ring.state) for ring in self._rings.values()]

    def losses(self) -> list[dict[str, int]]:
        return [asdict(ring.lost()) for ring in self._rings.values()]

    def switch_figures(self) -> dict[str, Any]:
        """Microseconds from the wish until it held, over all rings."""
        return {
            ("on" if is_on else "off"): {f"p{q}": round(float(np.percentile(us, q)), 1) for q in (50, 95, 100)}
            for is_on, us in self.switch_us.items()
            if us
        }  # fmt: skip

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self.drain()
        for ring in self._rings.values():
            ring.close()


class Child:
    """The program of `tests.bench.kernel_program`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.kernel_program"], cwd=_ROOT, env={**os.environ, **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.begun = self.answer()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the program ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str) -> dict[str, Any]:
        self.send(line)
        return self.answer()

    def end(self) -> int:
        self._process.communicate()
        return self._process.returncode


@contextmanager
def under(
    library: Path, kinds: KernelKinds, settings: Mapping[str, str], keeps: bool = False
) -> Iterator[tuple[Child, Rings]]:
    """The program with the library, off, and its rings; ended by itself."""
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        child = Child(kernel_environment(library, Path(folder), kinds, find_cupti()) | dict(settings))
        rings = Rings(Path(folder), keeps)
        try:
            yield child, rings
        finally:
            code = child.end()
            rings.end()
            if code:
                raise RuntimeError(f"the program ended with {code}")


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def effect(ratios: list[float]) -> dict[str, Any]:
    """Median change in percent, its interval, and the change of each pair: a host that stalls once moves no median."""
    percent = 100 * (np.array(ratios) - 1)
    rng = np.random.default_rng(1)
    medians = np.median(percent[rng.integers(0, len(percent), (2_000, len(percent)))], axis=1)
    low, high = np.percentile(medians, (2.5, 97.5))
    median = float(np.median(percent))
    return {
        "percent": round(median, 2), "low": round(float(low), 2), "high": round(float(high), 2),
        "all": sorted(percent.round(1).tolist()),
    }  # fmt: skip


def window_effects(windows: list[tuple[bool, int, int]], began_ns: Array, took_ns: Array) -> dict[str, Any]:
    """Quantiles of each window that is on against the mean of those beside it; windows alternate, from off to off."""
    found: dict[str, Any] = {}
    parts = [took_ns[(began_ns >= begin) & (began_ns < end)] for _, begin, end in windows]
    for name, figure in FIGURES.items():
        values = [figure(part) for part in parts]
        ratios = [
            2 * values[i] / (values[i - 1] + values[i + 1])
            for i in range(1, len(values) - 1)
            if windows[i][0]
        ]
        off = [value for (is_on, _, _), value in zip(windows, values, strict=True) if not is_on]
        found[name] = effect(ratios) | {"off_us": round(float(np.mean(off)) / 1e3, 1)}
    found["n_in_window"] = int(np.median([len(part) for part in parts]))
    return found


def _quantile(percent: float) -> Callable[[Array], float]:
    return lambda part: float(np.percentile(part, percent))


FIGURES: dict[str, Callable[[Array], float]] = {
    "mean": lambda part: float(part.mean()), "p50": _quantile(50), "p95": _quantile(95), "p99": _quantile(99),
}  # fmt: skip


def alternate(
    switch: Callable[[bool], object], n_on: int, length_s: float, guard_s: float
) -> list[tuple[bool, int, int]]:
    """Windows off, on, off, …, off; (is on, begin, end) less a guard after each switch, which returns when done."""
    windows = []
    for index in range(2 * n_on + 1):
        is_on = index % 2 == 1
        if index:
            switch(is_on)
        begin_ns = time.monotonic_ns() + round(guard_s * 1e9)
        time.sleep(length_s)
        windows.append((is_on, begin_ns, time.monotonic_ns()))
    return windows


# same


def traced(file: Path) -> tuple[Counter[str], Counter[int]]:
    """Kernels by name and copies by bytes of PyTorch's trace."""
    events = json.loads(file.read_text())["traceEvents"]
    kernels = Counter(event["name"] for event in events if event.get("cat") == "kernel")
    copies = Counter(int(event["args"]["bytes"]) for event in events if event.get("cat") == "gpu_memcpy")
    return kernels, copies


def whole(parts: list[Activities], kind: str) -> Array:
    return np.concatenate([getattr(part, kind) for part in parts])


def causality(parts: list[Activities]) -> dict[str, Any]:
    """Kernels against the call that launched them, and against the first wait of the host that came after."""
    kernels, calls = whole(parts, "kernels"), whole(parts, "runtime_calls")
    launched = {int(row["correlation_id"]): int(row["start_ns"]) for row in calls}
    lead = np.array([row["start_ns"] - launched[int(row["correlation_id"])] for row in kernels
                     if int(row["correlation_id"]) in launched])  # fmt: skip
    names = parts[-1].names
    waits = np.sort(np.array(
        [(int(row["start_ns"]), int(row["end_ns"])) for row in calls
         if "Synchronize" in names.get(int(row["name"]), "")], np.int64).reshape(-1, 2), axis=0)  # fmt: skip
    ends, launches = kernels["end_ns"], [launched.get(int(one)) for one in kernels["correlation_id"]]
    slack = []
    for end_ns, launch_ns in zip(ends, launches, strict=True):
        if launch_ns is None:
            continue
        index = int(np.searchsorted(waits[:, 0], launch_ns))
        if index < len(waits):
            slack.append(int(waits[index, 1]) - int(end_ns))
    return {
        "n_kernels_with_call": len(lead), "launch_to_start_ns": _spread(lead),
        "end_to_end_of_wait_ns": _spread(np.array(slack)),
    }  # fmt: skip


def _spread(values: Array) -> dict[str, int]:
    if not len(values):
        return {}
    return {
        name: int(np.percentile(values, q)) for name, q in (("least", 0), ("p1", 1), ("p50", 50), ("p99", 99))
    }


def same(library: Path) -> dict[str, Any]:
    """The same work under PyTorch's profiler and under the library, in two processes."""
    n = 200
    with tempfile.TemporaryDirectory() as folder:
        child = Child({})
        child.ask(f"batches {n}")
        file = Path(folder) / "trace.json"
        child.ask(f"profiled {n} {file}")
        child.end()
        their_kernels, their_copies = traced(file)
    with under(library, ALL, {}, keeps=True) as (child, rings):
        child.ask(f"batches {n}")
        rings.switch(True)
        child.ask(f"batches {n}")
        rings.switch(False)
        time.sleep(1)
        states, losses = rings.states(), rings.losses()
    (parts,) = rings.kept.values()
    kernels, copies = whole(parts, "kernels"), whole(parts, "memcpys")
    names = parts[-1].names
    our_kernels = Counter(names.get(int(name), "?") for name in kernels["name"])
    our_copies = Counter(map(int, copies["bytes"]))
    return {
        "kernels": [sum(our_kernels.values()), sum(their_kernels.values())],
        "kernels_equal": our_kernels == their_kernels,
        "copies_equal": our_copies == their_copies, "copies": [sum(our_copies.values()), sum(their_copies.values())],
        "differ": [[name, our_kernels[name], their_kernels[name]] for name in {*our_kernels, *their_kernels}
                   if our_kernels[name] != their_kernels[name]][:8],
        "kernels_in_graphs": int((kernels["graph"] != 0).sum()),
        "expected_in_graphs": n // 10 * GRAPH_KERNELS, "states": states, "losses": losses,
        "n_syncs": len(whole(parts, "syncs")), "n_runtime": len(whole(parts, "runtime_calls")),
        "n_driver": len(whole(parts, "driver_calls")), **causality(parts), "names": sorted(our_kernels)[:6],
    }  # fmt: skip


# rate


def rate(library: Path, seconds: float) -> dict[str, Any]:
    """A known number of kernels at a high rate; memory at the begin and the end."""
    found = {}
    for name, rate_hz, length_s in (("100,000/s", 100_000.0, seconds), ("as fast as it goes", 1e9, 10.0)):
        with under(library, KINDS, {}) as (child, rings):
            child.ask("graph 100000 2")
            rings.switch(True)
            before = child.ask("graph 100000 2")
            done = child.ask(f"graph {rate_hz:g} {length_s:g}")
            rings.switch(False)
            time.sleep(1.5)
            rings.drain()
            made, losses = before["n_kernels"] + done["n_kernels"], rings.losses()
            found[name] = {
                "kernels": made, "recorded": sum(rings.n_kernels.values()), "took_s": round(done["took_s"], 2),
                "kernels_hz": round(done["n_kernels"] / done["took_s"]), "losses": losses,
                "rss_mib": [round(one["rss_bytes"] / 2**20) for one in (child.begun, before, done)],
                "gpu_mib_more": round(done["gpu_bytes_more"] / 2**20, 1),
            }  # fmt: skip
    return found


# cost

SETTINGS: dict[str, tuple[KernelKinds, dict[str, str]]] = {
    "kernels, copies": (KINDS, {}),
    "no flush of ours": (KINDS, {"SQUALL_KERNEL_FLUSH_MS": "0"}),
    "flush 20 ms": (KINDS, {"SQUALL_KERNEL_FLUSH_MS": "20"}),
    "flush 1 s": (KINDS, {"SQUALL_KERNEL_FLUSH_MS": "1000"}),
    "buffers of 128 KiB": (KINDS, {"SQUALL_KERNEL_BUFFER_BYTES": str(1 << 17)}),
    "buffers of 8 MiB": (KINDS, {"SQUALL_KERNEL_BUFFER_BYTES": str(1 << 23)}),
    "kernels": (KernelKinds.KERNELS, {}),
    "and sync": (KINDS | KernelKinds.SYNC, {}),
    "and runtime": (KINDS | KernelKinds.RUNTIME, {}),
    "and runtime, driver": (KINDS | KernelKinds.RUNTIME | KernelKinds.DRIVER, {}),
}


def cost_of(library: Path, kinds: KernelKinds, settings: Mapping[str, str], n_on: int = 16) -> dict[str, Any]:
    """Batches one after another in one process while recording goes on and off every 0.3 s."""
    length_s, guard_s = 0.3, 0.02
    with (
        tempfile.TemporaryDirectory() as folder,
        under(library, kinds, settings) as (child, rings),
    ):
        file = Path(folder) / "instants.npy"
        child.send(f"loop {(2 * n_on + 2) * (length_s + 0.01) + 2:g} {file}")
        time.sleep(1)
        rings.drain()
        windows = alternate(rings.switch, n_on, length_s, guard_s)
        child.answer()
        instants = np.load(file)
        effects = window_effects(windows, instants[:, 0], instants[:, 1] - instants[:, 0])
        return effects | {"switch_us": rings.switch_figures(), "states": rings.states(), "losses": rings.losses(),
                          "recorded": sum(rings.n_kernels.values())}  # fmt: skip


def cost(library: Path, others: list[Path]) -> dict[str, Any]:
    """Of every setting, and of other builds of the library with the default one."""
    found = {name: cost_of(library, *setting) for name, setting in SETTINGS.items()}
    for other in others:
        found[other.name] = cost_of(other, KINDS, {})
    found["kernels, copies again"] = cost_of(library, KINDS, {})
    return found


def idle(library: Path, n_pairs: int) -> dict[str, Any]:
    """Programs with the library loaded and off, and without it, in turn: ABBA. Of 3 s of batches each."""
    found: dict[bool, list[list[float]]] = {True: [], False: []}
    for pair in range(n_pairs):
        for is_loaded in (True, False) if pair % 2 else (False, True):
            found[is_loaded].append(_idle(library, is_loaded))
    with_it, without = np.array(found[True]), np.array(found[False])
    return {
        name: effect(list(with_it[:, index] / without[:, index]))
        | {"without_us": round(float(without[:, index].mean()) / 1e3, 1)}
        for index, name in enumerate(FIGURES)
    }


def _idle(library: Path, is_loaded: bool) -> list[float]:
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        rings = Path(folder)
        child = Child(kernel_environment(library, rings, KINDS, find_cupti()) if is_loaded else {})
        file = rings / "instants.npy"
        child.ask(f"loop 3 {file}")
        child.end()
        if len(find_rings(rings)) != is_loaded:
            raise RuntimeError("the library was not where it should be, or was where it should not")
        instants = np.load(file)
    took_ns = instants[:, 1] - instants[:, 0]
    return [figure(took_ns) for figure in FIGURES.values()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["same", "rate", "cost", "idle", "server", "nsys", "loaded"])
    parser.add_argument("head", nargs="?", default="linear_head")
    parser.add_argument("--library", type=Path, default=built_library("kernels"))
    parser.add_argument("--other", type=Path, action="append", default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--graphs", action="store_true")
    kinds_named = [str(kind.name).lower() for kind in KernelKinds]
    parser.add_argument("--kinds", nargs="+", choices=kinds_named, default=["kernels", "copies"])
    parser.add_argument("--trace", nargs="+", default=["cuda", "nvtx", "osrt"])
    parser.add_argument("--graph-trace", choices=["node", "graph"], default="node")
    options = parser.parse_args()
    library: Path = options.library
    match options.what:
        case "same":
            found = same(library)
        case "rate":
            found = rate(library, options.seconds)
        case "cost":
            found = cost(library, options.other)
        case "idle":
            found = idle(library, options.pairs)
        case "server":
            from tests.bench.kernel_server import server_cost

            kinds = reduce(or_, (KernelKinds[name.upper()] for name in options.kinds))
            found = server_cost(library, options.head, options.pairs, options.graphs, kinds)
        case "nsys":
            from tests.bench.kernel_server import nsys_cost

            profile = {"trace": options.trace, "cuda_graph_trace": options.graph_trace}
            found = nsys_cost(options.head, options.pairs, options.graphs, profile, options.seconds)
        case _:
            from tests.bench.kernel_server import loaded_cost

            found = loaded_cost(library, options.head, options.pairs)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
