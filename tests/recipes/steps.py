"""A recipe as data, a copy of the tree to follow it in, and how the copy is asked what becomes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("scenarios", "models", "actors", "cluster", "analysis", "docs", "tests")
FILES = ("__init__.py", "pyproject.toml", "README.md", "CHANGELOG.md")
_LEFT_OUT = shutil.ignore_patterns("*-pytest-*.pyc", "*.png", "*.svg", "fixtures", "*.so", "*.c", "*.h")


@dataclass(frozen=True)
class Step:
    """What is done to one file, and what fails where this step alone is left out: `caught`, with the words `said`.

    `caught`: `import`, or the test that does. `edits`: an anchor, which stands there once, and what comes before it.
    `text`: of a new file. `made_by`: the module whose output stands in the file, and is put in anew.
    """

    file: str
    caught: str
    said: str
    edits: tuple[tuple[str, str], ...] = ()
    text: str = ""
    made_by: str = ""


@dataclass(frozen=True)
class Recipe:
    """`title` heads it in CONTRIBUTING.md, which calls new files `<name>`. `imports`: what fails to import with a gap.

    `tries`: a program that uses the new kind from end to end and prints `asked`; empty where the tests of the steps do.
    """

    title: str
    name: str
    steps: tuple[Step, ...]
    imports: str = ""
    tries: str = ""
    asked: str = ""


class Tree:
    """A copy of the repository's sources in `folder`, which Python finds as `squall`; each module is compiled once.

    What is compiled of the repository is copied along: it is good as long as its source has the same instant and size.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "of_squall"  # pytest calls the package by it: no name that a library has
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.root / name, ignore=_LEFT_OUT)
        for name in FILES:
            shutil.copy(ROOT / name, self.root / name)
        (self.root / "tests" / "fixtures").symlink_to(ROOT / "tests" / "fixtures", target_is_directory=True)
        types = self.root / "build" / "types"
        types.mkdir(parents=True)
        (types / "squall").symlink_to(self.root, target_is_directory=True)

    def follow(self, recipe: Recipe, without: Step | None = None) -> None:
        """Takes the steps of `recipe`, but one."""
        steps = [step for step in recipe.steps if step is not without]
        before = {step.made_by: self.output_of(step.made_by) for step in steps if step.made_by}
        for step in steps:
            if not step.made_by:
                self._take(step)
        for step in steps:
            if step.made_by:
                page = self.root / step.file
                text, old = page.read_text(encoding="utf-8"), before[step.made_by]
                assert old in text, step.file
                page.write_text(text.replace(old, self.output_of(step.made_by)), encoding="utf-8")

    def _take(self, step: Step) -> None:
        file = self.root / step.file
        if step.text:
            assert not file.exists(), file
            file.write_text(step.text, encoding="utf-8")
            return
        text = file.read_text(encoding="utf-8")
        for anchor, new in step.edits:
            assert text.count(anchor) == 1, f"{step.file}: {anchor!r} stands there {text.count(anchor)} times"
            text = text.replace(anchor, new + anchor)
        file.write_text(text, encoding="utf-8")

    def restore(self) -> None:
        """As it was copied: what was compiled of the untouched files stays good."""
        for name in self.touched():
            original = ROOT / name
            if original.exists():
                shutil.copy(original, self.root / name)
            else:
                (self.root / name).unlink()

    def touched(self) -> set[str]:
        """Files of the copy that are not as in the repository."""
        return {
            str(path.relative_to(self.root))
            for name in (*FOLDERS, *FILES)
            for path in _files(self.root / name)
            if _is_other(path, ROOT / path.relative_to(self.root))
        }

    def output_of(self, module: str) -> str:
        """What `python -m` prints."""
        return self.run("-m", module).stdout

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python in the copy."""
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root / 'build' / 'types'}:{self.root}",
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def test(self, names: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """pytest in the copy."""
        return self.run("-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *names)


def _files(path: Path) -> list[Path]:
    return (
        [path]
        if path.is_file()
        else [one for one in path.rglob("*") if one.is_file() and "__pycache__" not in one.parts]
    )


def _is_other(one: Path, other: Path) -> bool:
    return not other.exists() or one.read_bytes() != other.read_bytes()
