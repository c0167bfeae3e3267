"""Text that another program wrote, as it may be printed and kept: no control characters, no secret of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

LEFT_OUT = "[left out]"
_LEAST_SECRET_CHARACTERS = 4  # shorter values, such as "1", are no secrets, and stand in many texts
_REFERENCE = re.compile(r"\$\{\w+\}")


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


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """What is kept of headers: values that are written as `${NAME}`, else `${NAME_OF_THE_HEADER}`, so that whoever
    runs it again is asked for them. Raises TypeError for a value that is no text."""
    return {name: _kept_header(name, value) for name, value in headers.items()}


def _kept_header(name: str, value: str) -> str:
    if _REFERENCE.search(value) or not value:
        return value
    return "${" + re.sub(r"\W", "_", name).upper() + "}"
