"""The scenario of a run from elsewhere names files of this machine: `squall resume` shows nothing of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from squall.analysis.storage.manifest import OPEN, Manifest, PhaseFacts, PlanFacts
from squall.cluster.driver.resume import _Resuming
from squall.scenarios.errors import ClusterError

S = 1_000_000_000


@pytest.mark.parametrize("content", ["root:secret:1:2\nbin:secret:3:4\n", "1.0\nsecret\n", None])
def test_of_a_trace_that_the_run_names_nothing_is_shown(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "shadow"
    if content is not None:
        path.write_text(content)
    arrivals = {"kind": "trace", "file": str(path), "unit": "s"}
    scenario: dict[str, Any] = {
        "name": "theirs", "seed": 1, "model": {"name": "linear_head"},
        "phases": [
            {"name": "m", "kind": "measure", "duration": "3s", "arrivals": arrivals},
            {"name": "d", "kind": "drain", "duration": "1s"},
        ],
    }  # fmt: skip
    before = Manifest(
        run="r", state=OPEN, scenario=scenario, plan=PlanFacts(load="open", sha256="0"),
        phases=(PhaseFacts(name="m", kind="measure", start_ns=0, end_ns=3 * S),),
    )  # fmt: skip
    store = SimpleNamespace(run="r", run_dir=tmp_path, manifest=before)
    with pytest.raises(ClusterError, match=r"^the plan of this run cannot be made again: ") as caught:
        _Resuming(cast(Any, store), cast(Any, SimpleNamespace(step=print)))._plan()
    assert "secret" not in str(caught.value)
