"""Which GPUs a process's CUDA devices are, by the environment that it was started with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from squall.analysis.storage.collected import RecordedGpu
from squall.cluster.node.injected import process_gpus
from squall.cluster.node.injected.process_gpus import (
    Gpu,
    container_gpus,
    gpus_of,
    recorded_gpus,
    visible_gpus,
)

EQUAL = [Gpu("GPU-aa01", "H200"), Gpu("GPU-aa02", "H200"), Gpu("GPU-bb03", "H200")]
MIXED = [Gpu("GPU-aa01", "T4"), Gpu("GPU-aa02", "H200")]
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
SECOND = {"CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("2,0", ("GPU-bb03", "GPU-aa01")),
        (" 1 ", ("GPU-aa02",)),
        ("GPU-bb", ("GPU-bb03",)),
        *((other, ()) for other in ("GPU-aa", "0,7", "MIG-1234", "", "-1")),
    ],
)
def test_of_equal_gpus_numbers_follow_the_bus_and_the_list_of_what_is_visible(
    visible: str, found: tuple[str, ...]
) -> None:
    assert visible_gpus(EQUAL, {"CUDA_VISIBLE_DEVICES": visible}) == found


@pytest.mark.parametrize(
    ("gpus", "environment", "found"),
    [
        (EQUAL, {}, ("GPU-aa01", "GPU-aa02", "GPU-bb03")),
        (EQUAL, None, ()),  # it cannot be looked into
        (EQUAL[:1], None, ("GPU-aa01",)),
        (EQUAL[:1], {"CUDA_VISIBLE_DEVICES": "0"}, ("GPU-aa01",)),
        ([], {}, ()),
        ([], {"CUDA_VISIBLE_DEVICES": "0"}, ()),
        (MIXED, {}, ()),
        (MIXED, SECOND, ()),
        (MIXED, BY_BUS, ("GPU-aa01", "GPU-aa02")),
        (MIXED, SECOND | BY_BUS, ("GPU-aa02",)),
        (MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-aa02"}, ("GPU-aa02",)),
    ],
)
def test_of_unequal_gpus_numbers_say_nothing_unless_they_follow_the_bus(
    gpus: list[Gpu], environment: dict[str, str] | None, found: tuple[str, ...]
) -> None:
    assert visible_gpus(gpus, environment) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, EQUAL),
        ("all", EQUAL),
        ("2,0", [EQUAL[0], EQUAL[2]]),
        ("GPU-aa02", [EQUAL[1]]),
        ("GPU-bb03, 1", EQUAL[1:]),
        ("7", []),
        ("none", []),
        ("", []),
    ],
)
def test_a_container_numbers_those_gpus_that_it_was_given(given: str | None, found: list[Gpu]) -> None:
    environment = {} if given is None else {"NVIDIA_VISIBLE_DEVICES": given}
    assert container_gpus(EQUAL, environment) == found


def test_what_a_container_was_given_counts_in_a_container_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_gpus, "gpu_identities", lambda: EQUAL)
    (tmp_path / "7" / "ns").mkdir(parents=True)
    (tmp_path / "7" / "environ").write_bytes(b"NVIDIA_VISIBLE_DEVICES=1,2\0CUDA_VISIBLE_DEVICES=1\0")
    (tmp_path / "7" / "ns" / "mnt").symlink_to("mnt:[1]")
    assert gpus_of(7, tmp_path) == ("GPU-bb03",)
    (tmp_path / "7" / "ns" / "mnt").unlink()
    (tmp_path / "7" / "ns" / "mnt").symlink_to(os.readlink("/proc/self/ns/mnt"))
    assert gpus_of(7, tmp_path) == ("GPU-aa02",)
    assert gpus_of(None, tmp_path) == ()


def test_gpus_whose_sms_are_not_known_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [("GPU-a", (9, 0), 16_896), ("GPU-b", (6, 1), 3_584), ("GPU-c", (8, 9), 7_425)]
    monkeypatch.setattr(process_gpus, "gpu_sizes", lambda: told)
    assert recorded_gpus() == (RecordedGpu(uuid="GPU-a", compute_capability=(9, 0), sm_count=132),)
