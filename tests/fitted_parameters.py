"""A parameter of a fit by its name."""

from __future__ import annotations

from squall.analysis.traces.fitted import Fitted, Parameter


def parameter(fitted: Fitted, name: str) -> Parameter:
    """The estimate of that name."""
    (found,) = (one for one in fitted.parameters if one.name == name)
    return found
