"""Headers as command lines take them: `-H NAME:VALUE`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from squall.cluster.node.endpoint import expand_headers
from squall.scenarios.config.clients.client import ClientConfig
from squall.scenarios.config.loader import section_from_mapping
from squall.scenarios.errors import ScenarioError

_REFERENCE = re.compile(r"\$\{\w+\}")


def headers_typed(texts: Iterable[str]) -> dict[str, str]:
    """The headers as they were typed, `${NAME}` among it. Raises ScenarioError for what is no header, without its
    value, which may be a secret."""
    found: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not name:
            raise ScenarioError(f"-H: {name[:20]!r} is not NAME:VALUE")
        if not (value.isascii() and value.isprintable()):
            raise ScenarioError(f"-H: the value of {name} has characters that no header may have")
        found[name] = value
    section_from_mapping(ClientConfig, {"headers": dict(found)}, "-H")
    return found


def expanded(headers: Mapping[str, str]) -> dict[str, str]:
    """With the values of their variables. Raises ScenarioError for one that is not set."""
    return expand_headers(headers, os.environ, "-H: ")


def told_of_values(headers: Mapping[str, str], where: str) -> list[str]:
    """A line for each header whose value stands in the file as it was typed."""
    return [
        f"squall: {where} has the value of {name} as it was typed: -H '{name}:${{NAME}}' keeps it in the environment"
        for name, value in headers.items()
        if value and not _REFERENCE.search(value)
    ]
