from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squall.actors.sampling.cgroups import Quota, tightest_quota
from squall.actors.sampling.cpu_groups import Roots, grouped
from squall.actors.sampling.cpu_source import CpuSource
from squall.actors.sampling.source import Pids

S = 1_000_000_000
SERVER, STUB, CLIENT, AGENT, OBSERVER, RAYLET, DRIVER, FOREIGN, STRANGER = 10, 11, 20, 30, 31, 40, 50, 60, 70
PARENTS = {
    DRIVER: 1, RAYLET: DRIVER, AGENT: 1, OBSERVER: AGENT, SERVER: AGENT, STUB: SERVER, CLIENT: 1, FOREIGN: RAYLET,
    STRANGER: 1,
}  # fmt: skip


class Node:
    """A folder in the place of /proc, and the CPU clocks of its processes, both set between samples."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.groups = root / "groups"
        self.clocks = dict.fromkeys(PARENTS, 0)
        self.write("stat", "cpu 0 0 0 0 0 0 0 0 0 0\n")
        self.mount("cgroup2 cgroup2 rw")
        for pid, parent in PARENTS.items():
            self.write(f"{pid}/stat", f"{pid} (a) (name) S {parent} 0 0\n")
            self.write(f"{pid}/cgroup", "0::/\n")
            self.waited(pid, 0)

    def write(self, name: str, text: str) -> None:
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def mount(self, what: str, root: str = "/") -> None:
        self.write("self/mountinfo", f"30 20 0:26 {root} {self.groups} rw - {what}\n")

    def waited(self, pid: int, ns: int, thread: int | None = None, runs: int = 7) -> None:
        self.write(f"{pid}/task/{thread or pid}/schedstat", f"5 {ns} {runs}\n")

    def busy(self, user: int, idle: int, steal: int = 0, of_cores: tuple[tuple[int, int], ...] = ()) -> None:
        """Ticks of 10 ms so far; `of_cores`: those of each core, user and idle."""
        lines = [f"cpu {user} 0 0 {idle} 0 0 0 {steal} 0 0"]
        lines += [
            f"cpu{core} {busy} 0 0 {free} 0 0 0 {steal} 0 0" for core, (busy, free) in enumerate(of_cores)
        ]
        self.write("stat", "\n".join([*lines, "intr 5 5", ""]))

    def group(self, name: str, **files: str) -> None:
        folder = self.groups / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file.replace("__", ".")).write_text(text)

    def source(self, server: tuple[int, ...] = (SERVER, STUB)) -> CpuSource:
        return CpuSource(
            lambda: server, Pids((CLIENT,)), Pids((AGENT, DRIVER)), str(self.proc), self.clocks.get, lambda _: {0, 1}
        )  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def one_second(source: CpuSource, change: Callable[[], Any]) -> dict[str, Any]:
    assert source.sample(0) == []
    change()
    (row,) = source.sample(S)
    return row


def test_every_process_is_counted_to_whom_it_belongs_and_the_rest_is_the_others(node: Node) -> None:
    def run() -> None:
        node.busy(user=150, idle=50)
        ms = {
            SERVER: 300,
            STUB: 100,
            CLIENT: 50,
            AGENT: 10,
            OBSERVER: 20,
            RAYLET: 5,
            DRIVER: 15,
            STRANGER: 900,
        }
        node.clocks.update({pid: n * S // 1000 for pid, n in ms.items()})
        node.waited(SERVER, 40, runs=10)
        node.waited(STUB, 700, thread=12)
        node.waited(STUB, 2)
        node.waited(CLIENT, 9)

    node.waited(STUB, 600, thread=12)
    row = one_second(node.source(), run)
    assert (row["server_ns"], row["clients_ns"], row["squall_ns"]) == (S * 4 // 10, S // 20, S // 20)
    assert (row["others_ns"], row["idle_ns"], row["steal_ns"]) == (S, S // 2, 0)
    assert (row["server_wait_ns"], row["clients_wait_ns"], row["server_cores"]) == (40 + 100 + 2, 9, 2)
    assert (row["server_runs"], row["clients_runs"]) == (3, 0)


def test_an_agent_in_the_place_of_a_dead_one_counts_as_the_runs_own_at_once(node: Node) -> None:
    source = node.source()
    one_second(source, lambda: node.busy(user=100, idle=100))
    source.own.pids = (*source.own.pids, STRANGER)
    node.busy(user=150, idle=150)
    source.sample(S + S // 2)
    node.clocks[STRANGER] += S // 10
    node.busy(user=200, idle=200)
    (row,) = source.sample(2 * S)
    assert (row["squall_ns"], row["others_ns"]) == (S // 10, S // 2 - S // 10)


@pytest.mark.parametrize(
    ("cores", "busy_ns", "free_ns"),
    [
        ({1}, S * 3 // 10, S * 7 // 10),
        ({0, 1}, S * 6 // 5, S * 7 // 10),
        ({0, 7}, None, None),
        ({0, 1, 2}, S * 6 // 5, S),
    ],
)
def test_who_had_the_cores_of_the_server_is_counted_on_them_alone(
    node: Node, cores: set[int], busy_ns: int | None, free_ns: int | None
) -> None:
    source = node.source()
    source.affinity = lambda _: cores
    node.busy(10, 0, of_cores=((5, 0), (5, 0), (0, 0)))
    row = one_second(source, lambda: node.busy(130, 180, of_cores=((95, 10), (35, 70), (0, 100))))
    assert (row["server_cores"], row["server_cores_busy_ns"]) == (len(cores), busy_ns)
    assert row["server_cores_free_ns"] == free_ns


def test_the_programs_of_others_that_had_most_cpu_are_named(node: Node) -> None:
    others = {STRANGER: ("burner", 0.9), 7001: ("burner", 0.5), 7002: ("idler", 0.01)}
    for pid, (name, _) in others.items():
        node.write(f"{pid}/stat", f"{pid} (a) S 1 0 0\n")
        node.write(f"{pid}/comm", f"{name}\n")
        node.clocks[pid] = 5 * S  # before it was seen
    node.write(f"{SERVER}/comm", "tritonserver\n")
    source = node.source()

    def run() -> None:
        node.busy(150, 50)
        node.clocks.update({pid: round((5 + cores) * S) for pid, (_, cores) in others.items()})
        node.clocks[SERVER] = 30 * S

    one_second(source, run)
    (name,) = told = source.facts()["others"]
    assert (name, told[name]["n"]) == ("burner", 2)
    assert told[name]["ratio"] == pytest.approx(1.4 / 1.41)


def test_a_server_that_is_not_here_has_no_cpu_and_no_waiting(node: Node) -> None:
    row = one_second(node.source(server=()), lambda: node.busy(10, 10))
    assert (row["server_ns"], row["server_wait_ns"], row["server_cores"]) == (None, None, None)


def test_a_kernel_that_does_not_tell_of_waiting_leaves_it_null(node: Node) -> None:
    for pid in PARENTS:
        (node.proc / f"{pid}/task/{pid}/schedstat").unlink()
    source = node.source()
    row = one_second(source, lambda: node.busy(10, 10))
    assert (row["server_wait_ns"], row["clients_wait_ns"]) == (None, None)
    assert not source.facts()["has_schedstat"]


def test_a_ray_that_was_joined_is_others_and_one_that_the_driver_started_is_the_runs() -> None:
    server, clients = frozenset({SERVER}), frozenset({CLIENT})
    own = [AGENT, OBSERVER]
    groups = grouped(PARENTS, Roots(server, clients, frozenset({AGENT})))
    assert groups == {"server": [SERVER, STUB], "clients": [CLIENT], "squall": own}
    joined = {**PARENTS, RAYLET: 1}  # another node's driver, or this node's that joined
    for tree, beside in ((joined, []), (PARENTS, [RAYLET])):
        groups = grouped(tree, Roots(server, clients, frozenset({AGENT, DRIVER})))
        assert groups["squall"] == [*own, *beside, DRIVER, *([FOREIGN] if beside else [])]


@pytest.mark.parametrize(
    ("mount", "line", "files", "held"),
    [
        (
            "cgroup2 cgroup2 rw", "0::/pod/triton\n",
            ({"cpu__max": "50000 100000\n", "cpu__stat": "nr_periods 5\nnr_throttled 2\nthrottled_usec 3000\n"},
             {"cpu__max": "50000 100000\n", "cpu__stat": "nr_periods 15\nnr_throttled 9\nthrottled_usec 9000\n"}),
            6_000_000,
        ),
        (
            "cgroup cgroup rw,cpu,cpuacct", "3:memory:/x\n2:cpu,cpuacct:/pod/triton\n0::/\n",
            ({"cpu__cfs_quota_us": "50000\n", "cpu__cfs_period_us": "100000\n",
              "cpu__stat": "nr_periods 5\nnr_throttled 2\nthrottled_time 3000\n"},
             {"cpu__stat": "nr_periods 15\nnr_throttled 9\nthrottled_time 9000\n"}),
            6_000,
        ),
    ],
    ids=["v2", "v1"],
)  # fmt: skip
def test_a_quota_of_the_pod_above_the_servers_group_is_found_and_what_it_held_back(
    node: Node, mount: str, line: str, files: tuple[dict[str, str], dict[str, str]], held: int
) -> None:
    node.mount(mount)
    for pid in (SERVER, STUB):
        node.write(f"{pid}/cgroup", line)
    node.group("pod/triton", cpu__max="max 100000\n", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    node.group("pod", **files[0])

    def run() -> None:
        node.busy(100, 100)
        node.group("pod", **files[1])

    row = one_second(node.source(), run)
    assert (row["server_quota_cores"], row["is_quota_shared"]) == (0.5, False)
    assert (row["server_periods"], row["server_throttled_periods"], row["server_throttled_ns"]) == (
        10,
        7,
        held,
    )
    assert row["clients_quota_cores"] is None


def test_a_quota_of_the_whole_container_is_the_clients_too(node: Node) -> None:
    for pid in PARENTS:
        node.write(f"{pid}/cgroup", "0::/box\n")
    node.group(
        "box", cpu__max="150000 100000\n", cpu__stat="nr_periods 1\nnr_throttled 0\nthrottled_usec 0\n"
    )
    row = one_second(node.source(), lambda: node.busy(1, 1))
    assert (row["server_quota_cores"], row["clients_quota_cores"], row["is_quota_shared"]) == (1.5, 1.5, True)


def test_the_path_of_a_group_is_relative_to_the_root_of_its_mount(node: Node) -> None:
    node.mount("cgroup2 cgroup2 rw", root="/docker/abc")
    node.write(f"{SERVER}/cgroup", "0::/docker/abc/triton\n")
    node.group("triton", cpu__max="20000 100000\n")
    assert tightest_quota(SERVER, str(node.proc)) == Quota(str(node.groups / "triton"), 0.2, True)
    node.write(f"{SERVER}/cgroup", "0::/../elsewhere\n")
    assert tightest_quota(SERVER, str(node.proc)) is None
