"""The recipes of CONTRIBUTING.md are complete: followed to the letter they work, and no step can be forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.recipes.steps import ROOT, Recipe, Step, Tree
from tests.recipes.toys import RECIPES

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STEPS = [(recipe, step) for recipe in RECIPES for step in recipe.steps]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def tree(copied: Tree) -> Iterator[Tree]:
    """Untouched."""
    yield copied
    copied.restore()


def steps_of(title: str) -> list[tuple[str, str]]:
    """File, and what fails without it, of each step under a heading of the page."""
    section = PAGE.split(f"\n### {title}\n")[1].split("\n### ")[0]
    items = re.findall(r"^\d+\. (.*(?:\n   .*)*)", section, re.MULTILINE)
    found = [re.fullmatch(r"`([^`]+)`.*\*\((.+?)\)\*", " ".join(item.split())) for item in items]
    assert all(found), items
    return [(one[1], one[2].strip("`")) for one in found if one is not None]


def name_of(recipe: Recipe) -> str:
    return recipe.name


def step_of(value: object) -> str:
    return value.file if isinstance(value, Step) else value.name if isinstance(value, Recipe) else ""


UNFOLLOWED = ("An arrival process",)
"""Its pictures take a minute to draw."""


def test_every_other_recipe_of_the_page_is_followed() -> None:
    titles = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    assert titles == [*UNFOLLOWED, *(recipe.title for recipe in RECIPES)]


@pytest.mark.parametrize("title", UNFOLLOWED)
def test_the_files_and_tests_of_a_recipe_are_there(title: str) -> None:
    for file, caught in steps_of(title):
        path = ROOT / file
        assert path.parent.is_dir() if "<name>" in file else path.is_file(), file
        name, _, test = caught.partition("::")
        assert caught in ("import", "mypy") or f"\ndef {test}(" in (ROOT / name).read_text(
            encoding="utf-8"
        ), caught


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_the_page_has_the_steps_of_the_toy_and_what_fails_without_each(recipe: Recipe) -> None:
    told = [(file.replace("<name>", recipe.name), caught) for file, caught in steps_of(recipe.title)]
    assert told == [(step.file, step.caught) for step in recipe.steps]


@pytest.mark.parametrize("recipe", [one for one in RECIPES if one.tries], ids=name_of)
def test_a_toy_made_by_the_recipe_works_and_touches_no_other_file(recipe: Recipe, tree: Tree) -> None:
    tree.follow(recipe)
    tried = tree.run("-c", recipe.tries)
    assert tried.stdout == recipe.asked, tried.stderr
    assert tree.touched() == {step.file for step in recipe.steps}


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "step"), STEPS, ids=step_of)
def test_a_step_left_out_fails_where_the_page_says(recipe: Recipe, step: Step, tree: Tree) -> None:
    tree.follow(recipe, without=step)
    if step.caught == "import":
        failed = tree.run("-c", f"import {recipe.imports}")
        said = failed.stderr
    else:
        failed = tree.test([step.caught])
        said = failed.stdout
    assert failed.returncode == 1, said
    assert step.said in said
    assert step.caught == "import" or "1 failed" in said


@pytest.mark.long
@pytest.mark.slow
def test_with_all_steps_of_all_toys_the_tests_that_they_name_pass_and_the_code_is_clean(
    tree: Tree,
) -> None:
    for recipe in RECIPES:
        tree.follow(recipe)
    passed = tree.test([*dict.fromkeys(step.caught for _, step in STEPS if step.caught != "import")])
    assert passed.returncode == 0, passed.stdout
    files = sorted({step.file for _, step in STEPS if step.file.endswith(".py")})
    for tool in (["ruff", "check", *files], ["ruff", "format", "--check", *files], ["mypy"]):
        clean = tree.run("-m", *tool)
        assert clean.returncode == 0, clean.stdout
