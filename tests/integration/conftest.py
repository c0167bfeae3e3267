"""Real runs as fixtures; what is marked neither `beside` nor `single` is serial."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.cluster.node.server import TritonServer
from squall.cluster.remote.session import LOCAL
from squall.scenarios.config.loader import scenario_from_mapping
from tests.integration.live_runs import Bench, FullRun, hosted_ray, scenario_mapping


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            if "full_run" in getattr(item, "fixturenames", ()):  # under nsys, and made once
                item.add_marker(pytest.mark.single)
            if not any(map(item.get_closest_marker, ("beside", "single", "serial"))):
                item.add_marker(pytest.mark.serial)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary folder with a short path: Ray's sockets lie in it, whose paths have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def alone(tmp_path: Path, short_tmp: Path) -> Bench:
    """A bench whose runs have this machine alone, without Ray."""
    return Bench(tmp_path, short_tmp)


@pytest.fixture
def with_own_ray(tmp_path: Path, short_tmp: Path) -> Bench:
    """A bench whose runs start a Ray of their own."""
    return Bench(tmp_path, short_tmp, LOCAL)


@pytest.fixture(scope="package")  # an idle Ray still takes CPU from the tests after these
def shared_ray() -> Iterator[tuple[str, Path]]:
    """Address and temporary folder of a Ray that many tests join, each as a driver of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp") as folder,
        hosted_ray(Path(folder), {}) as address,
    ):
        yield address, Path(folder)


@pytest.fixture
def joined(tmp_path: Path, short_tmp: Path, shared_ray: tuple[str, Path]) -> Bench:
    """A bench whose runs join the shared Ray."""
    return Bench(tmp_path, short_tmp, *shared_ray)


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullRun]:
    """1 s of warm-up, 6 s of bursts, a drain; two workers; from another folder, with a space in --out."""
    with tempfile.TemporaryDirectory(prefix="sqt", dir="/tmp") as tmp:
        bench = Bench(tmp_path_factory.mktemp("full run"), Path(tmp))
        mapping = scenario_mapping(profile={"nsys": "auto", "nvml": "off", "osrt_threshold": "10us"})
        mapping["phases"][0]["duration"] = "1s"
        mapping["phases"][1] |= {"duration": "6s"}
        mapping["phases"][1]["arrivals"]["bin"] = "100ms"
        secret = secrets.token_hex(16)
        live = bench.start(
            "run",
            bench.write(mapping),
            "--out",
            bench.out,
            "--json",
            env={"SQUALL_TEST_SECRET": secret},
            cwd=Path("/"),
        )
        code = live.end()
        assert code in (0, 3), live.lines
        bench.wait_until_gone()
        yield FullRun(
            bench.store(), json.loads(bench.stdout()), code, secret, bench.folder / "scenario.yaml", bench
        )


@pytest.fixture
def own_triton(tmp_path: Path) -> Iterator[str]:
    """URL of a Triton that the test started, with the light scenario's model."""
    scenario = scenario_from_mapping(scenario_mapping(), "test")
    server = TritonServer([scenario.models[0].model], scenario.server, tmp_path, None, has_gpu=False)
    try:
        yield server.start().url
    finally:
        server.stop()
