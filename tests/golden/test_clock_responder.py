"""The clock responder and the watch that probes it, over real sockets on loopback."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from squall.actors.clock import utc_minus_monotonic_ns
from squall.actors.sampling.clock_responder import MESSAGE_BYTES, ClockResponder, probe_message, read_answer
from squall.analysis.storage.schema import arrow_schema
from squall.cluster.driver.clocksync import ClockWatch
from squall.scenarios.errors import ClusterError
from tests.fakes import DriftingClock

pytestmark = pytest.mark.serial  # a clock is judged to microseconds
S = 1_000_000_000
HOST = "127.0.0.1"
CLOCK = DriftingClock(offset_ns=-7 * S, drift_ppb=50_000, from_ns=time.monotonic_ns())


@pytest.fixture
def responder() -> Iterator[ClockResponder]:
    responder = ClockResponder(CLOCK, HOST)
    yield responder
    responder.close()


def ask(address: tuple[str, int], message: bytes, kind: int) -> bytes:
    """What comes back within 0.2 s; nothing for silence or a closed connection."""
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(0.2)
        sock.connect(address)
        sock.send(message)
        try:
            return sock.recv(4_096)
        except (TimeoutError, ConnectionError):
            return b""


KINDS = pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["udp", "tcp"])


@KINDS
def test_an_answer_holds_two_readings_of_the_clock_between_send_and_receipt(
    responder: ClockResponder, kind: int
) -> None:
    before = CLOCK.monotonic_ns()
    answer = ask(responder.address, probe_message(responder.token, 77), kind)
    after = CLOCK.monotonic_ns()
    found = read_answer(answer)
    assert found is not None
    number, got_ns, answered_ns = found
    assert number == 77
    assert before <= got_ns <= answered_ns <= after
    assert len(answer) == MESSAGE_BYTES
    assert responder.token not in answer


@KINDS
def test_what_is_no_probe_with_the_token_gets_no_answer(responder: ClockResponder, kind: int) -> None:
    good = probe_message(responder.token, 1)
    for message in (probe_message(secrets.token_bytes(16), 1), b"x" + good[1:], good[:-1], good + b"x"):
        if kind == socket.SOCK_STREAM and len(message) != MESSAGE_BYTES:
            continue  # a stream has no messages: what is short waits for the rest
        assert ask(responder.address, message, kind) == b""
    assert read_answer(ask(responder.address, good, kind)) is not None


def test_a_stream_takes_probes_cut_anywhere_and_ends_at_the_first_wrong_one(
    responder: ClockResponder,
) -> None:
    with socket.create_connection(responder.address, timeout=2) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(1, MESSAGE_BYTES):
            message = probe_message(responder.token, number)
            stream.send(message[:number])
            stream.send(message[number:])
            answer = b""
            while len(answer) < MESSAGE_BYTES:
                answer += stream.recv(MESSAGE_BYTES - len(answer))
            assert read_answer(answer) is not None
        stream.send(probe_message(bytes(16), 1))
        assert stream.recv(1) == b""


def test_streams_that_say_nothing_give_way_to_one_that_knows_the_token_which_stays(
    responder: ClockResponder,
) -> None:
    with contextlib.ExitStack() as stack:
        prober = stack.enter_context(socket.create_connection(responder.address, 5))
        for number in range(3):
            prober.sendall(probe_message(responder.token, number))
            assert read_answer(prober.recv(4_096)) is not None
            for _ in range(100):
                stack.enter_context(socket.create_connection(responder.address, 5))


def test_a_closed_responder_frees_its_port_and_may_be_closed_again() -> None:
    first = ClockResponder(CLOCK, HOST)
    first.close()
    first.close()
    again = ClockResponder(CLOCK, HOST, first.address[1])
    assert again.address == first.address
    with pytest.raises(OSError, match="in use"):
        ClockResponder(CLOCK, HOST, again.address[1])
    again.close()


def held(watch: ClockWatch, label: str, anchor_ns: int, clock: DriftingClock = CLOCK) -> float:
    """Median error bound, after the truth was found inside the bound at instants all over the probed span."""
    track = watch.tracks()[label]
    assert track.probed_ns is not None
    base = np.linspace(time.monotonic_ns() - 5 * S, time.monotonic_ns() + 5 * S, 1_001).astype(np.int64)
    node = np.array([clock.reading(int(t)) for t in base], np.int64)
    assert (np.abs(track.convert(node) - (base + anchor_ns)) <= track.error_at(node)).all()
    inside = (node >= track.probed_ns[0]) & (node <= track.probed_ns[1])
    return float(np.median(track.error_at(node[inside])))


def test_a_watch_knows_clocks_within_their_bound_and_its_own_exactly(
    responder: ClockResponder, capsys: pytest.CaptureFixture[str]
) -> None:
    anchor_ns = utc_minus_monotonic_ns()
    watch = ClockWatch(anchor_ns)
    watch.add_own("node-0")
    watch.add("node-1", responder.address, responder.token)
    watch.settle()
    watch.start()
    for _ in range(2):
        time.sleep(0.2)
        watch.burst()
    watch.stop()
    own = watch.tracks()["node-0"]
    assert (own.target_ns(5), own.largest_error_ns) == (5 + anchor_ns, 0)
    bound_ns = held(watch, "node-1", anchor_ns)
    n_probes, cpu_ns = watch.cost()
    with capsys.disabled():
        print(
            f"\nloopback, one process: bound {bound_ns / 1e3:.0f} us, {cpu_ns / n_probes / 1e3:.0f} us CPU a probe"
        )
    assert watch.losses() == []
    (table,) = watch.probes("r")
    assert len(table) == n_probes > 60
    assert table.schema == arrow_schema("clock_probes")
    rows = table.to_pylist()
    assert {(row["run"], row["phase"], row["node"]) for row in rows} == {("r", "", "node-1")}
    for row in rows:
        assert row["sent_ns"] - anchor_ns <= row["received_ns"] - anchor_ns
        assert row["sent_ns"] <= anchor_ns + time.monotonic_ns()
        assert row["node_received_ns"] <= row["node_sent_ns"]


def test_where_udp_is_dropped_the_watch_goes_on_over_tcp(
    responder: ClockResponder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squall.cluster.driver.clocksync._PATIENCE", (("udp", 0.2), ("tcp", 4.0)))
    # a UDP socket of the test that never answers stands on the same port of another address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf, socket.socket() as forwarder:
        deaf.bind(("127.0.0.2", 0))
        forwarder.bind(deaf.getsockname())
        forwarder.listen()
        relay = carry_stream(forwarder, responder.address)
        anchor_ns = utc_minus_monotonic_ns()
        watch = ClockWatch(anchor_ns)
        watch.add("node-1", deaf.getsockname(), responder.token)
        watch.settle()
        watch.stop()
        relay.join()
    assert held(watch, "node-1", anchor_ns) < S


def carry_stream(listener: socket.socket, to: tuple[str, int]) -> threading.Thread:
    """A thread that carries the first connection to `to` and back until either side ends."""

    def carry() -> None:
        near, _ = listener.accept()
        with near, socket.create_connection(to) as far:
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                for sock in select.select([near, far], [], [])[0]:
                    data = sock.recv(4_096)
                    if not data:
                        return
                    (far if sock is near else near).sendall(data)

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    return thread


def test_a_node_that_never_answers_is_named_with_what_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.cluster.driver.clocksync._PATIENCE", (("udp", 0.2), ("tcp", 0.2)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind((HOST, 0))
        port = deaf.getsockname()[1]
        watch = ClockWatch(0)
        watch.add("node-3", (HOST, port), bytes(16))
        with pytest.raises(ClusterError, match=f"from node-3 at {HOST} port {port}: let UDP or TCP pass"):
            watch.settle()
        with pytest.raises(ClusterError, match=r"clock of node-3: .* probe it once"):
            watch.tracks()
        watch.stop()


def test_a_node_without_an_address_is_refused() -> None:
    watch = ClockWatch(0)
    with pytest.raises(ClusterError, match="clock of node-1: no address for no host"):
        watch.add("node-1", ("no host", 1), bytes(16))
    watch.stop()


def test_a_node_that_stops_answering_is_told_with_the_time_and_keeps_its_track(
    responder: ClockResponder,
) -> None:
    other = ClockResponder(CLOCK, HOST)
    anchor_ns = utc_minus_monotonic_ns()
    watch = ClockWatch(anchor_ns)
    for label, one in (("node-1", responder), ("node-2", other)):
        watch.add(label, one.address, one.token)
    watch.settle()
    watch.start()
    other.close()
    deadline = time.monotonic() + 60
    while not watch.losses() and time.monotonic() < deadline:
        time.sleep(0.05)
    watch.stop()
    (loss,) = watch.losses()
    assert loss.startswith("clock of node-2: no answer since ")
    held(watch, "node-1", anchor_ns)
    held(watch, "node-2", anchor_ns)
    tracks, now = watch.tracks(), CLOCK.monotonic_ns()
    errors = {label: int(track.error_at(np.array([now]))[0]) for label, track in tracks.items()}
    assert errors["node-2"] > errors["node-1"]


def test_a_stepping_clock_is_told() -> None:
    class Stepping:
        offset_ns = 0

        def monotonic_ns(self) -> int:
            return time.monotonic_ns() + self.offset_ns

    clock = Stepping()
    responder = ClockResponder(clock, HOST)
    watch = ClockWatch(0)
    watch.add("node-1", responder.address, responder.token)
    watch.settle()
    clock.offset_ns = 3 * S
    watch.burst()
    watch.stop()
    responder.close()
    (loss,) = watch.losses()
    assert loss.startswith("clock of node-1: it stepped or slewed between ")
    assert watch.tracks()["node-1"].largest_error_ns >= 1.5 * S


def test_the_responder_runs_alone_until_its_stdin_ends() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "squall.actors.sampling.clock_responder", HOST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    host, port, token = process.stdout.readline().split()
    assert read_answer(ask((host, int(port)), probe_message(bytes.fromhex(token), 5), socket.SOCK_DGRAM))
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()
