"""What runs beside runs say, in sentences: `words.j2`."""

from __future__ import annotations

from functools import partial

from squall.analysis.wording import macros

words = partial(macros, "squall.analysis.compare", "words.j2")
