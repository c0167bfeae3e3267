"""Faults of a scenario as one line: the path of the key, what stands there, what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from squall.scenarios.config.client import FUNCTION
from squall.scenarios.config.servers import IMAGE, SERVER_URL
from squall.scenarios.errors import way_out
from squall.scenarios.units import digits_text, format_duration, parse_duration

_WORDS = {
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "string_type": "is not a text, put it in quotes",
    "string_too_short": "is empty",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping",
    "model_type": "is not a mapping",
    "model_attributes_type": "is not a mapping",
    "too_short": "has too few entries, the least are {min_length}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "is too long, the most characters are {max_length}",
    "too_long": "has too many entries, the most are {max_length}",
    "literal_error": "must be {expected}",
}
"""Of pydantic's errors, by their type, with what it knows of them."""
_PATTERNS = {
    r"^[a-z0-9][a-z0-9-]*$": "must be small letters, digits and hyphens",
    r"^[ -~]*$": "must be printable ASCII",
    r"^[1-9][0-9]*$": "must be a whole number from 1",
    FUNCTION: "must be package.module:function or path/to/file.py:function",
    IMAGE: "must be the name of an image: one word that begins with a letter or a digit",
    SERVER_URL: "must be of the form http://host:port or https://host:port",
}
_Location = Sequence[str | int]


def describe_problem(error: ValidationError, root: type[BaseModel]) -> str:
    """The first problem of what was to be a `root` on one line, and the count of the others.

    Unknown keys come first, missing keys last: a mistyped key usually is the cause of both. Those of a section whose
    parts have problems are left out: "too short" follows from a bad item.
    """
    rank, found = {"extra_forbidden": 0, "missing": 2}, error.errors()
    places = [one["loc"] for one in found]
    specific = [
        one for one in found if not any(one["loc"] == place[: len(one["loc"])] != place for place in places)
    ]
    problems = sorted(specific, key=lambda one: rank.get(one["type"], 1))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    path = path_text(_place(problems[0]["loc"], root)[0])
    return " ".join(f"{path}{': ' if path else ''}{_claim(problems[0], root)}{more}".split())


def path_text(path: _Location) -> str:
    """`phases[1].arrivals.rate`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _claim(problem: ErrorDetails, root: type[BaseModel]) -> str:
    """What is wrong at the location of `problem`, without the location."""
    kind, context, location = problem["type"], problem.get("ctx", {}), problem["loc"]
    kinds = [str(_kind(form)) for form in _place(location, root)[1]]
    text = repr(problem["input"])
    text = text if len(text) <= 60 else f"{text[:57]}..."
    value = "its value" if "headers" in location[:-1] else text  # which may be a secret, and be kept in a log
    match kind:
        case "extra_forbidden":
            keys = sorted({key for form in _place(location[:-1], root)[1] for key in _fields(form)})
            return f"unknown key, {way_out(str(location[-1]), keys, 'allowed are ' + ', '.join(keys))}"
        case "value_error":
            return str(context["error"])
        case "missing":
            return "missing, it must be given"
        case "union_tag_invalid":
            tag = str(context["tag"])
            return f"kind {tag!r} is unknown, {way_out(tag, kinds, 'use ' + ', '.join(kinds))}"
        case "union_tag_not_found":
            return f"needs a kind: {', '.join(kinds)}"
        case "string_pattern_mismatch":
            return f"{value} {_PATTERNS.get(context['pattern'], 'is not of the form that it must have')}"
    said = {key: _bound(bound, problem["input"]) for key, bound in context.items()}
    return f"{value} {_WORDS[kind].format(**said) if kind in _WORDS else problem['msg']}"


def _bound(bound: Any, given: object) -> str:
    """A bound as it would be written: with a unit where a duration was given, but for 0."""
    with suppress(ValueError):
        parse_duration(given)
        return format_duration(int(bound)) if bound else "0"
    return digits_text(bound, 6).replace(",", "") if isinstance(bound, float) else str(bound)


def _place(location: _Location, root: type[BaseModel]) -> tuple[list[str | int], list[Any]]:
    """The path of the key at a location of pydantic's, and which sections, mappings and lists may stand there. Where a
    section may be of several kinds, pydantic names its kind behind its key."""
    path: list[str | int] = []
    forms: list[Any] = [root]
    for part in location:
        of_kind = [form for form in forms if _kind(form) == part] if len(forms) > 1 else []
        path += [] if of_kind else [part]
        forms = of_kind or [deeper for form in forms for deeper in _below(form, part)]
    return path, forms


def _below(form: Any, part: str | int) -> list[Any]:
    """What may stand at a key, name or index of a section, mapping or list."""
    if get_origin(form) is dict:
        return _forms(get_args(form)[1])
    return _forms(get_args(form)[0] if get_origin(form) is tuple else _fields(form).get(str(part)))


def _forms(annotation: Any) -> list[Any]:
    """The sections, mappings and lists that a value of this type may be."""
    if get_origin(annotation) in (dict, tuple) or (
        isinstance(annotation, type) and issubclass(annotation, BaseModel)
    ):
        return [annotation]
    return [form for part in get_args(annotation) for form in _forms(part)]


def _kind(form: Any) -> Any:
    """Value of the section's `kind`, where it is fixed to one."""
    allowed = get_args(_fields(form).get("kind"))
    return allowed[0] if len(allowed) == 1 else None


def _fields(form: Any) -> dict[str, Any]:
    """Keys of the file for this section, with the types of their values; none of a mapping or list."""
    return {
        field.alias or name: field.annotation for name, field in getattr(form, "model_fields", {}).items()
    }
