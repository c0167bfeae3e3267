"""What is wrong with a scenario mapping, as one line: where, what stands there, what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from squall.scenarios.config.scenario import Scenario
from squall.scenarios.config.servers import IMAGE, SERVER_URL
from squall.scenarios.units import digits_text, format_duration, parse_duration

_PLAIN = {
    "missing": "missing, it must be given",
    "int_type": "is not a whole number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "string_type": "is not a text, put it in quotes",
    "string_too_short": "is empty",
    "tuple_type": "is not a list",
    "dict_type": "is not a mapping",
    "model_type": "is not a mapping",
    "model_attributes_type": "is not a mapping",
    "too_short": "is empty, it needs at least one entry",
}
_BOUND = {
    "greater_than": ("must be above", "gt"),
    "greater_than_equal": ("must be at least", "ge"),
    "less_than": ("must be below", "lt"),
    "less_than_equal": ("must be at most", "le"),
    "string_too_long": ("is too long, the most characters are", "max_length"),
    "too_long": ("has too many entries, the most are", "max_length"),
}
_PATTERNS = {
    r"^[a-z0-9][a-z0-9-]*$": "must be small letters, digits and hyphens",
    r"^[ -~]*$": "must be printable ASCII",
    r"^[1-9][0-9]*$": "must be a whole number from 1",
    IMAGE: "must be the name of an image: one word that begins with a letter or a digit",
    SERVER_URL: "must be of the form http://host:port or https://host:port",
}
_Location = Sequence[str | int]


def describe_problem(
    error: ValidationError, mapping: Mapping[str, Any], root: type[BaseModel] = Scenario
) -> str:
    """The most specific problem on one line, and the count of the others; `root` is what `mapping` was to be.

    Unknown keys come first, missing keys last: a mistyped key usually is the cause of both.
    """
    problems = _most_specific(sorted(error.errors(), key=_rank))
    first = problems[0]
    guess = (
        nearest(str(first["loc"][-1]), known_keys(first["loc"][:-1], root))
        if first["type"] == "extra_forbidden"
        else None
    )
    consequence = (*first["loc"][:-1], guess)
    others = [p for p in problems[1:] if not (p["type"] == "missing" and p["loc"] == consequence)]
    more = f" (and {len(others)} more)" if others else ""
    path = path_text(key_path(first["loc"], mapping, root))
    return " ".join(f"{path}{': ' if path else ''}{_claim(first, root)}{more}".split())


def unknown_key(key: str, known: Sequence[str]) -> str:
    """`unknown key`, with the nearest known one or all of them."""
    guess = nearest(key, known)
    if guess is not None:
        return f"unknown key, did you mean {guess!r}?"
    return f"unknown key, allowed are {', '.join(known)}" if known else "unknown key, it takes none"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely was meant to be."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def known_keys(location: _Location, root: type[BaseModel] = Scenario) -> list[str]:
    """Keys that a section of a scenario may have; `location` holds keys, indexes and `kind`s of unions."""
    return sorted({key for section in _sections(location, root) for key in _fields(section)})


def is_free_form(location: _Location) -> bool:
    """Whether any key is allowed at `location`, as in model.settings, or a name, as in clients.inputs."""
    candidates, takes_name = _entered(location, Scenario)
    return takes_name or not any(_named_in(candidate) for candidate in candidates)


def key_path(
    location: _Location, mapping: Mapping[str, Any], root: type[BaseModel] = Scenario
) -> list[str | int]:
    """`location` of a pydantic error without the `kind`s that it names beside the keys.

    A kind stands once behind the section that it is of, and may be a key of it too, such as `clients`.
    """
    path: list[str | int] = []
    here: Any = mapping
    is_entered = True
    for index, part in enumerate(location):
        if is_entered and isinstance(here, Mapping) and here.get("kind") == part:
            is_entered = part in here and not _is_kind(part, location[:index], root)
            if not is_entered:
                continue
        path.append(part)
        is_entered = True
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = None
    return path


def path_text(path: _Location) -> str:
    """`phases[1].arrivals.rate`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _most_specific(problems: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without those of a section that holds another one: "too short" follows from a bad item."""
    places = [problem["loc"] for problem in problems]
    return [
        problem
        for problem in problems
        if not any(
            len(place) > len(problem["loc"]) and place[: len(problem["loc"])] == problem["loc"]
            for place in places
        )
    ]


def _rank(problem: ErrorDetails) -> int:
    return {"extra_forbidden": 0, "missing": 2}.get(problem["type"], 1)


def _claim(problem: ErrorDetails, root: type[BaseModel]) -> str:
    """What is wrong at the location of `problem`, without the location."""
    kind, context = problem["type"], problem.get("ctx", {})
    is_secret = "headers" in problem["loc"][:-1]  # what an error repeats may be kept in a log
    value = "its value" if is_secret else _shorten(problem["input"])
    if kind == "extra_forbidden":
        return unknown_key(str(problem["loc"][-1]), known_keys(problem["loc"][:-1], root))
    if kind == "value_error":
        return str(context["error"])
    if kind == "missing":
        return _PLAIN[kind]
    if kind == "too_short" and context["min_length"] > 1:
        return f"{value} has too few entries, the least are {context['min_length']}"
    if kind in _PLAIN:
        return f"{value} {_PLAIN[kind]}"
    if kind in _BOUND:
        words, key = _BOUND[kind]
        return f"{value} {words} {_bound(context[key], problem['input'])}"
    if kind == "literal_error":
        return f"{value} must be {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"{value} {_PATTERNS.get(context['pattern'], 'is not of the form that it must have')}"
    if kind == "union_tag_invalid":
        kinds = _kinds(problem["loc"], root)
        guess = nearest(str(context["tag"]), kinds)
        hint = f"did you mean {guess!r}?" if guess else f"use {', '.join(kinds)}"
        return f"kind {context['tag']!r} is unknown, {hint}"
    if kind == "union_tag_not_found":
        return f"needs a kind: {', '.join(_kinds(problem['loc'], root))}"
    return f"{value} is refused: {problem['msg']}"


def _bound(bound: float, given: object) -> str:
    """The bound as it would be written: with a unit where a duration was given, but for 0."""
    with suppress(ValueError):
        parse_duration(given)
        return format_duration(int(bound)) if bound else "0"
    return str(bound) if isinstance(bound, int) else digits_text(bound, 6).replace(",", "")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _sections(location: _Location, root: type[BaseModel] = Scenario) -> list[type[BaseModel]]:
    """Section classes that may stand at `location`; of a list without its index, those of its items."""
    candidates, _ = _entered(location, root)
    return [section for candidate in candidates for section in _named_in(candidate)]


def _entered(location: _Location, root: type[BaseModel]) -> tuple[list[Any], bool]:
    """The types that may stand there, and whether the next part of a longer location is a name."""
    candidates: list[Any] = [root]
    is_name = False
    for index, part in enumerate(location):
        if isinstance(part, int) or is_name:
            is_name = False
            continue
        sections = [section for candidate in candidates for section in _named_in(candidate)]
        is_indexed = index + 1 < len(location) and isinstance(location[index + 1], int)
        deeper = [
            form
            for section in sections
            for key, annotation in _fields(section).items()
            if key == part
            for form in _forms(annotation, is_indexed)
            if _named_in(form)
        ]
        of_kind = [section for section in sections if part == _kind(section)]
        candidates = deeper or of_kind
        is_name = any(_is_named(form) for form in deeper)
    return candidates, is_name


def _forms(annotation: Any, is_indexed: bool) -> list[Any]:
    """Of a key that takes a list or a mapping, the one meant; else its type as it is."""
    members = _members(annotation)
    lists = [member for member in members if get_origin(member) is tuple]
    others = [member for member in members if get_origin(member) is not tuple and _named_in(member)]
    return (lists if is_indexed else others) if lists and others else [annotation]


def _is_named(annotation: Any) -> bool:
    """Whether it is a mapping whose keys are names."""
    return any(get_origin(form) is dict for form in (annotation, *_members(annotation)))


def _members(annotation: Any) -> tuple[Any, ...]:
    """Of a union; none of another type."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()


def _is_kind(part: str | int, location: _Location, root: type[BaseModel]) -> bool:
    """Whether a section at `location` is of the one kind `part`."""
    return any(_kind(section) == part for section in _sections(location, root))


def _kinds(location: _Location, root: type[BaseModel]) -> list[str]:
    return [str(_kind(section)) for section in _sections(location, root)]


def _kind(section: type[BaseModel]) -> str | None:
    """Value of the section's `kind`, where it is fixed to one."""
    field = section.model_fields.get("kind")
    allowed = get_args(field.annotation) if field is not None else ()
    return str(allowed[0]) if len(allowed) == 1 else None


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    """Keys of the file for this section, with the types of their values."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def _named_in(annotation: Any) -> list[type[BaseModel]]:
    """Section classes anywhere inside a type such as `tuple[A | B, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _named_in(part)]
