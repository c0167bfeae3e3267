"""Text that another program wrote, as it may be read, printed and kept: names that are one component of a path, JSON
within bounds, no control characters, no secret of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

LEFT_OUT = "[left out]"
_LEAST_SECRET_CHARACTERS = 4  # shorter values, such as "1", are no secrets, and stand in many texts
VARIABLE = re.compile(r"\$\{(\w+)\}")
"""A variable of the environment in the value of a header: whoever allows, keeps or fills in one means this."""
_MOST_DIGITS = 40
"""Of a whole number: seeds of 128 bits have 39."""
_COMPONENT = re.compile(r"[^\x00-\x1f\x7f/\\\ud800-\udfff]{1,255}")


def is_component(name: object) -> bool:
    """Whether `name` is a text that can be one component of a path, and leads to nothing but what bears it: no
    separator, no control character, neither `.` nor `..`."""
    return isinstance(name, str) and _COMPONENT.fullmatch(name) is not None and name not in (".", "..")


def is_beneath(name: object) -> bool:
    """Whether `name` is a relative path of such components, as `tables/requests/part-00000.parquet`."""
    return isinstance(name, str) and all(is_component(one) for one in name.split("/"))


def json_of(content: bytes | str) -> Any:
    """JSON that another program wrote. Raises ValueError, with one line, for what is none: also for one that is nested
    without end, for numbers that no float holds (`1e999`, `NaN`) or of more than 40 digits,
    and for text that is no UTF-8."""
    try:
        return json.loads(content, parse_constant=_refuse, parse_int=_whole, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:20]} is beyond what a number can be")
    return value


def printable(text: str) -> str:
    """`text` on one line, each run of blanks one blank; see `escaped`."""
    return escaped(" ".join(text.split()))


def escaped(text: str) -> str:
    """`text` with what a terminal would take for a command, line ends among it, written as its escape: `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "backslashreplace").decode()
        for one in text
    )


def secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """What of the values of headers no text may repeat: whole values, and the words of those that have several, as
    the token of `Bearer TOKEN`; the longest first."""
    words = {word for value in headers.values() for word in (value, *value.split()[1:])}
    return tuple(
        sorted((one for one in words if len(one) >= _LEAST_SECRET_CHARACTERS), key=len, reverse=True)
    )


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """`text` with `[left out]` in place of each of them: a server may repeat what it was told."""
    for secret in secrets:
        text = text.replace(secret, LEFT_OUT)
    return text


def variables_in(texts: Iterable[str]) -> list[str]:
    """Names of the variables in texts, in their order."""
    return [name for text in texts for name in VARIABLE.findall(text)]


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """What is kept of headers: values that are written as `${NAME}`, else `${NAME_OF_THE_HEADER}`, so that whoever
    runs it again is asked for them. Raises TypeError for a value that is no text."""
    return {
        name: value if VARIABLE.search(value) or not value else "${" + re.sub(r"\W", "_", name).upper() + "}"
        for name, value in headers.items()
    }
