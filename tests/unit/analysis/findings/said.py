"""A finding as summary.json holds it, against what a case of the YAML files here says of it."""

from __future__ import annotations

from typing import Any

import pytest

from squall.analysis.findings.finding import Finding
from squall.analysis.record import to_json


def said(finding: Finding | None, expected: dict[str, Any]) -> Any:
    """Of the finding, as JSON, what is expected, and equal to it if it is so. Evidence is by measure, and what is
    missing by rule."""
    if finding is None:
        return {"rule": "nothing"}
    found = to_json(finding)
    evidence = {piece["measure"]: piece["value"] for piece in found["evidence"]}
    missing = {one["rule"]: one["missing"] for one in found["not_assessed"]}
    return _part(found | {"evidence": evidence, "not_assessed": missing}, expected)


def _part(found: Any, expected: Any) -> Any:
    """Of a dict the keys that are expected, of a text that holds all words of a list these, of a list of dicts as many
    as are, and the number that it nearly is."""
    match expected:
        case dict():
            return {key: _part((found or {}).get(key, "nothing"), value) for key, value in expected.items()}
        case [str(), *_] if isinstance(found, str):
            return expected if all(words in found for words in expected) else found
        case [dict(), *_] if isinstance(found, list):
            return [_part(one, own) for one, own in zip(found, expected, strict=False)]
        case float() if isinstance(found, float):
            return expected if found == pytest.approx(expected, abs=0.001) else found
    return found
