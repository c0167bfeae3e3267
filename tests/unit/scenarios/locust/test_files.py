"""The locustfile and what lies beside it: what is read, what is left out, what is refused and how."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from squall.scenarios.config.locust import LocustConfig
from squall.scenarios.errors import ScenarioError
from squall.scenarios.locust import files
from squall.scenarios.locust.files import LocustFiles, read_locust_files

USERS = b"from locust import User\n"


def config(folder: Path, name: str = "locustfile.py", include: tuple[str, ...] = ()) -> LocustConfig:
    return LocustConfig(file=str(folder / name), include=tuple(str(folder / one) for one in include))


def refusal(folder: Path, source: bytes, name: str = "locustfile.py") -> str:
    (folder / name).write_bytes(source)
    with pytest.raises(ScenarioError) as refused:
        read_locust_files(config(folder, name))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_file_alone_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "locustfile.py").write_bytes(USERS)
    found = read_locust_files(config(tmp_path))
    assert found == LocustFiles("locustfile.py", {"locustfile.py": USERS})
    path = found.write(tmp_path / "node")
    assert path == tmp_path / "node" / "locustfile.py"
    assert path.read_bytes() == USERS


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


def test_an_empty_file_a_mark_of_byte_order_and_a_stated_encoding_are_python(tmp_path: Path) -> None:
    for source in (b"", b"\xef\xbb\xbfx = 1\n", b"# coding: latin-1\nx = '\xe9'\n"):
        (tmp_path / "locustfile.py").write_bytes(source)
        assert read_locust_files(config(tmp_path)).contents["locustfile.py"] == source


def test_what_python_warns_of_is_no_matter_here(tmp_path: Path) -> None:
    (tmp_path / "locustfile.py").write_bytes(b"x = '\\d'\ny = x is 'a'\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_locust_files(config(tmp_path))


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
        (b"x = " + b"-" * 100_000 + b"1\n", "locustfile.py: MemoryError: nested too deep"),
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
        ("folder.py", "is a folder, no file"),
        ("pipe.py", "is a device, no file"),
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
    assert files.MOST_BYTES == 64 * 2**20
    monkeypatch.setattr(files, "MOST_BYTES", 2**20)
    (tmp_path / "locustfile.py").write_bytes(USERS)
    (tmp_path / "data").mkdir()
    for name, n_bytes in (("a", 2**19), ("b", 2**19 - len(USERS))):
        (tmp_path / "data" / name).write_bytes(b"x" * n_bytes)
    assert len(read_locust_files(config(tmp_path, include=("data",))).contents) == 3
    with (tmp_path / "data" / "c").open("wb") as file:
        file.truncate(2**40)  # a hole: whoever read all of it would have no memory left
    with pytest.raises(ScenarioError, match=r"^load\.locust\.include: more than 1 MiB in all"):
        read_locust_files(config(tmp_path, include=("data",)))
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(
        ScenarioError, match=r"^load\.locust\.file: .*/huge\.py: more than 2 MiB of Python; put data"
    ):
        read_locust_files(config(tmp_path, "huge.py"))


def test_a_locustfile_that_is_too_large_is_not_compiled(tmp_path: Path) -> None:
    most = b"#" * (2**21 - 1) + b"\n"
    (tmp_path / "locustfile.py").write_bytes(most)
    assert read_locust_files(config(tmp_path)).contents == {"locustfile.py": most}
    text = refusal(tmp_path, b"a (\n" + most)  # of which Python would say that it is none
    assert "more than 2 MiB of Python" in text


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
