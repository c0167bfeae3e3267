"""Every check of a verdict, in the order in which they are held and shown.

`python -m squall.analysis.verdict.checks` prints them, each with its figure, limit, the limit's reason, and its file.
"""

from __future__ import annotations

import sys

from squall.analysis.verdict.check import Check
from squall.analysis.verdict.client_checks import CLIENT_CHECKS
from squall.analysis.verdict.completeness import RECORD_CHECKS
from squall.analysis.verdict.server_checks import CPU_CHECK, GPU_CHECK, REACHED_CHECK
from squall.analysis.verdict.stimulus_checks import STIMULUS_CHECKS
from squall.analysis.verdict.user_checks import LOCUST_CHECKS, USERS_CHECK
from squall.analysis.wording import figure_text

CHECKS: tuple[Check, ...] = (
    *RECORD_CHECKS,
    CPU_CHECK,
    GPU_CHECK,
    *LOCUST_CHECKS,
    REACHED_CHECK,
    *STIMULUS_CHECKS,
    USERS_CHECK,
    *CLIENT_CHECKS,
)


def markdown() -> str:
    """A table of all of them. A limit that grows with the figures of the run, as the reason tells, is at least that."""
    rows = [
        f"| `{one.name}` | {one.meaning} | {figure_text(one.limit, one.unit)} | {one.reason} | `{_file_of(one)}` |\n"
        for one in CHECKS
    ]
    return "".join(["| check | figure | at most | why | in |\n|---|---|---|---|---|\n", *rows])


def _file_of(check: Check) -> str:
    module = check.figure.__module__
    return f"{module.removeprefix('squall.').replace('.', '/')}.py"


if __name__ == "__main__":
    sys.stdout.write(markdown())
