"""The page about Locust: its scenarios load, its locustfile is Python, what it names of Locust's outputs is all."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

import squall
from squall.actors.locust.settings import LATE_NS
from squall.actors.triton_user.answer import Answer
from squall.actors.triton_user.triton import Triton
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.locust.load import DRAIN_NS
from squall.scenarios.units import NS_PER_MS, NS_PER_S

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "locust.md").read_text(encoding="utf-8")
RESULTS = (DOCS / "results.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_scenario_on_the_page_is_one() -> None:
    rest: dict[str, Any] = {"name": "x", "seed": 1, "model": {"name": "x"}}
    loaded = [scenario_from_mapping({**rest, **yaml.safe_load(text)}, "page") for text in blocks("yaml")]
    assert len(loaded) == 3
    assert all(one.load is not None for one in loaded)
    assert [phase.duration_ns // NS_PER_S for phase in loaded[0].phases] == [11, 120, 30]
    assert f"a drain of {DRAIN_NS // NS_PER_S} s" in PAGE


def test_what_counts_as_late_on_the_page_is_that_of_the_code() -> None:
    assert f"wakes of users more than {LATE_NS // NS_PER_MS} ms after the instant" in PAGE


def test_the_locustfiles_on_the_page_are_python() -> None:
    sources = blocks("python")
    assert len(sources) == 2
    for source, head in zip(sources, ("class Caller(HttpUser):", "class Searcher(TritonUser):"), strict=True):
        compile(source, "locustfile.py", "exec", dont_inherit=True)
        assert head in source


def test_what_the_page_says_of_a_triton_user_is_in_the_code() -> None:
    named = set(re.findall(r"\banswer\.(\w+)", PAGE))
    known = {*dir(Answer), *vars(Answer(0, "ok", "", 0, dict, ()))}
    assert {"outcome", "detail", "is_ok", "outputs"} <= named <= known
    arguments = set(re.findall(r"\b(rows|inputs|variant)=", PAGE))
    assert arguments == {"rows", "inputs", "variant"}
    assert arguments <= set(signature(Triton.infer).parameters)
    assert set(re.findall(r"`(Triton\w*User)`", PAGE)) <= set(squall.__all__)


def test_little_s_law_on_the_page_is_right() -> None:
    users, rate_hz, seen_ms, reported_ms = 1_000, 1_789, 559, 35
    assert f"median of {reported_ms} ms at {rate_hz:,} requests a second" in PAGE
    assert f"{users:,} / {rate_hz:,} s = {seen_ms} ms" in PAGE
    assert round(users / rate_hz * 1_000) == seen_ms
    assert f"| {rate_hz:,} | Locust says {reported_ms} / 99 ms | {seen_ms} ms |" in RESULTS
