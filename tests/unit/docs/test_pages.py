"""Pages name files that are there, and the map has every room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("scenarios", "models", "actors", "cluster", "analysis")
PAGES = (*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md")))
_TOP = (*PACKAGES, "tests", "docs")
_PATH = re.compile(r"`((?:" + "|".join(_TOP) + r")/[\w./-]*)`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_ROW = re.compile(r"^\| `([\w/]+/)` \| (.*) \|$", re.MULTILINE)
HISTORY = ("CHANGELOG.md", "results.md")
"""Pages about what was: files that they name may have gone since."""


def missing(page: Path) -> Iterator[str]:
    """What the page names and is not there: paths from the root, and links from its folder."""
    text = page.read_text(encoding="utf-8")
    for path in _PATH.findall(text):
        if not (ROOT / path).exists():
            yield path
    for link in _LINK.findall(text):
        if not (page.parent / link).exists():
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    found = list(missing(page))
    assert page.name in HISTORY or found == []


def test_a_file_that_is_not_there_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`analysis/gone.py` and `analysis/derive.py`, [there](page.md), [not](other.md#part)\n")
    assert list(missing(page)) == ["analysis/gone.py", "other.md"]


def sentence_of(path: Path) -> str:
    """The first paragraph of the docstring."""
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert words, path
    return " ".join(words.split("\n\n")[0].split())


def test_the_map_has_every_room_with_its_own_sentence() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {
        f"{path.parent.relative_to(ROOT).as_posix()}/": sentence_of(path)
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert dict(_ROW.findall(page)) == rooms


def test_the_index_has_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text(encoding="utf-8"))}
    assert {page for page in (ROOT / "docs").glob("*.md") if page != index} <= linked
    assert {ROOT / "README.md"} <= linked
