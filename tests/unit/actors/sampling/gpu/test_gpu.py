from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from squall.actors.sampling.gpu.device import _GONE, _UNSUPPORTED
from squall.actors.sampling.gpu.gpm import METRICS
from squall.actors.sampling.gpu.source import (
    GpuProcessSource,
    GpuSource,
    driver_and_names,
    gpu_sizes,
    gpu_uses,
    missing_reason,
    temperatures_c,
)
from squall.analysis.storage.schema import arrow_schema
from squall.scenarios.records import GpuUse
from tests.unit.actors.fake_nvml import FakeGpu, FakeMig, FakeNvml

MS = 1_000_000
ALL_LINKS = 2**32 - 1
GPM = {name: 50.0 for name, (column, _) in METRICS.items() if column.endswith(("util", "occupancy"))} | {
    "NVML_GPM_METRIC_SM_UTIL": 2.5,
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC": 3.0,
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC": 4.0,
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC": 5.0,
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC": 6.0,
}


class TickingClock:
    """Every reading of it takes 1 us; `at_ns` is set by the test."""

    def __init__(self) -> None:
        self.at_ns = 0

    def monotonic_ns(self) -> int:
        self.at_ns += 1_000
        return self.at_ns


def values(**changed: Any) -> dict[str, Any]:
    return {
        "utilisation": (70, 30), "memory": 5 << 30, "power": 310_000, "power_limit": 700_000, "energy": 1_000_000,
        "temperature": 41, "sm_clock": 1_980, "memory_clock": 2_619, "throttle": 4, "corrected": 0, "uncorrected": 0,
        "processes": [], "utilisation_of": [],
    } | changed  # fmt: skip


def process(pid: int, used_bytes: int | None = 1 << 30) -> Any:
    record = pynvml.c_nvmlProcessInfo_v3_t()
    record.pid, record.usedGpuMemory = pid, used_bytes or 0
    friendly = pynvml.nvmlStructToFriendlyObject(record)
    friendly.usedGpuMemory = used_bytes
    return friendly


def used(pid: int, at_us: int, sm: int, memory: int) -> Any:
    sample = pynvml.c_nvmlProcessUtilizationSample_t()
    sample.pid, sample.timeStamp, sample.smUtil, sample.memUtil = pid, at_us, sm, memory
    return sample


class Bench:
    """A GpuSource over scripted GPUs, and the clock of its node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.clock = TickingClock()

    def nvml(self, *gpus: FakeGpu) -> FakeNvml:
        nvml = FakeNvml(*gpus)
        self._monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    def source(self, *gpus: FakeGpu, with_gpm: bool = True) -> GpuSource:
        self.nvml(*gpus)
        return GpuSource(with_gpm, self.clock)

    def rows(self, source: GpuSource, *instants_ms: int) -> list[list[dict[str, Any]]]:
        """The rows of a tick at each instant, the baseline's left out."""
        found = []
        for instant in instants_ms:
            self.clock.at_ns = instant * MS
            found.append(source.sample(instant * MS))
        assert found[0] == []
        return found[1:]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_row_has_every_column_of_its_table_in_its_unit(bench: Bench) -> None:
    energy, corrected = [1_000_000, 1_031_000], [7, 9]
    fields = {(pynvml.NVML_FI_DEV_POWER_INSTANT, 0): 350_000}
    gpu = FakeGpu(
        values=values(energy=energy, corrected=corrected, processes=[process(7)]), fields=fields, gpm=GPM
    )
    source = bench.source(gpu)
    ((row,),) = bench.rows(source, 0, 10_000)
    assert {name: row[name] for name in row if name != "read_ns"} == {
        "gpu_uuid": "GPU-0", "mig_instance": "", "t_ns": 10_000 * MS + 1_000, "interval_ns": 10_000 * MS,
        "util": 0.7, "memory_util": 0.3, "memory_used_bytes": 5 << 30, "power_w": 310.0, "power_instant_w": 350.0,
        "energy_j": pytest.approx(31.0), "power_limit_w": 700.0, "temperature_c": 41.0, "sm_clock_hz": 1.98e9,
        "memory_clock_hz": 2.619e9, "throttle_reasons": 4, "ecc_corrected_count": 2, "ecc_uncorrected_count": 0,
        "n_processes": 1, "gpm_interval_ns": 10_000 * MS, "sm_util": 0.025, "sm_occupancy": 0.5,
        "tensor_util": 0.5, "fp16_util": 0.5, "fp32_util": 0.5, "fp64_util": 0.5, "dram_util": 0.5,
        "pcie_rx_bytes_per_s": 3.0 * 2**20, "pcie_tx_bytes_per_s": 4.0 * 2**20,
        "nvlink_rx_bytes_per_s": 5.0 * 2**20, "nvlink_tx_bytes_per_s": 6.0 * 2**20,
    }  # fmt: skip
    assert row["read_ns"] > 0
    assert {*row, "run", "phase", "node"} == set(arrow_schema("gpu_samples").names)
    (facts,) = source.facts()["gpus"]
    assert (facts["name"], facts["uuid"], facts["is_mig"]) == ("NVIDIA H100", "GPU-0", False)
    assert facts["parts"][0]["unsupported"] == {}
    assert facts["parts"][0]["has_gpm"]


def test_at_100_hz_gpm_has_a_value_every_tenth_tick_and_slow_values_once_a_second(bench: Bench) -> None:
    gpu = FakeGpu(values=values(), gpm=GPM)
    ticks = bench.rows(bench.source(gpu), *range(0, 2_001, 10))
    with_gpm = [index + 1 for index, (row,) in enumerate(ticks) if "sm_util" in row]
    assert with_gpm == list(range(10, 201, 10))
    assert {row["gpm_interval_ns"] for (row,) in ticks if "sm_util" in row} == {100 * MS}
    assert gpu.n_gpm_samples == 21  # one is read for each pair, and one before
    assert [index + 1 for index, (row,) in enumerate(ticks) if "temperature_c" in row] == [100, 200]
    assert all("util" in row and "energy_j" not in row for (row,) in ticks)


def test_a_pair_of_gpm_samples_is_at_least_98_ms_apart_though_ticks_come_unevenly(bench: Bench) -> None:
    gpu = FakeGpu(values=values(), gpm=GPM)
    ticks = bench.rows(bench.source(gpu), 0, 103, 200, 300, 399)
    assert [row.get("gpm_interval_ns") for (row,) in ticks] == [103 * MS, None, 197 * MS, 99 * MS]


def test_a_metric_that_gpm_refuses_is_null_and_named_though_it_holds_a_number(bench: Bench) -> None:
    some = {name: value for name, value in GPM.items() if "FP64" not in name} | {
        "NVML_GPM_METRIC_DRAM_BW_UTIL": float("nan")
    }
    source = bench.source(FakeGpu(values=values(), gpm=some))
    ((row,),) = bench.rows(source, 0, 100)
    assert "fp64_util" not in row
    assert "dram_util" not in row
    assert row["fp32_util"] == 0.5
    unsupported = source.facts()["gpus"][0]["parts"][0]["unsupported"]
    assert {
        "fp64_util": "GPM gives no value",
        "dram_util": "GPM gives no value",
    }.items() <= unsupported.items()


def test_without_gpm_the_traffic_is_taken_from_counters_that_may_go_back(bench: Bench) -> None:
    fields = {
        (pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0): [100, 600, 50],
        (pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0): [0, 0, 10],
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS): [1, 3, 3],
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS): [0, 1, 1],
    }
    source = bench.source(FakeGpu(name="NVIDIA A100", values=values(), fields=fields))
    (first,), (second,) = bench.rows(source, 0, 500, 1_000)
    rates = ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
    assert [first[name] for name in rates] == [1_000, 0, 4_096, 2_048]
    assert [second.get(name) for name in rates] == [None, 20, 0, 0]
    (part,) = source.facts()["gpus"][0]["parts"]
    assert (part["has_gpm"], part["gpm_reason"]) == (False, "the GPU has none; Hopper and later have")
    assert part["unsupported"]["sm_util"] == part["gpm_reason"]
    assert not set(rates) & set(part["unsupported"])


def test_what_gpm_gives_is_not_read_from_counters_as_well(bench: Bench) -> None:
    gpu = FakeGpu(values=values(), gpm=GPM, fields={(pynvml.NVML_FI_DEV_POWER_INSTANT, 0): 1})
    source = bench.source(gpu)
    bench.rows(source, 0, 100)
    n_before = gpu.n_calls["fields"]
    bench.clock.at_ns = 200 * MS
    source.sample(0)
    assert gpu.n_calls["fields"] == n_before + 1  # the power's


def test_what_a_gpu_does_not_support_is_null_named_and_asked_once(bench: Bench) -> None:
    less = values()
    del less["energy"], less["corrected"], less["uncorrected"]
    less["throttle"] = pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
    gpu = FakeGpu(values=less)
    source = bench.source(gpu)
    rows = bench.rows(source, 0, 1_000, 2_000)
    assert all({"energy_j", "ecc_corrected_count", "throttle_reasons"}.isdisjoint(row) for (row,) in rows)
    assert gpu.n_calls["energy"] == 1
    unsupported = source.facts()["gpus"][0]["parts"][0]["unsupported"]
    assert unsupported["energy_j"] == "Not Supported"
    assert unsupported["throttle_reasons"] == "Insufficient Permissions"
    assert unsupported["power_instant_w"] == "Not Supported"


def test_a_read_that_fails_once_is_null_there_counted_and_asked_again(bench: Bench) -> None:
    again = pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
    source = bench.source(FakeGpu(values=values(utilisation=[(70, 30), again, (20, 10)])))
    (failed,), (after,) = bench.rows(source, 0, 100, 200)
    assert "util" not in failed
    assert after["util"] == 0.2
    part = source.facts()["gpus"][0]["parts"][0]
    assert (part["n_failed_reads"], part["last_failure"]) == (1, "utilisation: Timeout")


def test_the_energy_of_the_rows_adds_up_to_the_counters_difference_over_a_failed_read(bench: Bench) -> None:
    counter = [1_000, pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN), 4_000, 9_500]
    rows = bench.rows(bench.source(FakeGpu(values=values(energy=counter))), 0, 10_000, 20_000, 30_000)
    assert [row.get("energy_j") for (row,) in rows] == [None, 3.0, 5.5]


def test_a_gpu_lost_in_the_middle_is_said_once_with_its_instant_and_the_other_goes_on(bench: Bench) -> None:
    lost, other = (
        FakeGpu(uuid="GPU-0", values=values(), gpm=GPM),
        FakeGpu(uuid="GPU-1", values=values(), gpm=GPM),
    )
    source = bench.source(lost, other)
    (both,) = bench.rows(source, 0, 100)
    assert [row["gpu_uuid"] for row in both] == ["GPU-0", "GPU-1"]
    assert source.losses() == []
    lost.is_lost = True
    for instant in (200, 300):
        bench.clock.at_ns = instant * MS
        assert [row["gpu_uuid"] for row in source.sample(0)] == ["GPU-1"]
    (loss,) = source.losses()
    at_ns = source.facts()["gpus"][0]["lost_at_ns"]
    assert 200 * MS < at_ns < 201 * MS
    assert loss == f"gpu_samples: GPU GPU-0 was lost at {at_ns} ns of the node's clock: GPU is lost"


def test_a_gpu_that_is_lost_from_the_start_is_a_loss_and_the_other_is_sampled(bench: Bench) -> None:
    source = bench.source(FakeGpu(is_lost=True), FakeGpu(uuid="GPU-1", values=values()))
    ((row,),) = bench.rows(source, 0, 100)
    assert row["gpu_uuid"] == "GPU-1"
    assert source.losses() == ["gpu_samples: GPU 0 cannot be read: GPU is lost"]


def test_mig_instances_have_rows_of_their_own_and_their_gpu_keeps_what_nvml_gives(bench: Bench) -> None:
    small, large = {**GPM, "NVML_GPM_METRIC_SM_UTIL": 10.0}, {**GPM, "NVML_GPM_METRIC_SM_UTIL": 90.0}
    parts = [
        FakeMig(values={"memory": 1 << 30}, gpm=small, gi=3, ci=0),
        FakeMig(values={"memory": 2 << 30}, gpm=large, gi=5, ci=1),
    ]
    whole = values()
    del whole["utilisation"]
    source = bench.source(FakeGpu(values=whole, mig=parts))
    (rows,) = bench.rows(source, 0, 1_000)
    told = [
        (row["gpu_uuid"], row["mig_instance"], row["memory_used_bytes"], row.get("sm_util")) for row in rows
    ]
    assert told == [
        ("GPU-0", "", 5 << 30, None), ("GPU-0", "3/0", 1 << 30, 0.1), ("GPU-0", "5/1", 2 << 30, 0.9)
    ]  # fmt: skip
    assert [row.get("power_w") for row in rows] == [310.0, None, None]
    assert [row.get("util") for row in rows] == [None, None, None]
    (facts,) = source.facts()["gpus"]
    assert facts["is_mig"]
    assert [part["has_gpm"] for part in facts["parts"]] == [False, True, True]
    assert facts["parts"][0]["gpm_reason"] == "NVML refuses it: Not Supported"


def test_gpm_can_be_turned_off(bench: Bench) -> None:
    gpu = FakeGpu(values=values(), gpm=GPM)
    source = bench.source(gpu, with_gpm=False)
    ((row,),) = bench.rows(source, 0, 100)
    assert "sm_util" not in row
    assert gpu.n_gpm_samples == 0
    assert source.facts()["gpus"][0]["parts"][0]["gpm_reason"] == "it is turned off"


def test_what_was_taken_from_nvml_is_given_back(bench: Bench) -> None:
    nvml = bench.nvml(FakeGpu(values=values(), gpm=GPM), FakeGpu(uuid="GPU-1", values=values(), gpm=GPM))
    source = GpuSource(clock=bench.clock)
    source.sample(0)
    assert (nvml.n_inits, nvml.n_samples_held) == (1, 4)
    source.close()
    assert (nvml.n_inits, nvml.n_samples_held) == (0, 0)


def test_processes_have_their_memory_and_newest_utilisation_and_the_servers_are_marked(
    bench: Bench, tmp_path: Path
) -> None:
    gpu = FakeGpu(values=values(processes=[process(7), process(8, None)], utilisation_of=[used(7, 5, 99, 9)]))
    bench.nvml(gpu)
    (tmp_path / "7" / "fd").mkdir(parents=True)
    (tmp_path / "7" / "fd" / "3").symlink_to("/dev/nvidiactl")
    source = GpuProcessSource(lambda: [7], tmp_path)
    assert source.sample(0) == []
    gpu.values["utilisation_of"] = [used(7, 5, 99, 9), used(7, 20, 40, 10), used(7, 10, 1, 1)]
    first, second = source.sample(1_000)
    assert first == {
        "gpu_uuid": "GPU-0", "t_ns": 1_000, "interval_ns": 1_000, "process": 7, "is_server": True, "uses_driver": True,
        "memory_used_bytes": 1 << 30, "sm_util": 0.4, "memory_util": 0.1,
    }  # fmt: skip
    assert (second["process"], second["is_server"], second["memory_used_bytes"]) == (8, False, None)
    assert (second["sm_util"], second["uses_driver"]) == (None, False), "no such process is here"
    assert {*first, "run", "phase", "node"} == set(arrow_schema("gpu_processes").names)
    assert source.sample(2_000)[0]["sm_util"] is None, "an old sample counts twice"
    gpu.values["utilisation_of"] = [used(9, 30, 70, 0)]
    unlisted = source.sample(3_000)[-1]
    assert (unlisted["process"], unlisted["sm_util"], unlisted["memory_used_bytes"]) == (9, 0.7, None)
    source.close()


@pytest.mark.parametrize(
    "code", [pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED]
)
def test_processes_without_samples_of_their_use_keep_their_memory(bench: Bench, code: int) -> None:
    bench.nvml(FakeGpu(values=values(processes=[process(7)], utilisation_of=pynvml.NVMLError(code))))
    source = GpuProcessSource(lambda: [])
    source.sample(0)
    assert [row["sm_util"] for row in source.sample(1)] == [None]
    assert source.losses() == []


def test_what_each_gpu_does_at_a_moment_is_none_where_it_is_not_told(bench: Bench) -> None:
    bench.nvml(FakeGpu(values=values(processes=[process(9), process(7)])), FakeGpu(uuid="GPU-1"))
    assert gpu_uses() == [
        GpuUse(uuid="GPU-0", util=0.7, memory_used_bytes=5 << 30, processes=(7, 9)),
        GpuUse(uuid="GPU-1"),
    ]


def test_a_missing_driver_is_said_in_nvmls_words(bench: Bench) -> None:
    nvml = bench.nvml()
    assert missing_reason() == "the driver sees no GPU"
    nvml.is_driver_missing = True
    assert missing_reason() == "NVML Shared Library Not Found"
    with pytest.raises(pynvml.NVMLError):
        GpuSource()


def test_every_name_that_is_asked_of_nvml_is_one_of_the_real_library(bench: Bench) -> None:
    fields = {(pynvml.NVML_FI_DEV_POWER_INSTANT, 0): 1}
    part = FakeMig(values=values(), gpm=GPM, gi=1)
    nvml = bench.nvml(
        FakeGpu(values=values(processes=[process(1)]), gpm=GPM, fields=fields), FakeGpu(mig=[part])
    )
    for source in (GpuSource(clock=bench.clock), GpuProcessSource(lambda: [])):
        for instant in (0, 1_000, 2_000):
            bench.clock.at_ns = instant * MS
            source.sample(instant * MS)
        source.facts()
        source.close()
    missing_reason()
    assert len(nvml.names) > 60
    assert [name for name in (*_UNSUPPORTED, *_GONE) if not hasattr(pynvml, name)] == []
    assert [name for name in sorted(nvml.names) if not hasattr(pynvml, name)] == []


def test_sizes_are_those_of_gpus_that_tell_them(bench: Bench) -> None:
    hopper = {"capability": (9, 0), "n_cores": 16_896}
    nvml = bench.nvml(
        FakeGpu("GPU-0", values=hopper),
        FakeGpu("GPU-1", values={"capability": (9, 0)}),
        FakeGpu("GPU-2", values=hopper, mig=[FakeMig(gi=3)]),
        FakeGpu("GPU-3", is_lost=True),
        FakeGpu("GPU-4", values={"capability": (8, 9), "n_cores": 7_424}),
    )
    assert gpu_sizes() == [("GPU-0", (9, 0), 16_896), ("GPU-4", (8, 9), 7_424)]
    assert nvml.n_inits == 0
    nvml.is_driver_missing = True
    assert gpu_sizes() == []


def test_driver_names_and_temperatures_are_those_of_gpus_that_tell_them(bench: Bench) -> None:
    nvml = bench.nvml(FakeGpu("GPU-0", values={"temperature": 61}), FakeGpu("GPU-1", values={}))
    driver, names = driver_and_names()
    assert (bool(driver), len(names)) == (True, 2)
    assert temperatures_c() == [61.0]
    assert nvml.n_inits == 0, "each gives NVML back"
    nvml.is_driver_missing = True
    assert (driver_and_names(), temperatures_c()) == (("", ()), [])
