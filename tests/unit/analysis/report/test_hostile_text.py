"""Runs, results and traces whose every name is hostile: screens without control characters, pages of the same elements,
Markdown and JUnit without markup of theirs."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console, RenderableType

from squall.actors.doctor.checkup import Finding
from squall.analysis.compare.checked import CheckedRun, evaluate, junit, lines, markdown
from squall.analysis.compare.compared import evaluate as compared
from squall.analysis.compare.figures import UNDECIDED
from squall.analysis.compare.pairing import pair_runs
from squall.analysis.report.check_page import check_page
from squall.analysis.report.compare_page import compare_page
from squall.analysis.report.compare_words import lines as compare_lines
from squall.analysis.report.compare_words import markdown as compare_markdown
from squall.analysis.report.decision_page import DecisionPage, DecisionTable, page_html
from squall.analysis.report.page import render_html
from squall.analysis.report.plots import Plot, curve, points
from squall.analysis.report.png import write_png
from squall.analysis.report.screen import render
from squall.analysis.report.summary_file import Summary
from squall.analysis.report.trace_plots import trace_plots
from squall.analysis.report.trace_screen import render_trace, trace_page
from squall.analysis.run import Run
from squall.analysis.storage.store import RunStore
from squall.analysis.studies.published_page import experiments_document, reproduction_page, screen_lines
from squall.analysis.traces.info import trace_summary
from squall.cluster.commands import diagnosis
from squall.cluster.commands.printed import screen_text
from tests.compared_runs import Shape, pairs_of
from tests.hostile_text import HOSTILE, control_characters, elements, renamed, without_plotly
from tests.planted_experiment import CLAIMS, judged, noisy_runs, published
from tests.unit.analysis.compare.test_over_seeds import run_of

S = 1_000_000_000
NAMES = (
    r"seqlen_head|linear_head|burst|warmup|drain|server-\d|node-\d|synthetic\S*|made-up CPU|a note|it hung"
    r"|Exceeds maximum queue size|no nsys on the PATH|install Nsight Systems|it speaks no TLS"
)
"""Of the made-up runs, in their tables, manifests and the server's words."""


def hostile(text: str) -> str:
    return f"{text}{HOSTILE}"


def plain(text: str) -> str:
    return f"{text}name"


def screen(whole: RenderableType) -> str:
    console = Console(width=140, file=io.StringIO(), markup=False, emoji=False, highlight=False)
    return screen_text(console, lambda _: whole)


def assert_plain_page(page: str, like: str) -> None:
    """`like`: the page of the same things under plain names."""
    assert elements(page) == elements(like)
    assert control_characters(without_plotly(page)) == set()
    assert "default-src 'none'; script-src 'unsafe-inline'" in page


def assert_plain_markdown(text: str, like: str) -> None:
    assert control_characters(text) == set()
    assert len(text.splitlines()) == len(like.splitlines())
    assert "<" not in text
    for mark in "`*[]|":
        loose = rf"(?<!\\)(?:\\\\)*{re.escape(mark)}"
        assert len(re.findall(loose, text)) == len(re.findall(loose, like)), mark


@pytest.mark.parametrize("kind", ["telling", "mixed"])
def test_the_report_and_the_screen_of_a_run_show_its_names_as_text(
    kind: str, request: pytest.FixtureRequest
) -> None:
    store: RunStore = request.getfixturevalue(f"{kind}_run")
    summary: Summary = request.getfixturevalue(f"{kind}_summary")
    pages = {}
    for name in (HOSTILE, "name"):
        told, manifest = renamed(summary, NAMES, name), renamed(store.manifest, NAMES, name)
        pages[name] = render_html(told, manifest, [])
        for is_verbose in (False, True):
            shown = screen(render(told, name, 140, is_verbose))
            assert control_characters(shown) == set()
            if name == HOSTILE:
                assert "\\x1b[31m\\x9b2J</script>" in shown
    assert "\\x1b]0;x\\x07\\x1b[31m\\x9b2J&lt;/script&gt;" in pages[HOSTILE]
    assert_plain_page(pages[HOSTILE], pages["name"])


def test_a_notebook_shows_names_as_text(whole_run: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "name", HOSTILE)
    shown = Run(whole_run)._repr_html_()
    assert control_characters(shown) == set()
    assert {tag for tag, *_ in elements(shown)} <= {"p", "/p", "b", "/b", "br"}


def page_with(change: Any) -> DecisionPage:
    text = change("")
    traces = (points(text, [1.0], [2.0], [1.0], [3.0], labels=(text,)), curve(text, [0.0], [1.0]))
    plot = Plot(text, text, text, "line", traces, text, x_ticks=(text, text))
    table = DecisionTable(text, (text,), ((text,),), text)
    plots = (replace(plot, measured=((text, 0.0, 1.0),)), replace(plot, absent=text))
    return DecisionPage(text, text, True, (text,), (text,), plots, (table,), (text,))


def test_a_page_of_a_decision_has_no_element_of_what_it_was_given() -> None:
    assert_plain_page(page_html(page_with(hostile)), page_html(page_with(plain)))


def test_plotly_is_given_text_without_tags_and_breaks_its_lines() -> None:
    (script,) = re.findall(r"Plotly\.newPlot\(.*", page_html(page_with(hostile)))
    assert "\\u003ca href" not in script
    assert "\\u003cscript" not in script
    assert script.count("\\u0026lt;a href") == 8  # both names, the label, two axes, two ticks and the phase
    assert "\\u003cbr\\u003e# c" in script
    assert control_characters(script.encode().decode("unicode_escape")) == set()


def test_pictures_take_dollars_and_control_characters_as_text(tmp_path: Path) -> None:
    name = "\x1b[31m</text><script>\x00$\\frac{$"
    plot = Plot(name, name, name, "line", [curve(name, [0.0], [1.0])] * 2, name, x_ticks=(name, name))
    write_png(tmp_path / "a.png", [plot], name)
    text = write_png(tmp_path / "a.svg", [plot, replace(plot, absent=name)], name).read_text()
    assert control_characters(text) == set()
    assert not {one.tag.rpartition("}")[2] for one in ElementTree.fromstring(text).iter()} & {"script", "a"}
    assert "$\\frac{$" in text


def test_what_a_check_writes_has_no_markup_of_its_names() -> None:
    found = {}
    for change in (hostile, plain):
        one = run_of(1_000, 0, promise=change("p"), verdict=UNDECIDED, reason=change("r"), phase=change("a"))
        runs = [CheckedRun(seed, change("run"), "VALID", 1.0, (one,)) for seed in (1, 2)]
        runs[1] = replace(runs[1], failed=change("failed"))
        found[change] = evaluate(change("s"), change("d"), runs)
    assert_plain_markdown(markdown(found[hostile]), markdown(found[plain]))
    assert_plain_page(page_html(check_page(found[hostile])), page_html(check_page(found[plain])))
    assert control_characters(screen("\n".join(lines(found[hostile])))) == set()
    text = junit(found[hostile])
    assert control_characters(text) == set()
    cases, like = (list(ElementTree.fromstring(junit(one)).iter()) for one in found.values())
    assert [(one.tag, list(one.attrib)) for one in cases] == [(one.tag, list(one.attrib)) for one in like]
    assert "]]>[red]" in str(cases[1].get("name"))


def test_what_a_comparison_writes_has_no_markup_of_its_names() -> None:
    found = {}
    for change in (hostile, plain):
        a, b = pairs_of(Shape(0.5), 2, n=1_000)
        a[0] = replace(a[0], status="INVALID")
        sides = [[replace(run, name=change(run.name)) for run in side] for side in (a, b)]
        one = compared(change("A"), change("B"), pair_runs(*sides))
        found[change] = replace(one, marks=(change("m"),), unpaired=(change("u"),), replaced=(change("r"),))
    assert_plain_markdown(compare_markdown(found[hostile]), compare_markdown(found[plain]))
    pages = [page_html(compare_page(one, [change("squall")])) for change, one in found.items()]
    assert_plain_page(*pages)
    assert control_characters(screen("\n".join(compare_lines(found[hostile])))) == set()


def test_what_a_reproduction_writes_has_no_markup_of_its_names() -> None:
    truth = {"linear_head": {"throughput_hz": 4000.0}}
    one = judged(published(claims=CLAIMS), noisy_runs(truth, 3, np.random.default_rng(1)))
    names = r"linear_head\w*|seqlen_head|Three heads|NVIDIA \w+|latency|depth|heads|ten times|launches|1,000 users"
    bad, good = renamed(one, names, HOSTILE), renamed(one, names, "name")
    assert_plain_page(reproduction_page(bad), reproduction_page(good))
    assert_plain_markdown(experiments_document([bad]), experiments_document([good]))
    assert control_characters(screen("\n".join(screen_lines(bad)))) == set()


def test_the_page_and_the_screen_of_a_trace_show_its_names_as_text() -> None:
    times = np.sort(np.random.default_rng(1).integers(0, 900 * S, 2_000))
    pages = []
    for change in (hostile, plain):
        sizes = {change("size"): np.arange(1, 2_001)}
        summary = {**trace_summary(times), "notes": [change("note")]}
        pages.append(page_html(trace_page(summary, trace_plots(times, summary, sizes), change("t"))))
        assert control_characters(screen(render_trace(summary, change("t")))) == set()
    assert_plain_page(*pages)


def test_the_screen_of_doctor_shows_what_nodes_say_as_text() -> None:
    driver = {"squall": HOSTILE, "python": HOSTILE, "ray": None}
    found = diagnosis.summarise({HOSTILE: [Finding(HOSTILE, "limited", HOSTILE, HOSTILE)]}, driver)
    shown = screen(diagnosis.render(found, 140))
    assert control_characters(shown) == set()
    assert "[red]b[/][/x]:smile:" in " ".join(shown.split())
