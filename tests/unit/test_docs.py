"""The pages: links resolve, examples are scenarios, commands and options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from squall.cluster.cli import app
from squall.cluster.commands.perf.flags import FLAGS
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.strict_yaml import parse_yaml

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
HISTORY = ("CHANGELOG.md", "results.md")
"""Pages about what was: the files and commands that they name may have gone since."""
CURRENT = [page for page in PAGES if page.name not in HISTORY]

LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
FILE = re.compile(r"`((?:scenarios|models|actors|cluster|analysis|tests|docs)/[\w./-]*)`")
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(`|^\$ |^ {4}|^)squall ([a-z][^`\n]*)", re.MULTILINE)
"""In code, at a prompt, indented; or at the beginning of a line, where prose stands too."""
OTHER_FILES = {"jobs", "latency", "probe", "matrix"}
"""Keys of examples that are no scenarios: of CI, of probes, of experiments."""
OF_A_PHASE = {"arrivals", "rows"}


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing(page: Path) -> Iterator[str]:
    """What the page links or names and is not there."""
    text = page.read_text(encoding="utf-8")
    for target, anchor in LINK.findall(text):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            yield f"{target}#{anchor}"
    if page.name not in HISTORY:
        yield from (path for path in FILE.findall(text) if not (ROOT / path).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_that_a_page_names_are_there(page: Path) -> None:
    assert list(missing(page)) == []


def test_what_is_not_there_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One\n`analysis/gone.py`, `analysis/report/derive.py` [a](page.md#one) [b](page.md#two) [c](other.md)\n"
    )
    assert list(missing(page)) == ["page.md#two", "other.md#", "analysis/gone.py"]


def examples() -> Iterator[Any]:
    for page in PAGES:
        for number, text in enumerate(YAML.findall(page.read_text(encoding="utf-8")), 1):
            given = parse_yaml(text, page.name)
            if not OTHER_FILES & set(given):
                yield pytest.param(given, id=f"{page.name}-{number}")


@pytest.mark.parametrize("given", list(examples()))
def test_an_example_is_a_scenario(given: dict[str, Any]) -> None:
    """As it stands, or with the shortest rest of one around it."""
    measured = {
        "name": "main",
        "kind": "measure",
        "duration": "1m",
        "arrivals": {"kind": "poisson", "rate": "1/s"},
    }
    measured |= {key: given[key] for key in OF_A_PHASE & set(given)}
    if "rows" in given:
        measured["arrivals"] = {"kind": "trace", "file": "trace.csv"}
    phases = [measured | {"name": name} for name in ("main", "burst")]
    rest: dict[str, Any] = {
        "name": "x",
        "seed": 0,
        "phases": [*phases, {"name": "end", "kind": "drain", "duration": "1s"}],
    }
    if "models" not in given:
        rest["model"] = {"name": "x"}
    if "load" in given:
        del rest["phases"]
    scenario_from_mapping({**rest, **{key: given[key] for key in set(given) - OF_A_PHASE}}, "example")


def test_every_scenario_file_in_the_repository_loads() -> None:
    published = ROOT / "scenarios" / "published"  # of another form, which tests of their own load
    files = sorted(path for path in (ROOT / "scenarios").rglob("*.yaml") if path.parent != published)
    assert [load_scenario(path).name for path in files] == ["demo"]


@cache
def command_line() -> Any:
    """Made once: it is of all commands, and the pages name hundreds."""
    return typer.main.get_command(app)


def options_of(words: list[str]) -> tuple[set[str], list[str]]:
    """All options of the command that `words` begin with, and the words behind its name. KeyError for no command."""
    command = command_line()
    options = {"--help", *(option for one in command.params for option in one.opts)}
    left = list(words)
    while hasattr(command, "commands") and left:
        command = command.commands[left.pop(0)]
        options |= {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    if words[0] == "perf":
        options |= {word.strip(",") for flag in FLAGS for word in flag.shown.split()}
    return options, left


def wrong_commands(text: str) -> Iterator[str]:
    """The commands in a text that do not exist, or show an option that they do not have."""
    for before, line in COMMAND.findall(re.sub(r"\\\n\s*", " ", text)):
        shown = re.split(r" [#>|] ?|&&", line.replace("[", " ").replace("]", " "))[0]
        words = shlex.split(shown.replace("'", " "))
        try:
            options, left = options_of(words)
        except KeyError:
            if before:
                yield f"squall {line}"
            continue
        yield from (
            f"squall {line}: {word}"
            for word in left
            if word.startswith("-") and word.split("=")[0] not in options
        )


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_commands_on_a_page_exist_with_their_options(page: Path) -> None:
    assert list(wrong_commands(page.read_text(encoding="utf-8"))) == []


def test_a_command_or_an_option_that_does_not_exist_is_seen() -> None:
    text = "`squall run a.yaml --set x=1`, `squall rum`\n    squall trace info a.csv --jsn  # all\n$ squall trace inf"
    assert list(wrong_commands(text)) == [
        "squall rum",
        "squall trace info a.csv --jsn  # all: --jsn",
        "squall trace inf",
    ]
