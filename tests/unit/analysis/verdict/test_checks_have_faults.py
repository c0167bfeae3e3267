"""Every check of the code has a planted fault that fails it, and no planted fault fails a check that there is not."""

from __future__ import annotations

from squall.analysis.findings.self_checks import CHECKS as SELF_CHECKS
from squall.analysis.report.identities import MEANINGS
from squall.analysis.verdict.checks import CHECKS
from tests.planted_faults.page import rows


def test_each_check_has_a_fault_that_fails_it_and_each_fault_a_check_that_it_fails() -> None:
    names = {*MEANINGS, *(check.name for check in CHECKS), *(check.name for check in SELF_CHECKS)}
    assert len(names) > 35
    failed = {check for check, *_ in rows()}
    assert {name for name in names if not any(one.startswith(name) for one in failed)} == set()
    assert {one for one in failed if not one.startswith(tuple(names))} == set()
