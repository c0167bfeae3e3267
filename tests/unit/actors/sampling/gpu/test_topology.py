"""Where GPUs sit, told by a scripted NVML and a folder in the place of the kernel's."""

from __future__ import annotations

import sys
from pathlib import Path

import pynvml
import pytest

from squall.actors.sampling.gpu.source import gpu_places
from squall.scenarios.records import GpuPlace
from tests.unit.actors.fake_nvml import FakeGpu, FakeNvml


def a_gpu(uuid: str, bus: bytes, first_core: int, other: str) -> FakeGpu:
    return FakeGpu(
        uuid=uuid,
        values={
            "bus": bus, "affinity": (0b11 << first_core,), f"way to {other}": pynvml.NVML_TOPOLOGY_SYSTEM,
            "n_nvlinks": 4, "pcie_generation": 5, "pcie_lanes": 16,
        },
    )  # fmt: skip


def test_two_gpus_on_two_numa_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus = [a_gpu("GPU-a", b"00000000:1B:00.0", 0, "GPU-b"), a_gpu("GPU-b", b"00000001:9C:00.0", 2, "GPU-a")]
    nvml = FakeNvml(*gpus)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for name, node in (("0000:1b:00.0", "0"), ("0001:9c:00.0", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "numa_node").write_text(f"{node}\n")
    across = "across NUMA nodes"
    assert gpu_places(tmp_path) == [
        GpuPlace(
            uuid=uuid, pcie_generation=5, pcie_lanes=16, numa_node=node, cores=cores, n_nvlinks=4, ways=ways
        )
        for uuid, node, cores, ways in (
            ("GPU-a", 0, (0, 1), {"GPU-b": across}),
            ("GPU-b", 1, (2, 3), {"GPU-a": across}),
        )
    ]
    assert nvml.n_inits == 0


def test_what_a_gpu_does_not_tell_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu()))
    assert gpu_places(tmp_path) == [GpuPlace(uuid="GPU-0")]


@pytest.mark.parametrize("told", ["-1", "none"])
def test_a_firmware_that_does_not_say_the_numa_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(FakeGpu(values={"bus": b"00000000:1B:00.0"})))
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0" / "numa_node").write_text(told)
    assert gpu_places(tmp_path)[0].numa_node is None


def test_no_place_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.is_driver_missing = True
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_places() == []
