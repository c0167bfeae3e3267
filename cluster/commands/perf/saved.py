"""The scenario that a command line stands for, as a file for `squall run`."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from squall.analysis.studies.perf_words import number
from squall.cluster.commands.headers import allowing
from squall.cluster.commands.perf.asked import Asked
from squall.cluster.commands.perf.mapping import MEASURED, Load, mapping_of
from squall.cluster.commands.perf.ranges import Range
from squall.cluster.commands.perf.search import Search
from squall.cluster.commands.perf.trials import next_load
from squall.cluster.commands.printed import typed
from squall.scenarios.strict_yaml import yaml_text
from squall.scenarios.units import NS_PER_S, format_rate

_MOST_TOLD = 8
"""Levels that the comment names."""


def scenario_text(search: Search) -> str:
    """The first level; in comments what made it, and how the others are run."""
    mapping = mapping_of(search.asked, search.place, search.served, first_load(search))
    return "".join(f"# {line}\n" for line in _comments(search)) + yaml_text(mapping)


def first_load(search: Search) -> Load:
    """Of the first run of the first level."""
    level = None if search.asked.levels is None else search.asked.levels.start
    load = next_load(search.asked, level, search.rate_hz(level), ())
    assert load is not None, "a level has a first run"
    return load


def levels_text(asked: Asked) -> str:
    """Which levels would be run."""
    if asked.levels is None:
        return "would run the request intervals"
    levels = [asked.levels.start, *_others(asked.levels)]
    shown = ", ".join(number(float(one)) for one in levels[:_MOST_TOLD])
    more = len(levels) - _MOST_TOLD
    rest = f", and {more} more up to {number(float(levels[-1]))}" if more > 0 else ""
    until = " and so on, until one is over the latency threshold" if asked.levels.is_open else ""
    return f"would run {asked.mode} {shown}{rest}{until}"


def _comments(search: Search) -> Iterator[str]:
    asked = search.asked
    yield typed()
    if asked.n_requests:
        yield f"squall perf counts the first {asked.n_requests} requests that are sent in phase {MEASURED}."
    elif asked.counts_windows:
        yield f"squall perf cuts phase {MEASURED} into windows of at least {asked.window_requests} requests."
    else:
        yield f"squall perf cuts phase {MEASURED} into windows of {asked.window_ns / NS_PER_S:g} s."
    others = [] if asked.levels is None else _others(asked.levels)
    for at in others[:_MOST_TOLD]:
        yield f"another level: squall run FILE{allowing(asked.headers)} {' '.join(_changes(search, at))}"
    if len(others) > _MOST_TOLD:
        yield f"and {len(others) - _MOST_TOLD} more, up to {number(float(others[-1]))}"


def _others(levels: Range) -> list[Fraction]:
    """Levels of the range after the first; of one without an end the next."""
    if levels.is_open:
        return [levels.start + levels.step]
    n = max(0, (levels.end - levels.start) // levels.step)
    return [levels.start + (index + 1) * levels.step for index in range(n)]


def _changes(search: Search, level: Fraction) -> Iterator[str]:
    key, value = (
        ("users", str(int(level)))
        if search.asked.mode == "concurrency"
        else ("rate", format_rate(float(level)))
    )
    for phase in ("warmup", MEASURED):
        yield f"--set phases.{phase}.arrivals.{key}={value}"
