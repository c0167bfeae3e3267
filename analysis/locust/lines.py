"""Section `locust` of a summary as lines, for the screen and the report."""

from __future__ import annotations

from squall.analysis.locust.figures import LocustFigures, NameFigures
from squall.analysis.wording import count_text, duration_text, names_text, share_text

MOST_NAMES = 8
"""Names of Locust's requests that the screen lists; the report has all."""


def locust_lines(figures: LocustFigures, most: int = MOST_NAMES) -> list[str]:
    """What Locust ran, its statistics beside the exact rows, and what of its users' time is in none of these."""
    ran = f"{figures.file}, {', '.join(figures.user_classes)}; {figures.shape or 'no shape'}; Locust {figures.version}"
    shown = [_locust_name(one) for one in figures.names[:most]]
    rest = len(figures.names) - most
    shown += [f"and {rest} more: see the report"] if rest > 0 else []
    return [f"{ran}; {figures.n_workers} workers", *shown, *locust_notes(figures)]


def locust_notes(figures: LocustFigures) -> list[str]:
    """Whether Locust's figures are those of the rows, what its users saw, and what became of them."""
    lines = [_agreement(figures)]
    if (users := figures.users) is not None:
        asked, present = (
            count_text(None if one is None else round(one, 1))
            for one in (users.asked_mean_count, users.present_mean_count)
        )
        thinking = count_text(round(users.thinking_mean_count, 1))
        late = f"{share_text(users.late_ratio)} of wakes late, up to {duration_text(users.late_max_ns)}"
        lines.append(f"users asked for {asked}, present {present}, thinking {thinking}; {late}")
        seen, reported = duration_text(users.seen_mean_ns), duration_text(users.reported_mean_ns)
        waited = f"a request took its user {seen} on average, of which its response time is {reported}"
        if (users.seen_mean_ns or 0) < (users.reported_mean_ns or 0):
            waited = "users have requests side by side: what one took its user is not known"
        lines.append(waited)
    if figures.n_plain:
        n = (
            rows.n_requests
            if figures.total is not None and (rows := figures.total.rows) is not None
            else None
        )
        of = f"{count_text(figures.n_plain)} of {count_text(n)} requests"
        lines.append(f"{of} are not of a TritonUser: without an id of squall's they are joined to no batch")
    ended = {
        "exceptions of user code": figures.n_errors,
        "users died of one": figures.n_died,
        "users were lost with a worker": figures.n_users_lost,
        "users stopped within a task at the end, whose last requests may have no row": figures.n_cut,
    }
    told = [f"{count_text(n)} {what}" for what, n in ended.items() if n]
    lines += ["; ".join(told)] if told else []
    return [
        *lines,
        *(f"{count_text(one.n)} x {' '.join(one.message.split())[:120]}" for one in figures.exceptions[:2]),
    ]


def _agreement(figures: LocustFigures) -> str:
    if figures.is_agreeing is None:
        return f"its statistics are not whole: {figures.unreported}"
    wrong = [" ".join(filter(None, (one.method, one.name))) for one in figures.names if not one.is_agreeing]
    if wrong:
        return f"its statistics and the rows do not agree on {names_text(wrong)}"
    rounding = share_text(figures.rounding_max_ratio)
    return f"its counts, failures and means agree with the rows; rounding moves its quantiles by up to {rounding}"


def _locust_name(one: NameFigures) -> str:
    """`GET /a: 1,204, 3 failed; p50 41 ms, p95 120 ms, by the rows 40.6 ms, 118 ms`."""
    name = " ".join(filter(None, (one.method, one.name)))
    counted = one.locust or one.rows
    failed = (
        f", {count_text(counted.n_failures)} failed" if counted is not None and counted.n_failures else ""
    )
    n = count_text(counted.n_requests if counted is not None else 0)
    if one.locust is not None and one.rows is not None and one.locust.n_requests != one.rows.n_requests:
        n = f"{n} by Locust, {count_text(one.rows.n_requests)} rows"
    said, found = (
        "-" if of is None else f"p50 {duration_text(of.p50_ns)}, p95 {duration_text(of.p95_ns)}"
        for of in (one.locust, one.rows)
    )
    return f"{name}: {n}{failed}; Locust {said}; rows {found}"
