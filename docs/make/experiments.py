"""docs/experiments.md, made of the files in docs/experiments: `python -m docs.make.experiments`.

`python -m docs.make.experiments FOLDER/reproduction.json …` first takes such files of `squall reproduce` in there, in
their short form, under the name of the experiment; several of one experiment, such as of other seeds, as one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from squall.analysis.studies.published_page import experiments_document
from squall.analysis.studies.published_result import Reproduction, joined
from squall.scenarios.errors import AnalysisError

PAGE = Path(__file__).parents[1] / "experiments.md"
FILES = PAGE.with_suffix("")
"""The folder of the files."""


def read_file(path: Path) -> Reproduction:
    """What a file says. Raises AnalysisError, with its name, where it is none."""
    try:
        return Reproduction.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (AnalysisError, ValueError) as error:
        raise AnalysisError(f"{path.name}: {error}") from error


def page_text(folder: Path = FILES) -> str:
    """The page of the files in `folder`, by name."""
    return experiments_document([read_file(path) for path in sorted(folder.glob("*.json"))])


def take_in(paths: Sequence[Path], folder: Path = FILES) -> list[Path]:
    """Where the files are kept from now on, one for each experiment."""
    by_name: dict[str, list[Reproduction]] = {}
    for path in paths:
        found = read_file(path)
        by_name.setdefault(found.published.name, []).append(found)
    kept = []
    for name, of_one in by_name.items():
        kept.append(folder / f"{name}.json")
        kept[-1].write_text(joined(of_one).to_text(), encoding="utf-8")
    return kept


def main(paths: list[str]) -> None:
    """Takes the files in, then writes the page."""
    for path in take_in([Path(one) for one in paths]):
        print(path)
    PAGE.write_text(page_text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
