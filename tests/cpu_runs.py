"""What the made-up run of the unit tests lacks: samples of who had the CPU, and of models behind the one under load."""

from __future__ import annotations

from typing import Any, Protocol

START_NS = 1_795_250_252_000_000_000
S = 1_000_000_000


class Run(Protocol):
    """A run as `tests/unit/analysis/conftest.py` makes it up: columns by table, and its manifest."""

    manifest: dict[str, Any]
    tables: dict[str, dict[str, list[Any]]]


def cpu_of_the_node(run: Run, **cores: float) -> None:
    """12 seconds of the measure phase in which each group had so many cores of two; `wait`: the server's threads, which
    got a CPU `runs` times a second."""
    had = {f"{name}_ns": cores.get(name, 0.0) for name in ("server", "clients", "squall", "others", "steal")}
    had["idle_ns"] = 2.0 - sum(had.values())
    waits = {"server_wait_ns": cores.get("wait", 0.0), "clients_wait_ns": cores.get("clients_wait", 0.0)}
    quota = ("server_quota_cores", "server_periods", "server_throttled_periods")
    run.tables["cpu_samples"] = {
        "phase": ["burst"] * 12, "node": ["node-0"] * 12, "t_ns": [START_NS + (2 + i) * S for i in range(1, 13)],
        "interval_ns": [S] * 12, "n_cores": [2] * 12, "server_cores": [2] * 12,
        "server_runs": [round(cores.get("runs", 0))] * 12,
        **{name: [round(value * S)] * 12 for name, value in (had | waits).items()},
        **{name: [cores[name]] * 12 for name in quota if name in cores},
    }  # fmt: skip


def make_ensemble(run: Run, *steps: str) -> None:
    """The model under load becomes an ensemble of `steps`: half of its statistics each, the first with ten times the
    queue."""
    run.manifest["servers"]["server-0"]["steps"] = list(steps)
    own = run.tables["triton_samples"]
    n = len(own["phase"])
    for number, step in enumerate(steps):
        factor = 10 if number == 0 else 1
        for name in own:
            values = own[name][:n]
            if name == "queue_ns":
                values = [factor * value for value in values]
            own[name] += [step] * n if name == "model" else values
