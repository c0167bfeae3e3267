from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from squall.analysis.findings.finding import Bound, Finding, Scope
from squall.analysis.findings.self_check import SelfCheck
from squall.analysis.render.diagnosis_lines import check_lines, finding_lines, instance_text
from squall.analysis.render.report import render_html
from squall.analysis.render.screen import render
from squall.analysis.storage.store import RunStore
from squall.analysis.summary.summary import summarise
from squall.analysis.summary.summary_file import Summary
from squall.analysis.tables.collected import BY_KERNEL_LIBRARY, CollectorState
from squall.analysis.verdict.phase_figures import OpenLatency
from squall.analysis.wording import (
    count_text,
    duration_text,
    figure_text,
    names_text,
    rate_text,
    share_text,
)
from squall.cluster.commands.printed import screen_text
from tests.synthetic_runs import SyntheticRun

MakeRun = Callable[..., RunStore]


def screen_of(store: RunStore) -> list[str]:
    return screen_lines(summarise(store), f"runs/{store.run}")


def screen_lines(summary: Summary, run_dir: str = "runs/x") -> list[str]:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(render(summary, run_dir))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_screen_fits_in_80_columns_and_45_lines(two_nodes_summary: Summary) -> None:
    lines = screen_lines(two_nodes_summary)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45


def test_the_screen_says_load_tail_outcomes_batches_join_and_verdict(whole_summary: Summary) -> None:
    text = "\n".join(screen_lines(whole_summary))
    for words in (
        "intended", "delivered", "IDC 0.1 s", "response p95", "95 % interval", "few n", "rejected 14",
        "Exceeds maximum queue size", "mean queue", "100 % joined by id; median residual", "VALID",
        "20 of 20 checks met", "sent within it; worst second 0 % off, bursts 0 %", "; drift ", "gap KS",
        " agree; self-checks: ", "report.html",
    ):  # fmt: skip
        assert words in text, words


def test_the_screen_says_by_whom_kernels_were_recorded(whole_summary: Summary) -> None:
    kernels = CollectorState(status="on", how=BY_KERNEL_LIBRARY)
    summary = replace(whole_summary, collectors={**whole_summary.collectors, "kernels": kernels})
    told = "kernels recorded by the kernel library in the server's processes"
    assert told in " ".join(" ".join(screen_lines(summary)).split())
    assert told not in " ".join(" ".join(screen_lines(whole_summary)).split())


def test_what_was_not_recorded_is_one_line_and_the_reasons_stand_in_the_report(
    whole_summary: Summary,
) -> None:
    lines = [" ".join(line.split()) for line in screen_lines(whole_summary)]
    at = lines.index("Not recorded nsys, nvml: why, and the mend, stand in report.html")
    assert lines[at + 1].startswith("Files ")
    assert "no nsys on the PATH" not in " ".join(lines)


def test_checks_that_were_not_assessed_are_grouped_in_the_report_and_left_out_here(
    whole_summary: Summary, whole_page: str
) -> None:
    assert "not assessed" not in "\n".join(screen_lines(whole_summary))
    statuses = [one.status for one in whole_summary.self_checks]
    groups = whole_summary.self_checks_unassessed
    assert sum(map(len, groups.values())) == statuses.count("not assessed") > 5
    assert "kernel sums" in groups["no nsys report: no nsys on the PATH"]
    assert "Not assessed, no nsys report: no nsys on the PATH: " in whole_page
    assert "<td>kernel sums</td>" not in whole_page


def test_text_takes_the_width_that_it_is_given_and_no_more(telling_summary: Summary) -> None:
    console = Console(width=200, file=io.StringIO(), color_system=None)
    wide = screen_text(console, lambda width: render(telling_summary, "runs/x", width)).splitlines()
    assert " ".join(" ".join(wide).split()).count("a note") == 40
    assert 120 < max(map(len, wide)) <= 140
    assert not any(line.endswith(" ") for line in wide)
    narrow = screen_text(
        Console(width=80, file=io.StringIO()), lambda width: render(telling_summary, "runs/x", width)
    )
    assert max(map(len, narrow.splitlines())) <= 80
    assert len(wide) < len(narrow.splitlines())


def test_an_invalid_run_says_so_with_its_reasons_and_its_broken_counts(
    make_run: MakeRun, plain: SyntheticRun
) -> None:
    for values in plain.tables["requests"].values():
        values.pop(1000)
    text = "\n".join(screen_of(make_run(plain)))
    assert "INVALID   Number of planned arrivals without exactly one row is 1" in text
    assert "  19 of 20 checks met" in text
    assert "rows: found 3,370, expected 3,371" in text


def test_a_closed_loop_says_why_it_has_no_stimulus(closed_summary: Summary) -> None:
    text = " ".join("\n".join(screen_lines(closed_summary)).split())
    assert "Stimulus none: users send when they have been answered" in text


def test_each_of_two_measure_phases_has_its_stimulus(telling_summary: Summary) -> None:
    lines = [line.strip() for line in screen_lines(telling_summary)]
    assert any(line.startswith("Stimulus") and "warmup: " in line for line in lines)
    assert any(line.startswith("burst: ") for line in lines)


def test_a_quantile_on_failures_reads_failed(make_run: MakeRun, plain: SyntheticRun) -> None:
    outcome = plain.tables["requests"]["outcome"]
    outcome[::10] = ["timeout"] * len(outcome[::10])
    text = "\n".join(screen_of(make_run(plain)))
    assert "response p95 failed" in text


def test_what_was_not_recorded_reads_so(make_run: MakeRun, synthetic: SyntheticRun) -> None:
    synthetic.omit = {"batches", "triton_samples", "host_samples", "worker_samples"}
    text = "\n".join(screen_of(make_run(synthetic)))
    assert text.count("not recorded") >= 2
    assert "no request could be joined to its batch" in text


def test_latencies_under_nsys_say_so_in_their_own_lines(
    whole_summary: Summary, telling_summary: Summary
) -> None:
    assert "under nsys" not in "\n".join(screen_lines(whole_summary))
    lines = screen_lines(telling_summary)
    (head,) = (number for number, line in enumerate(lines) if line.startswith("Latency"))
    assert lines[head + 1].startswith("under nsys ")
    assert not any("…" in line for line in lines[head : head + 6])  # every figure has room
    (headline,) = (line for line in lines if line.startswith("response p95"))
    assert " ms under nsys " in headline
    assert max(map(len, lines)) <= 80


def test_workers_without_the_c_lane_are_told_with_reason_and_cost(
    whole_summary: Summary, telling_summary: Summary, telling_page: str
) -> None:
    assert "C lane" not in "\n".join(screen_lines(whole_summary))
    said = "without the C lane in 2 of 2 workers: it speaks no TLS; a request costs 2 to 5 times the CPU"
    assert said in " ".join("\n".join(screen_lines(telling_summary)).split())
    assert said in telling_page


def test_a_run_without_measured_requests_still_has_a_screen(phaseless_summary: Summary) -> None:
    assert "no measure phase" in screen_lines(phaseless_summary)[0]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (duration_text(1_234_567), "1.23 ms"),
        (duration_text(999), "999 ns"),
        (duration_text(0), "0 ns"),
        (duration_text(12_000_000_000), "12.0 s"),
        (duration_text(-45_600), "-45.6 µs"),
        (duration_text(None), "-"),
        (share_text(0.0421), "4.21 %"),
        (share_text(0.0), "0 %"),
        (share_text(1.0), "100 %"),
        (share_text(0.99999), "99.99 %"),
        (share_text(0.9951), "99.51 %"),
        (count_text(1234567), "1,234,567"),
        (count_text(3.14159), "3.14"),
        (rate_text(247.83), "248/s"),
        (figure_text(None, "ns"), "-"),
        (figure_text(0.5, "ratio"), "50.0 %"),
    ],
)
def test_figures_are_written_with_three_digits_and_a_unit(text: str, written: str) -> None:
    assert text == written


def test_requests_refused_by_the_queue_policy_have_a_line_and_only_then(
    make_run: MakeRun, whole_summary: Summary, plain: SyntheticRun
) -> None:
    (line,) = (line for line in screen_lines(whole_summary) if line.startswith("Rejected"))
    assert (
        line.split(maxsplit=1)[1].rstrip() == "full queue 14, queue timeout 0; Triton's metric: not sampled"
    )
    outcomes = plain.tables["requests"]["outcome"]
    outcomes[:] = ["server_error" if outcome == "rejected" else outcome for outcome in outcomes]
    assert not any(line.startswith("Rejected") for line in screen_of(make_run(plain)))


def finding(level: str, rule: str, confidence: str = "high", margin: float | None = None) -> Finding:
    scope = Scope("steady", "server-0", "m_0" if level != "tail" else "")
    bound = Bound(response_ratio=0.174)
    return Finding(rule, level, scope, "a claim", "a step", confidence, margin=margin, give_back=bound)


def test_a_finding_is_a_line_with_its_confidence_and_what_it_saves_at_most() -> None:
    found = [
        finding("window", "scheduler/IPC-bound"), finding("body", "launch-bound", confidence="medium"),
        finding("tail", "queue grows", margin=0.789),
    ]  # fmt: skip
    assert finding_lines(found) == [
        "steady, m_0: scheduler/IPC-bound (high, saves ≤ 17.4 % of latency); "
        "batches launch-bound (medium, saves ≤ 17.4 % of latency)",
        "steady, p99: queue grows most, 78.9 % of the gap to the faster half",
    ]
    assert finding_lines([finding("tail", "none")]) == ["steady, p99: no tail: it is the median"]


def test_an_instance_is_named_with_what_tells_it_from_another() -> None:
    places = [("server-0", "m_0", 0), ("server-0", "m_0", 1), ("server-1", "m_1", 0), ("server-1", "m_2", -1),
              ("server-2", "m_2", -1), ("server-3", "m_3", 0), ("server-3", "m_3", -1)]  # fmt: skip
    found = [
        replace(finding("window", "none"), scope=Scope("steady", server, instance, instance_device=device))
        for server, instance, device in places
    ]
    assert [line.partition(": ")[0] for line in finding_lines(found, 9)] == [
        "steady, m_0 on GPU 0", "steady, m_0 on GPU 1", "steady, m_1", "steady, server-1/m_2",
        "steady, server-2/m_2", "steady, m_3 on GPU 0", "steady, m_3 on the CPU",
    ]  # fmt: skip
    report = [instance_text(one.scope, found) for one in found]
    assert report[:2] == ["m_0 on GPU 0", "m_0 on GPU 1"]


def test_a_check_that_is_not_met_is_named_with_its_value_first() -> None:
    check = SelfCheck("wall", 44_320, 0, "ns", "unmet", "what is off", "burst")
    assert check_lines([check, replace(check, status="met", where="")]) == [
        "1 of 2 met",
        "wall: 44.3 µs, limit 0 ns (burst): what is off",
    ]


def test_long_lines_go_on_indented(whole_summary: Summary) -> None:
    summary = replace(whole_summary, notes=("a note " * 20, "another"))
    verdict = replace(summary.verdict, reasons=("a reason " * 30,))
    latency = summary.measure.latency
    assert isinstance(latency, OpenLatency)
    told = tuple(replace(one, interval_reason="too few " * 20) for one in latency.response.quantiles)
    latency = replace(latency, response=replace(latency.response, quantiles=told))
    measure = replace(summary.measure, latency=latency)
    lines = [line.rstrip() for line in screen_lines(replace(summary, verdict=verdict, measure=measure))]
    first = next(i for i, line in enumerate(lines) if line.startswith("Notes"))
    assert [line[:16] for line in lines[first : first + 4]] == [
        "Notes         a ",
        *["                "] * 2,
        " " * 14 + "an",
    ]
    for words in ("a reason", "too few"):
        own = [line for line in lines if words in line and not line.startswith(("Notes", "VALID"))]
        assert len(own) >= 3
        assert all(line.startswith("  ") and not line.startswith("   ") for line in own)
    assert max(map(len, lines)) <= 80


def test_a_figure_is_not_parted_from_its_unit(whole_summary: Summary) -> None:
    every = tuple(f"{'x' * n} is ≤ 10.2 % of 3.5 ms" for n in range(45, 66))
    for n in range(0, 21, 4):
        notes = every[n : n + 4]
        lines = [line.rstrip() for line in screen_lines(replace(whole_summary, notes=notes))]
        assert sum("≤ 10.2 %" in line for line in lines) == len(notes)
        assert sum("3.5 ms" in line for line in lines) == len(notes)


def test_a_quantile_that_is_mostly_lag_is_marked_wherever_it_is_printed(
    make_run: MakeRun, plain: SyntheticRun
) -> None:
    """Six requests in ten leave 6 ms late: the median is bent; the 1 % slowest take 4 s, whoever sent them."""
    requests = plain.tables["requests"]
    for i in range(len(requests["phase"])):
        late, slow = 6_000_000 * (i % 10 < 6), 4_000_000_000 * (i % 50 == 49)
        requests["outcome"][i], requests["detail"][i] = "ok", ""
        requests["sent_ns"][i] += late
        requests["done_ns"][i] += late + slow
    store = make_run(plain)
    summary = summarise(store)
    latency = summary.measure.latency
    assert isinstance(latency, OpenLatency)
    parts = {one.q: one for one in latency.lag_parts if one}
    for response, service in zip(latency.response.quantiles, latency.service.quantiles, strict=True):
        if response.value_ns is not None:
            part = parts[response.q]
            assert service.value_ns is not None
            assert (part.response_ns, part.excess_ns) == (
                response.value_ns, response.value_ns - service.value_ns,
            )  # fmt: skip
    assert parts[0.5].is_above
    assert not parts[0.99].is_above
    lines = screen_lines(summary)
    (row,) = [line for line in lines if line.startswith("lag's part")]
    assert row.split("!")[1].split()[0] == share_text(parts[0.5].ratio).split()[0]
    assert any(line.startswith("! more of this quantile than allowed is send lag") for line in lines)
    assert max(map(len, lines)) <= 80
    page = render_html(summary, store.manifest, [])
    assert f"! {share_text(parts[0.5].ratio)}</td>" in page
    assert store.manifest.status == "INVALID"
    assert any(check.name == "lag in p50" and check.reason for check in summary.verdict.checks)


def test_a_screen_without_marks_has_no_row_for_them(whole_summary: Summary) -> None:
    assert not [line for line in screen_lines(whole_summary) if line.startswith(("lag's part", "!"))]


def test_of_many_names_the_first_are_told_and_how_many_more_there_are() -> None:
    assert names_text([]) == ""
    assert names_text(["a", "b", "c", "d"]) == "a, b, c, d"
    assert names_text(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
