"""The pace of a head on one core, measured in a process of its own."""

from __future__ import annotations

import pytest

from squall.models.pace import measure_pace
from squall.scenarios.errors import ScenarioError


def test_a_network_of_many_layers_is_slower_than_one_of_few() -> None:
    few, many = (measure_pace("linear_head", {"width": 128, "layers": layers}, 16) for layers in (1, 40))
    assert 0 < many < few  # 41 against 2 products: far beyond what noise can turn round


def test_an_unknown_head_is_refused_before_a_process_is_made() -> None:
    with pytest.raises(ScenarioError, match="unknown model 'linear_hat': did you mean 'linear_head'"):
        measure_pace("linear_hat", {}, 16)
