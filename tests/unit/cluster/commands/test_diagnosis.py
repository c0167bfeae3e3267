"""What `squall doctor` makes of the nodes' findings, and how it is shown."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

import squall.cluster.commands.diagnosis
from squall.actors.doctor.checkup import Answer, Finding
from squall.actors.process.own_source import source_digest
from squall.cluster.commands.diagnosis import (
    clock_finding,
    compare_versions,
    diagnose,
    examine,
    render,
    summarise,
    worst,
)
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.checkup import (
    OPTIONAL,
    REQUIRED,
    NodeCheckup,
    ray_authentication,
    torch,
    triton,
)
from squall.cluster.node.triton_home import TritonHome
from squall.cluster.placement import Node
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import ClusterError, LostActor, TargetError
from squall.scenarios.records import RayPriority
from tests.checkup_hosts import FakeProbes

OK = Finding("cores", "ok", "8 logical CPUs")
LIMITED = Finding("nsys", "limited", "there is none: runs are not profiled", "apt-get install nsight-systems")
MISSING = Finding("disk", "missing", "the temporary folder takes no file", "TMPDIR=FOLDER with room")
RAY = Finding("Ray niceness", "ok", "0")
VERSIONS: dict[str, str | None] = {
    "python": "3.11.7", "source": "abc", **dict.fromkeys((*REQUIRED, *OPTIONAL), "1.0"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "can_run"),
    [
        ({"node-0": [OK]}, True),
        ({"node-0": [OK, LIMITED]}, True),
        ({"node-0": [OK], "node-1": [LIMITED, MISSING]}, False),
        ({}, False),
        ({"node-0": []}, False),
    ],
)
def test_a_run_can_be_made_where_nothing_is_missing_on_any_node(
    nodes: dict[str, list[Finding]], can_run: bool
) -> None:
    assert summarise(nodes, VERSIONS)["can_run"] is can_run


def test_the_result_has_every_finding_by_node() -> None:
    result = summarise({"node-0": [OK, LIMITED]}, VERSIONS)
    assert result["driver"] == VERSIONS
    assert result["nodes"]["node-0"]["status"] == "limited" == worst([OK, LIMITED, OK])
    assert result["nodes"]["node-0"]["findings"][1] == {
        "topic": "nsys", "status": "limited", "what": LIMITED.what, "mend": LIMITED.mend,
    }  # fmt: skip


def test_the_screen_has_every_finding_with_its_mend_in_80_columns() -> None:
    long = Finding("Triton", "missing", "word " * 40, "do " * 40)
    result = summarise({"node-0": [OK, LIMITED], "node-1": [MISSING, long]}, VERSIONS)
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(render(result))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for word in (
        "node-0",
        "node-1",
        "mend: apt-get install nsight-systems",
        "CANNOT RUN",
        "1 ok, 1 limited, 2 missing",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [("ok", "the same packages as the driver")]),
        ({"python": "3.11.9"}, [("ok", "Python 3.11.9")]),
        ({"python": "3.12.1"}, [("missing", "Python 3.12.1, the driver has 3.11.7")]),
        ({"squall": "0.9"}, [("missing", "squall 0.9, the driver has 1.0")]),
        ({"numpy": "0.9"}, [("limited", "numpy 0.9, the driver has 1.0")]),
        ({"numpy": None}, [("missing", "numpy is not installed")]),
        ({"nvidia-nvtx": None}, [("limited", "nvidia-nvtx is not installed")]),
        ({"source": "xyz"}, [("limited", "of other source than the driver's (xyz, abc)")]),
    ],
)
def test_versions_are_held_to_the_drivers(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = compare_versions({**VERSIONS, **changes}, VERSIONS)
    assert [one.status for one in found] == [status for status, _ in expected]
    assert all(what in one.what for one, (_, what) in zip(found, expected, strict=True))


def test_a_package_that_only_the_node_has_is_mended_on_the_driver() -> None:
    (found,) = compare_versions(VERSIONS, {**VERSIONS, "torch": None})
    assert (found.status, found.mend) == ("limited", "pip install torch==1.0, on the driver")


class Scripted:
    """A handle whose calls give scripted answers; an exception is raised by `wait`."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "versions": VERSIONS,
            "findings": [OK],
            "ray_findings": [RAY],
            "clock_domain": "same",
            "close": None,
            **answers,
        }

    def begin(self, method: Callable[..., Any], *_: Any) -> str:
        return method.__name__

    def wait(self, method: str, timeout_s: float = 0.0) -> Any:
        del timeout_s
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, method: Callable[..., Any], *_: Any) -> Any:
        return self.wait(self.begin(method))

    def settled(self) -> RayPriority:
        return RayPriority(niceness_given=15, niceness=0, oom_score_adj_given=1000, oom_score_adj=0)


NODES = [Node("node-0", "a", "10.0.0.1", 0, True), Node("node-1", "b", "10.0.0.2", 1, False)]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def script(*handles: Scripted) -> None:
        left = list(handles)
        monkeypatch.setattr(squall.cluster.commands.diagnosis, "spawn", lambda *_, **__: left.pop(0))
        monkeypatch.setattr(squall.cluster.commands.diagnosis, "clock_domain", lambda: "same")
        monkeypatch.setattr(squall.cluster.commands.diagnosis, "same_code", lambda _: {"node-1": "no squall"})

    return script


@pytest.mark.parametrize("method", ["versions", "findings"])
def test_a_node_that_does_not_answer_is_a_finding(scripted: Callable[..., None], method: str) -> None:
    scripted(Scripted(), Scripted(**{method: LostActor("checkup on node-1 is lost:\nits node died")}))
    found = examine(NODES, VERSIONS)
    assert [one.topic for one in found["node-0"]] == ["packages", "Ray niceness", "cores", "clock"]
    lost = next(one for one in found["node-1"] if one.topic == "node")
    assert (lost.status, lost.what) == ("missing", "checkup on node-1 is lost: its node died")
    assert not summarise(found, VERSIONS)["can_run"]


@pytest.mark.parametrize(
    ("address", "label", "what"),
    [
        ("10.0.0.2", "node-1", "the batch library is in it"),
        ("127.0.0.1", "node-0", "the batch library is in it"),
        ("10.9.9.9", "node-0", "is on no node of the Ray cluster: its batches and kernels cannot be read"),
    ],
)
def test_a_server_that_runs_is_a_finding_of_its_node(
    scripted: Callable[..., None], address: str, label: str, what: str
) -> None:
    found_there = Finding("server", "ok", "the batch library is in it")
    scripted(*(Scripted(server_findings=[found_there]) for _ in NODES))
    found = examine(NODES, VERSIONS, (address, 8000))
    brought = {
        at: [one.status for one in findings if one.topic == "squall"] for at, findings in found.items()
    }
    assert brought == {"node-0": [], "node-1": ["limited"]}
    told = {at: one.what for at, findings in found.items() for one in findings if one.topic == "server"}
    assert told == {label: what}


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "http://127.0.0.1", "ftp://127.0.0.1:21", "http://no.such.host.:1"]
)
def test_a_server_without_an_address_is_refused(url: str) -> None:
    with pytest.raises(TargetError, match=re.escape(f"--server {url}: ")):
        diagnose(None, Interrupts(), url)


def test_a_node_whose_clock_cannot_be_probed_says_what_to_open() -> None:
    handle = Scripted(clock_domain="another", open_clock=ClusterError("cannot listen at 10.0.0.2"))
    found = clock_finding(NODES[1], cast(Handle[NodeCheckup], handle))
    assert (found.status, found.what) == ("missing", "cannot listen at 10.0.0.2")
    assert "let UDP or TCP pass" in found.mend


HOME = TritonHome(Path("/opt/bin/tritonserver"), Path("/opt/backends"), (), "wheel", "2.51.0")
USAGE = Answer(1, "Usage: tritonserver [options]")
OWN = f"libpython3.{__import__('sys').version_info.minor}.so.1.0"


def triton_of(tmp_path: Path, answer: Answer | None, linked: str, has_stub: bool = True) -> Finding:
    home = TritonHome(tmp_path / "bin" / "tritonserver", tmp_path, (), "wheel", "2.51.0")
    (tmp_path / "python").mkdir()
    if has_stub:
        (tmp_path / "python" / "triton_python_backend_stub").touch()

    class Told(FakeProbes):
        def ask(self, *command: str) -> Answer | None:
            return Answer(0, linked) if "ldd" in command else answer

    return triton(Told(), lambda: home, lambda: True)


@pytest.mark.parametrize(
    ("answer", "linked", "status", "what"),
    [
        (USAGE, f"\t{OWN} => /usr/lib/{OWN} (0x1)", "ok", "2.51.0, of the wheel, with a Python backend"),
        (USAGE, f"\t{OWN} => not found", "missing", f"lacks {OWN}"),
        (USAGE, "\tlibpython3.6.so.1.0 => /usr/lib/x (0x1)", "limited", "Python backend is of 3.6"),
        (USAGE, "\tlibc.so.6 => /lib/libc.so.6 (0x1)", "ok", ""),
        (Answer(127, "error while loading shared libraries: libdcgm"), "", "missing", "does not start: error while"),
        (Answer(None, ""), "", "missing", "gives no answer"),
        (None, "", "missing", "gives no answer"),
    ],
)  # fmt: skip
def test_triton_is_started_and_its_python_backend_linked(
    tmp_path: Path, answer: Answer | None, linked: str, status: str, what: str
) -> None:
    found = triton_of(tmp_path, answer, linked)
    assert (found.status, what in found.what) == (status, True), found


def test_a_triton_without_python_backend_serves_no_head(tmp_path: Path) -> None:
    assert triton_of(tmp_path, USAGE, "", has_stub=False).status == "limited"


def test_a_triton_that_is_not_here_is_not_fetched_by_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    def never() -> TritonHome:
        raise AssertionError("this fetches")

    found = triton(FakeProbes(), never, lambda: False)
    assert (found.status, "the first run fetches" in found.what) == ("limited", True)


def test_a_triton_that_cannot_be_used_says_why_and_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    def broken() -> TritonHome:
        raise TargetError("the cached Triton server is damaged: remove it, and it is fetched again")

    found = triton(FakeProbes(), broken, lambda: True)
    assert (found.status, found.what) == ("missing", "the cached Triton server is damaged")
    assert found.mend == "remove it, and it is fetched again"


@pytest.mark.parametrize(
    ("variables", "files", "status"),
    [
        ({"RAY_AUTH_MODE": "token"}, {}, "ok"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, {}, "limited"),
        ({"RAY_AUTH_TOKEN": "x"}, {}, "ok"),
        ({"HOME": "/home/one"}, {"/home/one/.ray/auth_token": "x"}, "ok"),
        ({"HOME": "/home/one"}, {}, "limited"),
    ],
)
def test_a_ray_without_token_is_said(variables: dict[str, str], files: dict[str, str], status: str) -> None:
    found = ray_authentication(FakeProbes(variables=variables, files=files, packages={"ray": "2.60.0"}))
    assert found.status == status


def test_torch_is_looked_for_and_not_imported() -> None:
    assert torch(FakeProbes()).status == "limited"
    assert torch(FakeProbes(packages={"torch": "2.11"})) == Finding("PyTorch", "ok", "2.11")


def test_the_versions_of_this_node_are_all_there() -> None:
    found = NodeCheckup().versions()
    assert set(found) == {"python", "source", *REQUIRED, *OPTIONAL}
    assert all(found[name] for name in REQUIRED)
    assert found["source"] == source_digest()
