"""nsys is found where it lies, says what it can do, and gets the importer that it does not find itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from squall.actors.nsys.tools import export_types_in, find_nsys, options_in
from squall.scenarios.errors import ClusterError

LAUNCH_HELP = """
    (Deprecated) --cpuctxsw=

       WARNING: This switch is no longer supported.
       Please set the --cpuctxsw switch when using the start command instead.

    --cuda-graph-trace=<granularity>[:<launch origin>]

       Set the granularity; see also --trace.

    -t, --trace=

       Possible values are 'cuda' or 'none'.
"""
EXPORT_2022 = """
    --separate-strings=

           Possible values are 'true' or 'false'.

    -t, --type=

           Possible values are: sqlite, hdf, text, arrow, json, info.
           Export format type.
"""
EXPORT_2025 = """
       Please note that this flag has nothing to do with JSON exports,
       (i.e. --type=json). Possible values are 'true' or 'false'.

    -t, --type=

           Possible values are: sqlite, hdf, text, json, info, arrow,
           arrowdir, and parquetdir.
"""


def program(path: Path, version: str) -> Path:
    """A program that says it is that version, as nsys and its importer do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && echo 'NVIDIA Nsight Systems version {version}-0'\nexit 0\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SQUALL_NSYS", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))  # scripts here need only what sh itself has


def test_options_are_read_from_the_help_without_those_it_no_longer_supports() -> None:
    assert options_in(LAUNCH_HELP) == {"--cuda-graph-trace", "--trace"}


def test_export_types_are_those_of_its_own_option() -> None:
    assert export_types_in(EXPORT_2022) == ("sqlite", "hdf", "text", "arrow", "json", "info")
    assert export_types_in(EXPORT_2025)[-2:] == ("arrowdir", "parquetdir")
    assert export_types_in("no such option") == ()


def test_there_is_none_where_none_lies(tmp_path: Path) -> None:
    assert find_nsys(root=tmp_path) is None


@pytest.mark.parametrize(
    "inside", ["nsys", "bin/nsys", "target-linux-x64/nsys", "host/target-linux-x64/nsys"]
)
def test_the_environment_names_a_folder_or_a_program(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nsys = program(tmp_path / "chosen" / inside, "2024.1.1")
    for named in (tmp_path / "chosen", nsys):
        monkeypatch.setenv("SQUALL_NSYS", str(named))
        found = find_nsys(root=tmp_path)
        assert found is not None
        assert (found.nsys, found.version, found.found) == (nsys, (2024, 1, 1), "SQUALL_NSYS")


def test_a_wrong_name_in_the_environment_is_an_error_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "usr/local/cuda/bin/nsys", "2025.1.1")
    monkeypatch.setenv("SQUALL_NSYS", str(tmp_path / "nowhere"))
    with pytest.raises(ClusterError, match=r"SQUALL_NSYS: .*nowhere is no nsys"):
        find_nsys(root=tmp_path)


def test_the_path_comes_before_the_known_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "usr/local/cuda/bin/nsys", "2025.1.1")
    program(tmp_path / "on-path" / "nsys", "2022.4.2.1")
    monkeypatch.setenv("PATH", str(tmp_path / "on-path"))
    found = find_nsys(root=tmp_path)
    assert found is not None
    assert (found.found, found.version_text) == ("PATH", "2022.4.2.1")


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("opt/nvidia/nsight-systems/2025.3.1/bin/nsys", "Nsight Systems"),
        ("opt/nvidia/nsight-systems-cli/2025.3.1/target-linux-x64/nsys", "Nsight Systems"),
        ("opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64/nsys", "Nsight Compute"),
        ("usr/local/cuda-13.0/bin/nsys", "CUDA toolkit"),
        ("usr/local/cuda-13.0/nsight-systems-2025.3.2/target-linux-x64/nsys", "CUDA toolkit"),
        ("usr/lib/nsight-systems/bin/nsys", "Debian"),
        ("usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64/nsys", "Debian"),
    ],
)
def test_the_known_places_are_searched(place: str, kind: str, tmp_path: Path) -> None:
    nsys = program(tmp_path / place, "2025.3.1")
    found = find_nsys(root=tmp_path)
    assert found is not None
    assert (found.nsys, found.found) == (nsys, kind)


def test_the_newest_wins_and_one_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    program(tmp_path / "usr/lib/nsight-systems/bin/nsys", "2022.10.1")
    newest = program(tmp_path / "opt/nvidia/nsight-compute/1/host/target-linux-x64/nsys", "2025.3.1")
    program(tmp_path / "usr/local/cuda/bin/nsys", "2025.2.9")
    broken = program(tmp_path / "opt/nvidia/nsight-systems/9/bin/nsys", "9999.1")
    broken.write_text("#!/bin/sh\nexit 3\n")
    found = find_nsys(root=tmp_path)
    assert found is not None
    assert found.nsys == newest


def binary(path: Path) -> Path:
    """A program that is no script, which nsys is; it cannot say its version, so tests give it one by its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Path("/bin/true").read_bytes())
    path.chmod(0o755)
    return path


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nsight Compute's layout: an nsys that is no script, whose importer lies in a folder where it does not look."""
    from squall.actors.nsys import tools as nsys_tools

    host = tmp_path / "opt/nvidia/nsight-compute/2025.3.1/host"
    binary(host / "target-linux-x64/nsys")
    (host / "target-linux-x64/libToolsInjection64.so").write_text("library")
    program(host / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter", "2025.3.1")
    monkeypatch.setattr(nsys_tools, "_version_of", lambda path: (2025, 3, 1) if path.exists() else None)
    return host


def test_a_missing_importer_gets_a_layout_in_the_cache_in_which_nsys_finds_it(
    split: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    found = find_nsys(tmp_path / "cache", root=tmp_path)
    assert found is not None
    assert found.is_repaired
    assert found.problems == ()
    assert found.nsys.is_relative_to(tmp_path / "cache")
    assert found.nsys.resolve() == found.nsys  # a copy: nsys goes by its real path
    target = found.nsys.parent
    assert (target.parent / "host-linux-x64/QdstrmImporter").samefile(
        split / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter"
    )
    assert (target / "libToolsInjection64.so").read_text() == "library"
    assert [
        path for path in sorted(tmp_path.rglob("*")) if not path.is_relative_to(tmp_path / "cache")
    ] == before


def test_a_layout_is_made_once(split: Path, tmp_path: Path) -> None:
    del split
    first = find_nsys(tmp_path / "cache", root=tmp_path)
    assert first is not None
    made = first.nsys.stat().st_mtime_ns, first.nsys.stat().st_ino
    second = find_nsys(tmp_path / "cache", root=tmp_path)
    assert second is not None
    assert (second.nsys.stat().st_mtime_ns, second.nsys.stat().st_ino) == made
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_without_a_cache_that_can_be_written_the_importer_is_called_and_the_cost_is_told(
    split: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    found = find_nsys(tmp_path / "cache", root=tmp_path)
    assert found is not None
    assert not found.is_repaired
    assert found.nsys == split / "target-linux-x64/nsys"
    assert found.importer is not None
    assert [problem.is_fatal for problem in found.problems] == [False]
    assert [problem.what for problem in found.problems] == [
        "nsys 2025.3.1 does not find its importer: every stop takes seconds longer"
    ]


def test_an_nsys_without_any_importer_says_so(split: Path, tmp_path: Path) -> None:
    (split / "linux-desktop-glibc_2_11_3-x64/QdstrmImporter").unlink()
    found = find_nsys(tmp_path / "cache", root=tmp_path)
    assert found is not None
    assert found.importer is None
    assert [problem.is_fatal for problem in found.problems] == [True]
    assert "has no QdstrmImporter" in found.problems[0].what
    assert not (tmp_path / "cache").exists()


def test_a_library_that_the_importer_lacks_is_named_with_its_package(
    split: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del split
    ldd = program(tmp_path / "tools/ldd", "0")
    ldd.write_text(
        "#!/bin/sh\nprintf '\\tlibdw.so.1 => not found\\n\\tlibc.so.6 => /lib/libc.so.6 (0x7)\\n'\n"
    )
    monkeypatch.setenv("PATH", f"{ldd.parent}:{os.environ['PATH']}")
    found = find_nsys(tmp_path / "cache", root=tmp_path)
    assert found is not None
    assert found.importer is not None
    (problem,) = found.problems
    assert problem.what == "QdstrmImporter of nsys lacks libdw.so.1"
    assert "libdw1" in problem.mend
