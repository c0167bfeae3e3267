"""Headers as command lines take them: `-H NAME:VALUE`, and variables of the environment that those of scenarios may
have: `--allow-env NAME`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from squall.cluster.node.endpoint import expand_headers
from squall.scenarios.config.client import ClientConfig
from squall.scenarios.config.loader import section_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.foreign_text import VARIABLE, variables_in


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


def variables_allowed(typed: Iterable[str]) -> list[str]:
    """Names of variables that headers of scenarios may have: those typed, `A,B` for two, and those in the user's own
    `~/.config/squall/allow-env`, a line each. Raises ScenarioError where others can write that file."""
    names = [name.strip() for text in typed for name in text.split(",")]
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "squall" / "allow-env"
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise ScenarioError(f"{path}: others can write it: make it your own, and chmod go-w it")
            names += file.read().split()
    except OSError:  # as where there is none
        pass
    return names


def allowing(headers: Mapping[str, str]) -> str:
    """What `squall run FILE` needs where the file has these headers, after a blank; empty where that is nothing."""
    names = dict.fromkeys(variables_in(headers.values()))
    return f" --allow-env {','.join(names)}" if names else ""


def told_of_values(headers: Mapping[str, str], where: str) -> list[str]:
    """A line for each header whose value stands in the file as it was typed."""
    return [
        f"squall: {where} has the value of {name} as it was typed: -H '{name}:${{NAME}}' keeps it in the environment"
        for name, value in headers.items()
        if value and not VARIABLE.search(value)
    ]
