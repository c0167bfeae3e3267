"""Nodes without squall, or with another, get the driver's; those that cannot run it are named first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import squall.actors.process.own_source
import squall.cluster.remote.spawn
from squall.actors.process.own_source import OwnCode, missing_libraries, own_code
from squall.cluster.placement import Node
from squall.cluster.remote.shipped import staged
from squall.cluster.remote.spawn import same_code
from squall.scenarios.errors import ClusterError

NODES = [Node(f"node-{i}", f"id-{i}", f"10.0.0.{i + 1}", 0, i == 0) for i in range(4)]
OWN = own_code()
OTHER = replace(OWN, source="0123456789ab")
NO_SQUALL = "ModuleNotFoundError: No module named 'squall'"


class _Launchers:
    def __init__(self, codes: dict[str, OwnCode | str], after: dict[str, OwnCode | str]) -> None:
        self.asked: list[str] = []
        self.shipped: list[str] = []
        self._codes, self._after = codes, after

    def codes(self, nodes: Sequence[Node]) -> dict[str, OwnCode | str]:
        self.asked += [node.label for node in nodes]
        return {
            node.label: (self._after if node.label in self.shipped else self._codes).get(node.label, OWN)
            for node in nodes
        }

    def ship(self, nodes: Sequence[Node]) -> None:
        self.shipped += [node.label for node in nodes]


def launchers(
    monkeypatch: pytest.MonkeyPatch,
    codes: dict[str, OwnCode | str],
    after: dict[str, OwnCode | str] | None = None,
) -> _Launchers:
    known = _Launchers(codes, after or {})
    monkeypatch.setattr(squall.cluster.remote.spawn, "_LAUNCHERS", known)
    return known


def test_nodes_of_one_code_pass_and_the_driver_need_not_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    known = launchers(monkeypatch, {})
    assert same_code(NODES) == {}
    assert (known.asked, known.shipped) == (["node-1", "node-2", "node-3"], [])


def test_squall_is_brought_to_nodes_without_it_and_to_those_that_have_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = launchers(monkeypatch, {"node-1": NO_SQUALL, "node-3": OTHER})
    assert same_code(NODES) == {"node-1": "no squall", "node-3": str(OTHER)}
    assert known.shipped == ["node-1", "node-3"]


def test_all_nodes_that_cannot_run_it_are_in_one_line_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    older = replace(OWN, python="3.11.0")
    lacking = "lacks scipy>=1.13: pip install 'scipy>=1.13' in the Python that runs Ray there"
    known = launchers(
        monkeypatch, {"node-1": NO_SQUALL, "node-2": older, "node-3": lacking}, {"node-1": NO_SQUALL}
    )
    with pytest.raises(ClusterError) as caught:
        same_code(NODES)
    assert str(caught.value) == (
        f"node-1 cannot run squall ({NO_SQUALL}); node-2 has {older}; node-3 cannot run squall ({lacking}); "
        f"the driver has {OWN}: every node needs the driver's Python and libraries, in the environment that runs "
        "Ray there"
    )
    assert known.shipped == ["node-1"], "another Python and a library are not mended by it"


def test_what_is_brought_is_this_code_and_what_pip_knows_of_it(tmp_path: Path) -> None:
    package, *_ = made = staged(tmp_path)
    assert {path.parent for path in made} == {tmp_path}
    names = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {"__init__.py", "cluster/remote/served.py", "analysis/report/report.html.j2"} <= names
    assert not {name.partition("/")[0] for name in names} & {"tests", ".git", "docs", "setup.py"}
    for library in Path(squall.__path__[0]).glob("actors/*.so"):
        assert f"actors/{library.name}" in names
    say = "from squall.actors.process.own_source import own_code; print(own_code())"
    found = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = sys.argv[1:]; {say}", str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(OWN)


def test_libraries_that_are_missing_or_too_old_are_named_as_pip_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needed = ["numpy>=2.0", "numpy>=999", "not-there-at-all>=1", "pytest>=999; extra == 'dev'"]
    monkeypatch.setattr(squall.actors.process.own_source, "requires", lambda _: needed)
    assert missing_libraries() == ["numpy>=999", "not-there-at-all>=1"]
