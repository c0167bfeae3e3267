"""Whom the watch of a local Ray ends."""

from pathlib import Path

import pytest

from squall.cluster.remote.ray_watch import belongs

FOLDER = Path("/tmp/squall-tmp-a1")
LOG = f"{FOLDER}/session_1/logs/agent.log"


@pytest.mark.parametrize(
    ("files", "command", "is_its"),
    [
        ([], ["raylet", f"--log_dir={FOLDER}/session_1/logs"], True),
        ([], ["python", f"--temp-dir={FOLDER}"], True),
        (["pipe:[1]", LOG], ["ray::DashboardAgent", "", ""], True),
        (["/dev/null", LOG], ["python", "-m", "squall.cluster.remote.served", "NodeAgent"], False),
        (["pipe:[1]", "/tmp/squall-tmp-a12/x.log"], ["ray::DashboardAgent"], False),
        ([], ["raylet", f"--log_dir={FOLDER}2/session_1/logs"], False),
        ([LOG], [], False),
        ([], ["python", "-m", "squall.cluster.remote.ray_watch", f"{FOLDER}"], False),
    ],
)
def test_belongs(files: list[str], command: list[str], is_its: bool) -> None:
    assert belongs(FOLDER, files, command) is is_its
