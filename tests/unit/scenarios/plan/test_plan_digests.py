"""The same seed gives the same schedule on every x86-64 CPU: each kind of load, with features of the CPU taken away."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import plan_digests
from tests.plan_catalogue import cases, missing_kinds


def test_every_kind_preset_and_rule_of_the_types_is_planned(tmp_path: Path) -> None:
    scenarios = cases(tmp_path)
    assert missing_kinds(scenarios) == set()
    assert scenarios.keys() == plan_digests.stored().keys()
    for without, missing in (
        ("b-model preset nasa-web", {"b-model preset nasa-web"}),
        ("shape diurnal", {"shape diurnal"}),
        ("residual gamma", set()),  # three of gamma gaps: cv 2, cv 0.3, and by burstiness
        ("residual hawkes", {"residual hawkes"}),
        ("rows zipf", {"rows zipf"}),
        ("scale replicate", {"scale replicate"}),
        ("closed lognormal", {"think lognormal"}),
        ("ticks", set()),
        ("routing mirror", {"routing mirror"}),
    ):
        left = {name: scenario for name, scenario in scenarios.items() if name != without}
        assert missing_kinds(left) == missing


def test_no_two_plans_are_the_same() -> None:
    stored = plan_digests.stored()
    same = {name for name in stored if list(stored.values()).count(stored[name]) > 1}
    # who sends a request is not part of its schedule; the residual of an envelope that names none is Poisson
    same -= {"deal sequence", "deal hash", "deal session", "residual poisson", "shape log-ar1"}
    assert same == set()


@pytest.mark.slow
def test_the_plans_of_this_machine_are_those_of_any_other() -> None:
    assert plan_digests.differing(plan_digests.digests()) == []


@pytest.mark.parametrize("features", plan_digests.QUICK)
def test_a_cpu_with_fewer_features_plans_the_same(features: str) -> None:
    assert plan_digests.differing(plan_digests.digests_with(features)) == []


def test_the_features_are_really_taken_away() -> None:
    here = plan_digests.numpy_features()
    assert plan_digests.features_with("Nehalem") == []
    assert not {"X86_V4", "AVX512_ICL"} & set(plan_digests.features_with("numpy without AVX-512"))
    if here:  # numpy and the C library then give other digits
        assert plan_digests.library_digest_with("Nehalem") != plan_digests.library_digest()


@pytest.mark.slow
@pytest.mark.parametrize("features", plan_digests.FEATURES)
def test_every_cpu_plans_the_same(features: str) -> None:
    if features == "BLAS of Skylake-X" and not {"X86_V4", "AVX512_SKX"} & set(plan_digests.numpy_features()):
        pytest.skip("this CPU has no AVX-512, which that code needs")
    assert plan_digests.differing(plan_digests.digests_with(features)) == []
