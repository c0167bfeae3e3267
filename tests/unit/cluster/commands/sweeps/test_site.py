"""What runs stand on: the whole machine, or the part of it that this process may use."""

from __future__ import annotations

import os

import pytest

from squall.cluster.commands.decisions import site
from squall.cluster.commands.decisions.site import this_site

GPUS = ("580.1", ("NVIDIA H100", "NVIDIA H100"))


@pytest.fixture(autouse=True)
def two_gpus_and_four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "driver_and_names", lambda: GPUS)
    monkeypatch.setattr(site, "cpu_facts", lambda: ("some CPU", 4))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_whole_machine_is_told_as_it_is() -> None:
    assert this_site(None).text.startswith("some CPU, 4 cores; 2 x NVIDIA H100, driver 580.1; squall ")


def test_a_process_with_a_part_of_it_says_so_and_is_another_site(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = this_site(None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    one_gpu = this_site(None)
    assert "2 x NVIDIA H100, 1 of them used, driver" in one_gpu.text
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    both = this_site(None)
    assert both.text.startswith("some CPU, 4 cores, 2 of them used; 2 x NVIDIA H100, 1 of them used")
    assert len({whole.digest, one_gpu.digest, both.digest}) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert this_site(None).digest == both.digest, "equal GPUs are one site"
