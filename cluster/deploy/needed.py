"""What squall needs of other packages, at the versions of this environment."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

from squall.scenarios.errors import ClusterError


def pins(python: str, root: str = "squall") -> dict[str, str]:
    """Versions by normalised name (PEP 503) of all that `root` needs in a Python such as "3.12", without `root`.

    Raises ClusterError where one of them is not installed here.
    """
    from packaging.requirements import Requirement

    facts = {"python_version": python, "python_full_version": f"{python}.0"}
    seen: set[tuple[str, str]] = set()
    found: dict[str, str] = {}
    left = [(root, "")]
    while left:
        name, extra = left.pop()
        if (_normal(name), extra) in seen:
            continue
        seen.add((_normal(name), extra))
        try:
            told = distribution(name)
        except PackageNotFoundError as error:
            raise ClusterError(f"{name} is not installed here: pip install {name}, and try again") from error
        found[_normal(name)] = told.version
        for one in map(Requirement, told.requires or ()):
            if one.marker is None or one.marker.evaluate({**facts, "extra": extra}):
                left += [(one.name, wanted) for wanted in ("", *one.extras)]
    del found[_normal(root)]
    return dict(sorted(found.items()))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
