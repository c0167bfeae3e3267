"""`squall demo`: the bundled scenario, at a rate that suits this machine."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from squall.cluster.commands.options import (
    JsonOption,
    OutOption,
    SeedOption,
    SetOption,
    VerboseOption,
    changes_of,
)
from squall.cluster.commands.run import run_once

_LOAD_RATIO = 0.5
_MANY = 100_000


def demo(
    out: OutOption = "runs",
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
    is_verbose: VerboseOption = False,
) -> None:
    """The bundled scenario on this machine alone: embedded Triton, bursty trace. No GPU needed."""
    from squall.scenarios.config.loader import load_scenario

    with resources.as_file(resources.files("squall.scenarios.config").joinpath("demo.yaml")) as path:
        changes = [*_rate(path), *changes_of(overrides, seed, None)]
        scenario = load_scenario(path, changes)
    run_once(scenario, out, None, as_json, is_verbose, ends_by_promises=False)


def _rate(path: Path) -> list[str]:
    """The rate of the demo's burst, scaled to this machine: 50 % of what one core serves on average."""
    import numpy as np

    from squall.models.pace import measure_pace
    from squall.scenarios.config.loader import load_scenario
    from squall.scenarios.plan.mix import draw_rows

    scenario = load_scenario(path)
    model = scenario.models[0].model
    rows_per_s = measure_pace(model.name, model.settings, model.max_batch_size)
    mean_rows = draw_rows(scenario.clients.rows, np.random.default_rng(0), _MANY).mean()
    rate_hz = float(f"{_LOAD_RATIO * rows_per_s / mean_rows:.2g}")
    sys.stderr.write(
        f"squall one core here serves {rows_per_s:.0f} rows/s of {model.name} at this size: "
        f"the burst offers {rate_hz:g} requests/s on average\n"
    )
    return [f"phases.burst.arrivals.rate={rate_hz:g}/s"]
