"""The null Triton as a process of its own, asked by Triton's own clients and by hand."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from hpack import Decoder, Encoder
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from squall.actors.net import http2
from squall.actors.null.queue import Service, service_times
from squall.models.made import make_inputs
from squall.models.payload import encode_body, encode_id
from squall.models.spec import head_spec

_TIMEOUT_S = 20.0
_SPEC = head_spec("linear_head", "1", {"width": 4, "classes": 2}, 32)
_INFER = "/v2/models/linear_head/infer"


@dataclass
class Null:
    """A running null server; `record` once it has ended."""

    process: subprocess.Popen[str]
    http_port: int
    grpc_port: int
    record_path: Path

    def end(self) -> dict[str, NDArray[np.int64]]:
        """Closes its stdin and reads its record."""
        assert self.process.stdin
        self.process.stdin.close()
        assert self.process.wait(_TIMEOUT_S) == 0
        with np.load(self.record_path) as record:
            return {name: record[name] for name in record.files}

    def http(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.http_port), _TIMEOUT_S)


Start = Callable[..., Null]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts null servers with these arguments, and ends them."""
    processes: list[subprocess.Popen[str]] = []

    def started(*arguments: str) -> Null:
        record = tmp_path / f"record-{len(processes)}.npz"
        process = subprocess.Popen(
            [sys.executable, "-m", "squall.actors.null.triton", "--width=4", f"--record={record}", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        processes.append(process)
        assert process.stdout
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        return Null(process, ready["http_port"], ready["grpc_port"], record)

    yield started
    for process in processes:
        assert process.stdin
        assert process.stdout
        if process.poll() is None:
            process.terminate()
        process.wait(_TIMEOUT_S)
        process.stdin.close()
        process.stdout.close()


def http_request(request_id: int, rows: int = 1) -> bytes:
    body = encode_body(_SPEC, make_inputs(_SPEC, rows, 0, 1))
    head = (
        f"POST {_INFER} HTTP/1.1\r\nHost: null\r\nContent-Length: {body.n_bytes}\r\n"
        f"Inference-Header-Content-Length: {body.n_json_bytes}\r\n\r\n"
    )
    return head.encode() + b'{"id":"' + encode_id(request_id) + body.suffix


def http_json(body: bytes) -> bytes:
    return f"POST {_INFER} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def read_reply(sock: socket.socket) -> tuple[int, http.client.HTTPMessage, bytes]:
    reply = http.client.HTTPResponse(sock)
    reply.begin()
    return reply.status, reply.headers, reply.read()


def ask(sock: socket.socket, request_id: int, rows: int = 1) -> int:
    sock.sendall(http_request(request_id, rows))
    return read_reply(sock)[0]


def http_input(rows: int) -> triton_http.InferInput:
    tensor = triton_http.InferInput("INPUT", [rows, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((rows, 4), np.float32))
    return tensor


def grpc_input(rows: int, width: int = 4) -> triton_grpc.InferInput:
    tensor = triton_grpc.InferInput("INPUT", [rows, width], "FP32")
    tensor.set_data_from_numpy(np.ones((rows, width), np.float32))
    return tensor


def assert_is_a_queue(record: dict[str, NDArray[np.int64]], service: str, seed: int, n_lanes: int) -> None:
    """The record is the FIFO queue of its arrivals and of the seed's services, computed anew and to the ns."""
    arrival, departure = record["arrival_ns"], record["departure_ns"]
    n = len(arrival)
    assert n > 0
    assert (np.diff(arrival) >= 0).all()
    services = list(islice(service_times(Service.parse(service), seed), n))
    free = [0] * n_lanes
    for row in range(n):
        lane = min(range(n_lanes), key=free.__getitem__)
        begun = max(int(arrival[row]), free[lane])
        free[lane] = begun + services[row]
        assert (record["start_ns"][row], departure[row]) == (begun, free[lane])
    replied = record["replied_ns"]
    assert (replied[replied >= 0] >= departure[replied >= 0]).all()


def test_tritons_http_client_gets_its_ids_and_shapes(start: Start) -> None:
    null = start("--max-batch-size=8")
    with triton_http.InferenceServerClient(f"127.0.0.1:{null.http_port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("linear_head")
        assert client.is_model_ready("linear_head", "1")
        assert not client.is_model_ready("other")
        assert client.get_server_metadata()["version"] == "2.51.0"
        assert client.get_model_metadata("linear_head")["inputs"][0]["shape"] == [-1, 4]
        assert client.get_model_config("linear_head")["max_batch_size"] == 8
        for rows, name in ((1, "a"), (3, 'quo"te'), (3, "000000000007"), (2, "")):
            reply = client.infer("linear_head", [http_input(rows)], request_id=name)
            assert reply.get_response().get("id", "") == name
            assert reply.as_numpy("OUTPUT").tolist() == [[0.0, 0.0]] * rows
        wanted = [triton_http.InferRequestedOutput(name) for name in ("A", "B")]
        reply = client.infer("linear_head", [http_input(2)], outputs=wanted)
        assert [reply.as_numpy(name).shape for name in ("A", "B")] == [(2, 2), (2, 2)]
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.infer("other", [http_input(1)])
        (stats,) = client.get_inference_statistics("linear_head")["model_stats"]
    assert stats["inference_stats"]["success"]["count"] == stats["execution_count"] == 5
    assert stats["inference_count"] == 1 + 3 + 3 + 2 + 2
    assert {item["batch_size"]: item["compute_infer"]["count"] for item in stats["batch_stats"]} == {
        1: 1, 2: 2, 3: 2,
    }  # fmt: skip
    assert null.end()["request_id"].tolist() == [-1, -1, 7, -1, -1]


def test_tritons_grpc_client_gets_its_ids_and_shapes(start: Start) -> None:
    null = start()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{null.grpc_port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("linear_head")
        assert not client.is_model_ready("other")
        assert list(client.get_model_metadata("linear_head").inputs[0].shape) == [-1, 4]
        assert client.get_model_config("linear_head").config.max_batch_size == 32
        for rows, name in ((1, "a"), (3, "b" * 200), (3, "000000000007"), (2, "")):
            reply = client.infer("linear_head", [grpc_input(rows)], request_id=name)
            assert reply.get_response().id == name
            assert reply.as_numpy("OUTPUT").tolist() == [[0.0, 0.0]] * rows
        with pytest.raises(InferenceServerException, match="unknown model: 'other'") as caught:
            client.infer("other", [grpc_input(1)])
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        with pytest.raises(InferenceServerException, match="batch-size must be <= 32") as caught:
            client.infer("linear_head", [grpc_input(33)])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException, match="unknown method") as caught:
            client.get_inference_statistics("linear_head")
        assert caught.value.status() == "StatusCode.UNIMPLEMENTED"
    assert null.end()["request_id"].tolist() == [-1, -1, 7, -1]


def test_large_messages_pass_both_ways(start: Start) -> None:
    """10 MiB in (more than the window of a stream) and 1 MiB out (more than the client's first window)."""
    null = start("--classes=131072")
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{null.grpc_port}") as client:
        for _ in range(3):
            reply = client.infer("linear_head", [grpc_input(2, 1_310_720)])
            assert reply.as_numpy("OUTPUT").shape == (2, 131_072)
    with triton_http.InferenceServerClient(f"127.0.0.1:{null.http_port}") as client:
        tensor = triton_http.InferInput("INPUT", [2, 1_310_720], "FP32")
        tensor.set_data_from_numpy(np.ones((2, 1_310_720), np.float32))
        assert client.infer("linear_head", [tensor]).as_numpy("OUTPUT").shape == (2, 131_072)


def test_a_request_in_pieces_of_one_byte_is_one_request(start: Start) -> None:
    null = start()
    with null.http() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for request_id in (1, 2):
            for byte in http_request(request_id, rows=2):
                sock.send(bytes([byte]))
            status, headers, body = read_reply(sock)
            n_json = int(headers["Inference-Header-Content-Length"])
            assert status == 200
            assert headers["Content-Type"] == "application/octet-stream"
            assert json.loads(body[:n_json]) == {
                "model_name": "linear_head",
                "model_version": "1",
                "id": f"{request_id:012d}",
                "outputs": [
                    {
                        "name": "OUTPUT",
                        "datatype": "FP32",
                        "shape": [2, 2],
                        "parameters": {"binary_data_size": 16},
                    }
                ],
            }
            assert body[n_json:] == bytes(16)
    assert null.end()["request_id"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /v3 HTTP/1.1\r\n\r\n", 404),
        (b"GET /v2/models/other/config HTTP/1.1\r\n\r\n", 404),
        (b"GET " + _INFER.encode() + b" HTTP/1.1\r\n\r\n", 405),
        (b"SMTP\r\n\r\n", 400),
        (http_json(b"{}"), 400),
        (b"POST " + _INFER.encode() + b" HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (http_request(1) + b"more", 400),
        (http_request(1).replace(b'"shape":[1,4]', b'"shape":[2,4]'), 400),
        (
            http_request(1).replace(b'"binary_data_size"', b'"other_parameter_"').replace(b"[1,4]", b"[9,4]"),
            400,
        ),
        (http_json(b'{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[33,4],"data":[]}]}'), 400),
    ],
)
def test_what_is_no_request_gets_an_error_object(start: Start, request_bytes: bytes, status: int) -> None:
    null = start()
    with null.http() as sock:
        sock.sendall(request_bytes)
        got, _, body = read_reply(sock)
    assert got == status
    assert list(json.loads(body)) == ["error"]
    with null.http() as sock:
        assert ask(sock, 5) == 200


@pytest.mark.parametrize(
    ("service", "n_lanes", "seed"),
    [("exponential:500us", 1, 7), ("exponential:1ms", 3, 0), ("constant:1ms", 1, 1), ("constant:0", 2, 1)],
)
def test_the_record_is_the_exact_queue_of_its_arrivals(
    start: Start, service: str, n_lanes: int, seed: int
) -> None:
    null = start(f"--service={service}", f"--servers={n_lanes}", f"--seed={seed}")

    def over_http(worker: int) -> None:
        with null.http() as sock:
            for n in range(25):
                assert ask(sock, worker * 100 + n) == 200

    def over_grpc(worker: int) -> None:
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{null.grpc_port}") as client:
            for n in range(25):
                client.infer("linear_head", [grpc_input(1)], request_id=f"{worker * 100 + n:012d}")

    with ThreadPoolExecutor(6) as pool:
        work = [pool.submit(over_http if worker < 4 else over_grpc, worker) for worker in range(6)]
        for job in work:
            job.result(_TIMEOUT_S)
    record = null.end()
    assert sorted(record["request_id"]) == sorted(w * 100 + n for w in range(6) for n in range(25))
    assert (record["replied_ns"] > 0).all()
    assert_is_a_queue(record, service, seed, n_lanes)


def test_one_lane_answers_in_the_order_of_arrival(start: Start) -> None:
    """Sixteen streams in one write: the answers come in the order of the streams."""
    null = start("--service=exponential:200us", "--servers=1")
    with GrpcByHand(null.grpc_port) as peer:
        peer.infer(range(16))
        assert [peer.answer() for _ in range(16)] == [(n, "0", "") for n in range(16)]
    record = null.end()
    assert record["request_id"].tolist() == list(range(16))
    assert len(set(record["arrival_ns"])) <= 16
    assert_is_a_queue(record, "exponential:200us", 0, 1)
    for before, after in pairwise(range(16)):
        assert record["start_ns"][after] >= record["departure_ns"][before]


def test_any_number_of_lanes_leaves_nobody_waiting(start: Start) -> None:
    null = start("--service=constant:50ms")
    with GrpcByHand(null.grpc_port) as peer:
        peer.infer(range(16))
        assert sorted(cast(int, peer.answer()[0]) for _ in range(16)) == list(range(16))
    record = null.end()
    assert (record["start_ns"] == record["arrival_ns"]).all()
    assert (record["departure_ns"] - record["start_ns"] == 50_000_000).all()


def test_a_full_queue_rejects_in_tritons_words(start: Start) -> None:
    """One is served and two wait for a minute: the fourth and later are refused at once, by both protocols."""
    null = start("--service=constant:60s", "--servers=1", "--max-queue=2")
    with GrpcByHand(null.grpc_port) as peer, null.http() as sock:
        peer.infer(range(5))
        for request_id in (3, 4):
            message = f"[request id: {request_id:012d}] Exceeds maximum queue size"
            assert peer.answer() == (None, "14", message)
        sock.sendall(http_request(9))
        status, _, body = read_reply(sock)
    assert status == 503
    assert json.loads(body) == {"error": "[request id: 000000000009] Exceeds maximum queue size"}
    record = null.end()
    assert record["request_id"].tolist() == [0, 1, 2]
    assert record["n_rejected"] == 3
    assert record["replied_ns"].tolist() == [-1, -1, -1]


def test_a_share_of_the_requests_fails_as_it_was_asked_to(start: Start) -> None:
    null = start("--fault=503:0.5")
    with null.http() as sock:
        assert [ask(sock, i) for i in range(10)] == [200, 503] * 5
    assert null.end()["n_rejected"] == 5
    null = start("--fault=501:1")
    with GrpcByHand(null.grpc_port) as peer:
        peer.infer(range(2))
        assert [peer.answer() for _ in range(2)] == [(None, "12", "this endpoint does not infer")] * 2
    null = start("--fault=close:1")
    with null.http() as sock:
        sock.sendall(http_request(1))
        assert sock.recv(1) == b""


def test_a_stream_that_the_client_resets_gets_no_answer(start: Start) -> None:
    null = start("--service=constant:20ms", "--servers=1")
    with GrpcByHand(null.grpc_port) as peer:
        peer.infer(range(3))
        peer.sock.sendall(http2.rst_stream(3, http2.CANCEL))
        assert [peer.answer()[0] for _ in range(2)] == [0, 2]
    record = null.end()
    assert record["request_id"].tolist() == [0, 1, 2]
    assert (record["replied_ns"] > 0).tolist() == [True, False, True]
    assert_is_a_queue(record, "constant:20ms", 0, 1)


def test_answers_wait_for_the_clients_windows(start: Start) -> None:
    """Windows of 30 bytes for a stream: 30 bytes come, and the rest when there is room."""
    null = start()
    with GrpcByHand(null.grpc_port, {http2.INITIAL_WINDOW_SIZE: 30}) as peer:
        peer.infer([8])
        assert peer.frame_of(http2.DATA).payload[:1] == b"\0"
        peer.sock.sendall(http2.frame(http2.PING, 0, 0, b"12345678"))
        frame = peer.frame()
        assert (frame.kind, frame.flags, frame.payload) == (http2.PING, http2.ACK, b"12345678")
        peer.sock.sendall(http2.window_update(1, 10))
        assert len(peer.frame().payload) == 10
        peer.sock.sendall(http2.settings({http2.INITIAL_WINDOW_SIZE: 1_000}))
        assert peer.frame_of(http2.SETTINGS).flags == http2.ACK
        assert peer.frame().kind == http2.DATA
        assert peer.frame().flags & http2.END_STREAM


@pytest.mark.parametrize(
    "breach",
    [
        http2.frame(http2.DATA, http2.END_STREAM, 9, b"x"),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 2, b"\x88"),
        http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff"),
        http2.frame(http2.HEADERS, 0, 1, b"\x88") + http2.frame(http2.PING, 0, 0, bytes(8)),
        http2.frame(http2.CONTINUATION, 0, 1, b""),
        http2.window_update(0, 0),
        http2.head_of(http2.DATA, 0, 1, 1 << 20),
    ],
)
def test_a_breach_of_http2_ends_the_connection_with_goaway(start: Start, breach: bytes) -> None:
    null = start()
    with GrpcByHand(null.grpc_port) as peer:
        peer.sock.sendall(breach)
        assert http2.read_u32(peer.frame_of(http2.GOAWAY).payload, 4) == 1
        assert peer.sock.recv(1) == b""


def test_nothing_is_answered_during_a_stall(start: Start) -> None:
    null = start("--stall=0ms:300ms", "--service=constant:1us")
    with null.http() as sock:
        for request_id in range(3):
            assert ask(sock, request_id) == 200
    record = null.end()
    first = int(record["arrival_ns"][0])
    assert (record["replied_ns"] >= first + 300_000_000).all()
    assert record["departure_ns"][0] == first + 1_000
    assert record["arrival_ns"][1] >= first + 300_000_000


def test_a_client_that_leaves_is_forgotten(start: Start) -> None:
    null = start("--service=constant:300ms")
    with null.http() as sock:
        sock.sendall(http_request(1))
        time.sleep(0.1)
    with null.http() as sock:
        assert ask(sock, 2) == 200
    record = null.end()
    assert (record["replied_ns"] > 0).tolist() == [False, True]


def test_it_says_goaway_and_ends_when_stdin_closes(start: Start) -> None:
    null = start()
    with GrpcByHand(null.grpc_port) as peer:
        peer.infer([1])
        assert peer.answer()[0] == 1
        null.end()
        goaway = peer.frame_of(http2.GOAWAY).payload
        assert (http2.read_u32(goaway), http2.read_u32(goaway, 4)) == (1, 0)
        assert peer.sock.recv(1) == b""


def test_it_ends_on_sigterm_and_at_the_end_of_its_life_with_its_record(start: Start) -> None:
    null = start()
    with null.http() as sock:
        assert ask(sock, 1) == 200
        null.process.send_signal(signal.SIGINT)  # of a Ctrl-C that is not for us
        assert ask(sock, 2) == 200
    null.process.send_signal(signal.SIGTERM)
    assert null.process.wait(_TIMEOUT_S) == 0
    assert null.end()["request_id"].tolist() == [1, 2]
    null = start("--lifetime=0.2")
    assert null.process.wait(_TIMEOUT_S) == 0
    assert null.end()["request_id"].tolist() == []


def test_a_stall_does_not_hold_up_the_end(start: Start) -> None:
    null = start("--stall=0ms:1h")
    with null.http() as sock:
        assert ask(sock, 1) == 200
        sock.sendall(http_request(2))
        assert null.end()["request_id"].tolist() == [1]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--service=constant:2", "has no unit"),
        ("--service=uniform:2ms", "no service"),
        ("--stall=2s", "no stall"),
        ("--servers=-1", "no whole number"),
    ],
)
def test_a_wrong_argument_is_a_usage_error(argument: str, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "squall.actors.null.triton", argument],
        capture_output=True, text=True, timeout=_TIMEOUT_S, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert text in done.stderr


def test_unix_sockets_serve_too_and_are_removed(start: Start, tmp_path: Path) -> None:
    prefix = os.path.relpath(tmp_path / "null", Path.cwd())
    null = start(f"--unix={tmp_path / 'null'}")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.connect(f"{prefix}-http")
        assert ask(sock, 3) == 200
    null.end()
    assert not list(tmp_path.glob("null-*"))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("the command `openssl` is missing")
    folder = tmp_path_factory.mktemp("tls")
    pem, key = folder / "certificate.pem", folder / "key.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
        f" -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {key} -out {pem}"
    )
    subprocess.run(command.split(), check=True, capture_output=True, timeout=_TIMEOUT_S)
    return pem, key


def test_both_protocols_over_tls(start: Start, certificate: tuple[Path, Path]) -> None:
    pem, key = certificate
    null = start(f"--tls-certificate={pem}", f"--tls-key={key}")
    context = ssl.create_default_context(cafile=pem)
    with context.wrap_socket(null.http(), server_hostname="127.0.0.1") as sock:
        for request_id in (1, 2):
            assert ask(sock, request_id, rows=32) == 200
    credentials = {"ssl": True, "root_certificates": str(pem)}
    with triton_grpc.InferenceServerClient(f"localhost:{null.grpc_port}", **credentials) as client:
        for request_id in (3, 4):
            reply = client.infer("linear_head", [grpc_input(2, 100_000)], request_id=f"{request_id:012d}")
            assert reply.as_numpy("OUTPUT").shape == (2, 2)
    with null.http() as sock, pytest.raises(ConnectionError):
        ask(sock, 9)  # in the clear
    assert null.end()["request_id"].tolist() == [1, 2, 3, 4]


def test_mutual_tls_takes_only_clients_of_its_authority(start: Start, certificate: tuple[Path, Path]) -> None:
    pem, key = certificate
    null = start(f"--tls-certificate={pem}", f"--tls-key={key}", f"--tls-client-ca={pem}")
    context = ssl.create_default_context(cafile=pem)

    def ask_over_tls(request_id: int) -> int:
        with context.wrap_socket(null.http(), server_hostname="127.0.0.1") as sock:
            return ask(sock, request_id)

    # TLS 1.3 tells the client when it reads
    with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|EOF"):
        ask_over_tls(1)
    context.load_cert_chain(pem, key)
    assert ask_over_tls(2) == 200
    assert null.end()["request_id"].tolist() == [2]


class GrpcByHand:
    """A client that says over HTTP/2 just what a test wants."""

    def __init__(self, port: int, settings: dict[int, int] | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self.sock.sendall(http2.PREFACE + http2.settings(settings or {}))
        self._encoder, self._decoder = Encoder(), Decoder()
        self._next_stream = 1
        self._bodies: dict[int, bytes] = {}
        self._headers: dict[int, dict[str, str]] = {}

    def __enter__(self) -> GrpcByHand:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def infer(self, request_ids: Any) -> None:
        """All requests in one write."""
        frames = b""
        for request_id in request_ids:
            message = service_pb2.ModelInferRequest(model_name="linear_head", id=f"{request_id:012d}")
            message.inputs.add(name="INPUT", datatype="FP32", shape=[1, 4])
            message.raw_input_contents.append(bytes(16))
            text = message.SerializeToString()
            path = "/inference.GRPCInferenceService/ModelInfer"
            block = self._encoder.encode(
                [(":method", "POST"), (":scheme", "http"), (":path", path), ("te", "trailers")]
            )
            frames += http2.frame(http2.HEADERS, http2.END_HEADERS, self._next_stream, block)
            frames += http2.frame(
                http2.DATA, http2.END_STREAM, self._next_stream, b"\0" + len(text).to_bytes(4, "big") + text
            )
            self._next_stream += 2
        self.sock.sendall(frames)

    def frame(self) -> http2.Frame:
        head = self._exactly(http2.HEAD_BYTES)
        payload = self._exactly(int.from_bytes(head[:3], "big"))
        (frame,) = http2.split_frames(head + payload, 1 << 24)
        return frame

    def frame_of(self, kind: int) -> http2.Frame:
        """The next of that kind, but for the first SETTINGS."""
        while True:
            frame = self.frame()
            if frame.kind == kind and (kind != http2.SETTINGS or frame.flags):
                return frame

    def answer(self) -> tuple[int | None, str, str]:
        """(id or None, grpc-status, grpc-message) of the next stream that ends."""
        while True:
            frame = self.frame()
            if frame.kind == http2.DATA:
                self._bodies[frame.stream] = self._bodies.get(frame.stream, b"") + frame.payload
            elif frame.kind == http2.HEADERS:
                headers = {str(name): str(value) for name, value in self._decoder.decode(frame.payload)}
                if frame.flags & http2.END_STREAM:
                    body = self._bodies.get(frame.stream)
                    found = service_pb2.ModelInferResponse.FromString(body[5:]).id if body else None
                    return int(found) if found else None, headers["grpc-status"], headers["grpc-message"]

    def _exactly(self, n_bytes: int) -> bytes:
        data = b""
        while len(data) < n_bytes:
            piece = self.sock.recv(n_bytes - len(data))
            assert piece, "the server has closed the connection"
            data += piece
        return data
