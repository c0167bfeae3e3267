"""Numbers for people: a stated number of digits and never an exponent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.scenarios.units import digits_text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 3, "0"), (134.4, 2, "130"), (878.0, 2, "880"), (-8.85, 2, "-8.8"), (1_234_567.0, 3, "1,230,000"),
        (0.000123, 2, "0.00012"), (9.999, 3, "10"), (1.50, 3, "1.5"), (999.6, 3, "1,000"), (20.0, 1, "20"),
    ],
)  # fmt: skip
def test_the_text_of_a_number(value: float, digits: int, text: str) -> None:
    assert digits_text(value, digits) == text


@given(st.floats(1e-12, 1e15), st.integers(1, 6))
def test_it_reads_back_within_its_digits_and_has_no_exponent(value: float, digits: int) -> None:
    text = digits_text(value, digits)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
