"""Faults of a scenario as one line: the path of the key, what stands there, what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from squall.scenarios.config.client import FUNCTION
from squall.scenarios.config.scenario import Scenario
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


def describe_problem(
    error: ValidationError, mapping: Mapping[str, Any], root: type[BaseModel] = Scenario
) -> str:
    """The first problem on one line, and the count of the others; `root` is what `mapping` was to be.

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
    path = path_text(_without_kinds(problems[0]["loc"], mapping))
    return " ".join(f"{path}{': ' if path else ''}{_claim(problems[0], root)}{more}".split())


def unknown_key(key: str, known: Sequence[str]) -> str:
    """`unknown key`, with the nearest known one or all of them."""
    return f"unknown key, {way_out(key, known, 'allowed are ' + ', '.join(known))}"


def known_keys(location: _Location, root: type[BaseModel] = Scenario) -> list[str]:
    """Keys that a section of a scenario may have; `location` holds keys, indexes and `kind`s of unions. None where any
    key is allowed, as in model.settings, or a name, as in clients.inputs."""
    return sorted({key for section in _sections(location, root) for key in _fields(section)})


def path_text(path: _Location) -> str:
    """`phases[1].arrivals.rate`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _without_kinds(location: _Location, mapping: Mapping[str, Any]) -> list[str | int]:
    """`location` of a pydantic error without the `kind` of a section that it names once behind that section's key."""
    path: list[str | int] = []
    here: Any = mapping
    is_kind_named = False
    for part in location:
        if not is_kind_named and isinstance(here, Mapping) and here.get("kind") == part:
            is_kind_named = True
            continue
        path.append(part)
        is_kind_named = False
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = None
    return path


def _claim(problem: ErrorDetails, root: type[BaseModel]) -> str:
    """What is wrong at the location of `problem`, without the location."""
    kind, context, location = problem["type"], problem.get("ctx", {}), problem["loc"]
    kinds = [str(_kind(section)) for section in _sections(location, root)]
    text = repr(problem["input"])
    text = text if len(text) <= 60 else f"{text[:57]}..."
    value = "its value" if "headers" in location[:-1] else text  # which may be a secret, and be kept in a log
    match kind:
        case "extra_forbidden":
            return unknown_key(str(location[-1]), known_keys(location[:-1], root))
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


def _sections(location: _Location, root: type[BaseModel]) -> list[type[BaseModel]]:
    """Section classes that may stand at `location`."""
    forms: list[Any] = [root]
    for part in location:
        forms = [deeper for form in forms for deeper in _below(form, part)]
    return [form for form in forms if isinstance(form, type)]


def _below(form: Any, part: str | int) -> list[Any]:
    """What may stand at a key, name, index or kind of a section, mapping or list."""
    if get_origin(form) is dict:
        return _forms(get_args(form)[1])
    if get_origin(form) is tuple:
        return _forms(get_args(form)[0]) if isinstance(part, int) else []
    return _forms(_fields(form).get(str(part))) + [form] * (_kind(form) == part)


def _forms(annotation: Any) -> list[Any]:
    """The sections, mappings and lists that a value of this type may be."""
    if get_origin(annotation) in (dict, tuple) or (
        isinstance(annotation, type) and issubclass(annotation, BaseModel)
    ):
        return [annotation]
    return [form for part in get_args(annotation) for form in _forms(part)]


def _kind(section: type[BaseModel]) -> str | None:
    """Value of the section's `kind`, where it is fixed to one."""
    field = section.model_fields.get("kind")
    allowed = get_args(field.annotation) if field is not None else ()
    return str(allowed[0]) if len(allowed) == 1 else None


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    """Keys of the file for this section, with the types of their values."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
