"""The plan of a run whose load is Locust's: its digest, its end, and the files that it brings."""

from __future__ import annotations

import os
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from squall.scenarios import locust_plan
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.config.locust import LocustConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError
from squall.scenarios.locust_plan import LocustFiles, LocustPlan, read_locust_files
from squall.scenarios.plan.rates import mean_rate_hz, scaled_scenario
from squall.scenarios.run_plan import plan_run, routed
from squall.scenarios.units import NS_PER_S

USERS = b"from locust import User\n"


def config(folder: Path, name: str = "locustfile.py", include: tuple[str, ...] = ()) -> LocustConfig:
    return LocustConfig(file=str(folder / name), include=tuple(str(folder / one) for one in include))


def refusal(folder: Path, source: bytes, name: str = "locustfile.py") -> str:
    (folder / name).write_bytes(source)
    with pytest.raises(ScenarioError) as refused:
        read_locust_files(config(folder, name))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_folders_are_read_with_all_that_is_in_them_and_not_what_python_makes(tmp_path: Path) -> None:
    for name in (
        ".venv/locustfile.py",
        ".venv/data/a.csv",
        ".venv/data/deep/b.csv",
        ".venv/data/__pycache__/c.pyc",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    folder = tmp_path / ".venv"  # what lies above the locustfile is nobody's matter
    (folder / "locustfile.py").write_bytes(USERS)
    alone = read_locust_files(config(folder))
    assert alone == LocustFiles("locustfile.py", {"locustfile.py": USERS})
    assert alone.write(tmp_path / "alone").read_bytes() == USERS
    found = read_locust_files(config(folder, include=("data", "locustfile.py", "data/a.csv")))
    assert sorted(found.contents) == ["data/a.csv", "data/deep/b.csv", "locustfile.py"]
    found.write(tmp_path / "node")
    assert (tmp_path / "node" / "data" / "deep" / "b.csv").read_bytes() == b".venv/data/deep/b.csv"


def test_links_are_followed_each_folder_once(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.csv").write_bytes(b"a")
    own = tmp_path / "own"
    (own / "data").mkdir(parents=True)
    (own / "locustfile.py").symlink_to(tmp_path / "users.py")
    (tmp_path / "users.py").write_bytes(USERS)
    (own / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (own / "data" / "round").symlink_to(own / "data")
    (own / "data" / "gone").symlink_to("nowhere")
    found = read_locust_files(config(own, include=("data",)))
    assert found.contents == {"locustfile.py": USERS, "data/linked/a.csv": b"a"}


def test_any_python_is_read_whatever_python_warns_of(tmp_path: Path) -> None:
    odd = (b"", b"\xef\xbb\xbfx = 1\n", b"# coding: latin-1\nx = '\xe9'\n", b"x = '\\d'\ny = x is 'a'\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in odd:
            (tmp_path / "locustfile.py").write_bytes(source)
            assert read_locust_files(config(tmp_path)).contents["locustfile.py"] == source


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"x = 1\ndef f(:\n", "locustfile.py: SyntaxError: invalid syntax (locustfile.py, line 2) (def f(:)"),
        (
            b"def f():\nx = 1\n",
            "IndentationError: expected an indented block after function definition on line 1",
        ),
        (b"x = 1\0\n", "locustfile.py: SyntaxError: source code string cannot contain null bytes"),
        (b"x = '\xe9'\n", "'utf-8' codec can't decode byte 0xe9"),
        (b"# coding: klingon\n", "SyntaxError: unknown encoding: klingon"),
        (b"x = " + b"(" * 300 + b")" * 300 + b"\n", "SyntaxError: too many nested parentheses"),
        (b"x = " + b"-" * 100_000 + b"1\n", "locustfile.py: nested too deep"),
    ],
)
def test_what_is_no_python_is_told_in_its_own_words_with_the_line(
    tmp_path: Path, source: bytes, said: str
) -> None:
    text = refusal(tmp_path, source)
    assert text.startswith("load.locust.file: ")
    assert said in text
    assert len(text) < 250


def test_files_that_are_not_there_or_are_no_files_are_named_with_their_key(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    for name, why in (
        ("gone.py", "No such file or directory"),
        ("folder.py", "it is no file"),
        ("pipe.py", "it is no file"),
    ):
        with pytest.raises(ScenarioError) as refused:
            read_locust_files(config(tmp_path, name))
        assert str(refused.value) == f"load.locust.file: {tmp_path / name}: {why}"
    (tmp_path / "locustfile.py").write_bytes(USERS)
    with pytest.raises(
        ScenarioError, match=r"^load\.locust\.include: .*/gone\.csv: No such file or directory$"
    ):
        read_locust_files(config(tmp_path, include=("gone.csv",)))


def test_no_more_is_read_than_may_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locust_plan.MOST_BYTES == 64 * 2**20
    monkeypatch.setattr(locust_plan, "MOST_BYTES", 2**20)
    (tmp_path / "locustfile.py").write_bytes(USERS)
    (tmp_path / "data").mkdir()
    for name, n_bytes in (("a", 2**19), ("b", 2**19 - len(USERS))):
        (tmp_path / "data" / name).write_bytes(b"x" * n_bytes)
    assert len(read_locust_files(config(tmp_path, include=("data",))).contents) == 3
    with (tmp_path / "data" / "c").open("wb") as file:
        file.truncate(2**40)  # a hole: whoever read all of it would have no memory left
    with pytest.raises(ScenarioError, match=r"^load\.locust\.include: .*/c: more than 1 MiB"):
        read_locust_files(config(tmp_path, include=("data",)))
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(
        ScenarioError, match=r"^load\.locust\.file: .*/huge\.py: more than 2 MiB, .*; put data"
    ):
        read_locust_files(config(tmp_path, "huge.py"))


def test_a_locustfile_that_is_too_large_is_not_compiled(tmp_path: Path) -> None:
    most = b"#" * (2**21 - 1) + b"\n"
    (tmp_path / "locustfile.py").write_bytes(most)
    assert read_locust_files(config(tmp_path)).contents == {"locustfile.py": most}
    text = refusal(tmp_path, b"a (\n" + most)  # of which Python would say that it is none
    assert "more than 2 MiB" in text


def test_the_digest_is_of_names_and_contents() -> None:
    one = LocustFiles("a.py", {"a.py": b"1", "b": b"2"})
    assert one.sha256() == LocustFiles("a.py", {"b": b"2", "a.py": b"1"}).sha256()
    others = [
        LocustFiles("a.py", {"a.py": b"1", "b": b"3"}),
        LocustFiles("a.py", {"a.py": b"1", "c": b"2"}),
        LocustFiles("b", {"a.py": b"1", "b": b"2"}),
        LocustFiles("a.py", {"a.py": b"12", "b": b""}),
    ]
    assert len({other.sha256() for other in (one, *others)}) == 5


def test_a_name_that_is_no_text_has_a_digest_too(tmp_path: Path) -> None:
    (tmp_path / "locustfile.py").write_bytes(USERS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / os.fsdecode(b"\xff.csv")).write_bytes(b"a")
    found = read_locust_files(config(tmp_path, include=("data",)))
    found.write(tmp_path / "node")
    assert len(found.sha256()) == 64
    assert os.listdir(os.fsencode(tmp_path / "node" / "data")) == [b"\xff.csv"]


def scenario_of(folder: Path, more: dict[str, Any] | None = None, **locust: Any) -> Scenario:
    path = folder / "locustfile.py"
    folder.mkdir(exist_ok=True)
    if not path.exists():
        path.write_text("x = 1\n")
    load = {"locust": {"file": str(path), "run_time": "5s", **locust}}
    mapping = {"name": "x", "seed": 1, "model": {"name": "m"}, "load": load, **(more or {})}
    return scenario_from_mapping(mapping, "test")


def plan_of(folder: Path, more: dict[str, Any] | None = None, **locust: Any) -> LocustPlan:
    plan = plan_run(scenario_of(folder, more, **locust), None)
    assert isinstance(plan, LocustPlan)
    return plan


def test_its_digest_is_of_what_is_sent_and_not_of_where_files_lie(tmp_path: Path) -> None:
    digest = plan_of(tmp_path / "a").sha256()
    assert plan_of(tmp_path / "b").sha256() == digest
    assert plan_of(tmp_path / "a", html=True).sha256() == digest
    assert plan_of(tmp_path / "a", web={}).sha256() == digest
    changes: dict[str, Any] = {
        "users": 2, "spawn_rate": 3, "run_time": "6s", "tags": ["a"], "exclude_tags": ["a"], "user_classes": ["A"],
        "host": "http://x", "stop_timeout": "1s", "options": ["--own"],
    }  # fmt: skip
    others = {plan_of(tmp_path / "a", **{key: value}).sha256() for key, value in changes.items()}
    assert len({digest, *others}) == len(changes) + 1
    (tmp_path / "a" / "locustfile.py").write_text("x = 2\n")
    assert plan_of(tmp_path / "a").sha256() != digest


def test_stated_phases_and_those_that_run_time_implies_are_one_plan(tmp_path: Path) -> None:
    implied = scenario_of(tmp_path)
    phases = implied.to_mapping()["phases"]
    load = {"locust": {"file": str(tmp_path / "locustfile.py")}}
    stated = scenario_of(tmp_path, {"phases": phases, "load": load})
    assert plan_run(stated, None).sha256() == plan_run(implied, None).sha256()


def test_load_ends_with_the_last_phase_that_is_no_drain_and_users_in_what_is_left(tmp_path: Path) -> None:
    phases = [
        {"name": str(at), "kind": kind, "duration": "1s"} for at, kind in enumerate(("measure", "drain") * 2)
    ]
    file = {"file": str(tmp_path / "locustfile.py")}
    for more, timeout_ns in (({}, NS_PER_S), ({"stop_timeout": "0s"}, 0)):
        plan = plan_of(tmp_path, {"phases": phases, "load": {"locust": {**file, **more}}})
        assert (plan.load_end_ns, plan.stop_timeout_ns) == (3 * NS_PER_S, timeout_ns)


def test_servers_do_not_change_it(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, {"servers": {"count": 3}})
    plan = plan_run(scenario, None)
    assert routed(plan, scenario, scenario.entries_for(3)) is plan


def test_it_has_no_rate(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path)
    with pytest.raises(ValueError, match="has no rate"):
        mean_rate_hz(scenario)
    with pytest.raises(ScenarioError, match="no rate that could be scaled"):
        scaled_scenario(scenario, Fraction(1, 2), "time")
