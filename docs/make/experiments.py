"""docs/experiments.md, made of the files in docs/experiments: `python -m docs.make.experiments`; a test holds it.

`python -m docs.make.experiments FOLDER/reproduction.json …` first takes such files of `squall reproduce` in there, each
under the name of its experiment, in its short form.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from squall.analysis.published.document import experiments_document
from squall.analysis.published.result import Reproduction
from squall.scenarios.errors import AnalysisError

PAGE = Path(__file__).parents[1] / "experiments.md"
FILES = PAGE.with_suffix("")
"""The folder of the files."""
LARGEST_FILE_BYTES = 60 * 1024


def read_file(path: Path) -> Reproduction:
    """What a file says. Raises AnalysisError, with its name, where it is none."""
    try:
        return Reproduction.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (AnalysisError, ValueError) as error:
        raise AnalysisError(f"{path.name}: {error}") from error


def page_text(folder: Path = FILES) -> str:
    """The page of the files in `folder`, by name."""
    return experiments_document([read_file(path) for path in sorted(folder.glob("*.json"))])


def take_in(path: Path, folder: Path = FILES) -> Path:
    """Where the file is kept from now on."""
    found = read_file(path)
    kept = folder / f"{found.published.name}.json"
    kept.write_text(found.to_text(), encoding="utf-8")
    return kept


def main(paths: list[str]) -> None:
    """Takes the files in, then writes the page."""
    for path in paths:
        print(take_in(Path(path)))
    PAGE.write_text(page_text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
