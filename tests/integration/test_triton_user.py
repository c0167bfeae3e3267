"""Users of Locust against a real Triton: answers, outcomes, statistics, and ids that its batches name."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.actors.triton_user.handed import Sent, UserModel, UserTarget
from squall.cluster.node.endpoint import Endpoint
from squall.cluster.node.server import TritonServer
from squall.models.made import make_inputs
from squall.models.reference import answers_to, made_requests
from squall.models.spec import ModelSpec
from tests.fakes import Behaviour, StubTriton
from tests.fakes_grpc import GrpcBehaviour, StubGrpc
from tests.golden.driving import REPLY_BYTES
from tests.golden.driving import SPEC as STUB_SPEC
from tests.golden.test_outcomes import EXPECTED
from tests.integration.live_runs import scenario_mapping
from tests.integration.locust_calls import Done, Job, done
from tests.integration.serving import records, serving
from tests.integration.test_foreign_batches import their_server
from tests.integration.zoo_models import write_zoo
from tests.null_process import NullProcess, null_spec
from tests.tolerance import TOLERANCE

pytestmark = pytest.mark.beside

S = 1_000_000_000
FIRST_ID = 5_000
SEED = 11
REQUEST_TYPE = {"http": "POST", "grpc": "grpc"}
PROTOCOLS = ("http", "grpc")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TritonServer, Endpoint]]:
    with serving(tmp_path_factory.mktemp("triton")) as (server, endpoint):
        yield server, endpoint


def handed_of(*targets: UserTarget, timeout_ns: int = 5 * S, **more: Any) -> dict[str, Any]:
    """For a `Job`."""
    spec = next(one for target in targets for one in target.specs if one is not None)
    model = UserModel(spec.name, {}, n_variants=3)
    return {"targets": targets, "models": (model,), "seed": SEED, "timeout_ns": timeout_ns, **more}


def target_of(endpoint: Endpoint) -> UserTarget:
    return UserTarget(
        "server-0", endpoint.url, f"{endpoint.host}:{endpoint.grpc_port}", (endpoint.models[0].spec,)
    )


def null_target(http_port: int, grpc_port: int, name: str = "null") -> UserTarget:
    return UserTarget(name, f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", (null_spec(),))


def right(spec: ModelSpec, rows: int, variant: int, seed: int) -> np.ndarray[Any, Any]:
    answers = answers_to(
        spec, scenario_mapping()["model"]["settings"], made_requests(spec, [(rows, variant)], seed)
    )
    return np.asarray(answers[rows, variant]["OUTPUT"])


def hold_to_events(job: Job, result: Done) -> list[Sent]:
    """Each answer has one event and one row to be, which agree with each other and with Locust's statistics."""
    sent = [Sent(*event["sent"]) for event in result.events]
    answers = {one["request_id"]: one for user in result.answers for one in user}
    assert sorted(one.request_id for one in sent) == sorted(answers)
    for one, event in zip(sent, result.events, strict=True):
        answer = answers[one.request_id]
        assert (one.outcome, one.detail) == (answer["outcome"], answer["detail"])
        assert event["response_time"] == answer["response_time_ns"] / 1e6
        assert event["request_type"] == REQUEST_TYPE[job.protocol]
        said = f"CatchResponseError({f'{one.outcome}: {one.detail}'!r})"
        assert event["exception"] == (None if one.outcome == "ok" else said)
    counted = Counter((event["request_type"], event["name"]) for event in result.events)
    failed = Counter((e["request_type"], e["name"]) for e in result.events if e["exception"] is not None)
    assert {key: entry[:2] for key, entry in result.entries.items()} == {
        key: (n, failed[key]) for key, n in counted.items()
    }
    total_ms = sum(entry[2] for entry in result.entries.values())
    assert total_ms == pytest.approx(sum(event["response_time"] for event in result.events))
    assert sum(result.errors.values()) == sum(failed.values())
    return sent


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_outputs_are_those_of_the_weights_and_the_batches_name_every_id(
    served: tuple[TritonServer, Endpoint], tmp_path: Path, protocol: str
) -> None:
    server, endpoint = served
    spec = endpoint.models[0].spec
    own = make_inputs(spec, 2, 9, 99)
    calls: list[dict[str, Any]] = [
        *({"rows": 1 + i % 3, "variant": i % 2} for i in range(10)),
        {"inputs": own, "name": "mine"},
    ]
    first = FIRST_ID * (1 + PROTOCOLS.index(protocol))
    job = Job(protocol, calls, n_users=4, handed=handed_of(target_of(endpoint)), first_id=first)
    result = done(job, tmp_path)
    sent = hold_to_events(job, result)
    rtol, atol = TOLERANCE["fp32"]
    for user in result.answers:
        assert [one["outcome"] for one in user] == ["ok"] * len(calls), user
        for call, answer in zip(calls[:-1], user[:-1], strict=True):
            wanted = right(spec, call["rows"], call["variant"], SEED)
            np.testing.assert_allclose(answer["outputs"]["OUTPUT"], wanted, rtol, atol)
        np.testing.assert_allclose(user[-1]["outputs"]["OUTPUT"], right(spec, 2, 9, 99), rtol, atol)
    assert {name for _, name in result.entries} == {spec.name, "mine"}
    assert result.n_made == 6  # 1 to 3 rows and two variants, made once for all users
    assert sorted(one.request_id for one in sent) == list(range(first, first + 44))
    batches = [line for lines in records(server).values() for line in lines if "i" in line]
    named = Counter(
        number
        for line in batches
        for number in map(int, filter(None, line["i"]))
        if first <= number < first + FIRST_ID
    )
    assert named == Counter(one.request_id for one in sent)
    assert sum(one.rows for one in sent) == 4 * (sum(call["rows"] for call in calls[:-1]) + 2)


@pytest.mark.parametrize("protocol", ["http", pytest.param("grpc", marks=pytest.mark.slow)])
def test_alone_the_server_says_its_only_model_and_ids_count_from_0(
    served: tuple[TritonServer, Endpoint], tmp_path: Path, protocol: str
) -> None:
    _, endpoint = served
    own_port = {"grpc_port": endpoint.grpc_port} if protocol == "grpc" else {}
    attributes = {"host": endpoint.url + "/", **own_port}
    calls: list[dict[str, Any]] = [
        {},
        {"model": endpoint.models[0].spec.name, "rows": 2, "variant": 1},
        {"rows": 99},
        {"model": "none"},
    ]
    job = Job(protocol, calls, n_users=3, attributes=attributes)
    result = done(job, tmp_path)
    for user in result.answers:
        assert [one["outcome"] for one in user[:2]] == ["ok", "ok"], user
        np.testing.assert_allclose(
            user[1]["outputs"]["OUTPUT"], right(endpoint.models[0].spec, 2, 1, 0), *TOLERANCE["fp32"]
        )
        assert user[2] == f"ValueError: rows=99, model {endpoint.models[0].spec.name} takes 1 to 8 a request"
        assert user[3].startswith(
            f"TargetError: {endpoint.url} says nothing of model 'none' that squall reads:"
        )
    assert sorted(one["sent"][0] for one in result.events) == list(range(6))


LOST_STREAM = (
    "Stream removed (Socket closed)",
    "Stream removed (recvmsg:",
    "Stream removed (sendmsg: Broken pipe (32))",
    "Stream removed (Delayed close due to in-progress write (Socket closed))",
)
"""As gRPC meets the loss in a read or in a write: how the details begin."""
FAULTS: dict[str, tuple[list[str], Mapping[str, tuple[str, tuple[str, ...]]]]] = {
    "hang": (["--fault=hang:1"], dict.fromkeys(PROTOCOLS, ("timeout", ("no whole reply within the timeout",)))),
    "close": (
        ["--fault=close:1"],
        {
            "http": ("transport_error", ("the server closed the connection",)),
            "grpc": ("transport_error", LOST_STREAM),
        },
    ),
    "full": (
        ["--fault=503:1"],
        {
            "http": ("rejected", ("503 the server is overloaded",)),
            "grpc": ("rejected", ("14 the server is overloaded",)),
        },
    ),
    "wrong": (["--fault=wrong:1"], dict.fromkeys(PROTOCOLS, ("bad_reply", ()))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_failing_server_does_is_the_outcome_that_squalls_own_client_says(
    tmp_path: Path, fault: str
) -> None:
    options, wanted = FAULTS[fault]
    with NullProcess(*options) as null:
        target = null_target(null.ports["http"], null.ports["grpc"])
        for protocol in PROTOCOLS:
            job = Job(protocol, [{}] * 2, 2, handed_of(target, timeout_ns=S // 5))
            result = done(job, tmp_path)
            sent = hold_to_events(job, result)
            outcome, details = wanted[protocol]
            assert {one.outcome for one in sent} == {outcome}
            assert all(one.detail.startswith(details) or not details for one in sent), sent
            if outcome == "timeout":
                assert all(event["response_time"] >= 200 for event in result.events)


OTHERWISE = ("garbage_after", "answer_twice", "upgrade")
"""What Locust's own HTTP library makes of these: bytes behind a reply spoil it, and another protocol is no reply."""


@pytest.mark.slow
def test_each_way_to_answer_over_http_ends_as_with_squalls_own_client(tmp_path: Path) -> None:
    kinds = [kind for kind in EXPECTED if kind not in OTHERWISE for _ in range(2)]
    with StubTriton(lambda number: Behaviour(kinds[number]), REPLY_BYTES) as stub:
        target = UserTarget("stub", f"http://127.0.0.1:{stub.port}", "", (STUB_SPEC,))
        job = Job("http", [{}] * len(kinds), handed=handed_of(target, timeout_ns=S // 2))
        sent = hold_to_events(job, done(job, tmp_path))
    ends = [(kind, (one.outcome, one.detail)) for kind, one in zip(kinds, sent, strict=True)]
    assert ends == [(kind, EXPECTED[kind]) for kind in kinds]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_reply_longer_than_allowed_is_a_bad_reply(tmp_path: Path, protocol: str) -> None:
    with NullProcess() as null:
        target = null_target(null.ports["http"], null.ports["grpc"])
        job = Job(protocol, [{}], handed=handed_of(target, largest_reply_bytes=10))
        ((answer,),) = done(job, tmp_path).answers
    why = "the reply is larger than 10 B: clients.largest_reply allows more"
    assert (answer["outcome"], answer["detail"]) == ("bad_reply", why)


LONG_HEAD = "malformed reply: its head is longer than 65536 bytes"
ENDLESS = {
    b"Content-Length: 99999999999\r\n\r\n": "the reply is larger than 1 MiB: clients.largest_reply allows more",
    b"A: ": LONG_HEAD,
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nA: ": LONG_HEAD,
}
"""What is said of a reply that has this behind its first line, and then bytes without end."""


def test_a_reply_without_end_is_cut_at_the_limit_and_a_length_that_is_none_has_its_row(
    tmp_path: Path,
) -> None:
    lengths = ["\xb2", "9" * 5_000]
    n_sent = []

    def serve(listener: socket.socket) -> None:
        for front in ENDLESS:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + front)
                n_sent.append(0)
                with contextlib.suppress(OSError):
                    while n_sent[-1] < 1 << 30:
                        n_sent[-1] += connection.send(b"x" * 65_536)
        for length in lengths:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                head = f"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: {length}\r\nContent-Length: 2"
                connection.sendall(head.encode("latin-1") + b"\r\nConnection: close\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener], daemon=True)
        thread.start()
        target = null_target(listener.getsockname()[1], 1)
        calls: list[dict[str, Any]] = [{}] * (len(ENDLESS) + len(lengths))
        job = Job("http", calls, handed=handed_of(target, largest_reply_bytes=1 << 20))
        sent = hold_to_events(job, done(job, tmp_path))
        thread.join(60)
    assert [one.outcome for one in sent] == ["bad_reply"] * 5
    assert [one.detail for one in sent[:3]] == list(ENDLESS.values())
    assert all(n < 32 << 20 for n in n_sent), "the limit, and what sockets hold"


OVER_GRPC = {
    "answer": "ok", "bytewise": "ok", "rejected": "rejected", "error": "server_error", "bad_request": "server_error",
    "not_grpc": "server_error", "hang": "timeout", "rst_stream": "transport_error", "wrong_id": "bad_reply",
    "short_tensor": "bad_reply", "half_message": "bad_reply", "reset": "transport_error", "close": "transport_error",
}  # fmt: skip


@pytest.mark.slow
def test_each_way_to_answer_over_grpc_has_the_outcome_that_squalls_own_client_says(tmp_path: Path) -> None:
    kinds: list[Any] = list(OVER_GRPC)
    with StubGrpc(lambda number: GrpcBehaviour(kinds[number]), REPLY_BYTES) as stub:
        target = UserTarget("stub", "http://127.0.0.1:1", f"127.0.0.1:{stub.port}", (STUB_SPEC,))
        job = Job("grpc", [{}] * len(kinds), handed=handed_of(target, timeout_ns=S))
        sent = hold_to_events(job, done(job, tmp_path))
    assert {kind: one.outcome for kind, one in zip(kinds, sent, strict=True)} == OVER_GRPC


@pytest.mark.slow
def test_a_server_that_is_not_there_is_a_transport_error_and_the_next_user_has_the_next_server(
    tmp_path: Path,
) -> None:
    with NullProcess() as gone:
        ports = dict(gone.ports)
    with NullProcess() as null:
        targets = (
            null_target(ports["http"], ports["grpc"], "gone"),
            null_target(null.ports["http"], null.ports["grpc"]),
        )
        for protocol in PROTOCOLS:
            job = Job(protocol, [{}] * 3, 4, handed_of(*targets, first_target=1))
            sent = hold_to_events(job, done(job, tmp_path))
            assert Counter((one.target, one.outcome) for one in sent) == {
                (0, "transport_error"): 6,
                (1, "ok"): 6,
            }
            assert all("Connection refused" in one.detail for one in sent if one.target == 0)


@pytest.mark.slow
def test_a_model_that_fails_open_sizes_and_texts_alone(tmp_path: Path) -> None:
    write_zoo(tmp_path / "models")
    texts = np.array([["Zürich", b"\xff", ""]], object)
    with their_server(
        tmp_path / "server", tmp_path / "models", "failing", [], others=["text", "bf16"]
    ) as url:
        x = np.full((1, 4), -1, np.float32)
        calls: list[dict[str, Any]] = [
            {"model": "failing", "inputs": {"x": x}},
            {"model": "failing", "inputs": {"x": abs(x)}},
            {"model": "text", "rows": 2, "variant": 0},
            {"model": "text", "inputs": {"IN": texts}},
            {"model": "bf16", "rows": 2},
            {},
        ]
        result = done(Job("http", calls, attributes={"host": url, "shapes": {"IN": (3,)}}), tmp_path)
        ((failed, ok, made, own, halves, none),) = result.answers
        assert failed["outcome"] == "server_error"
        assert "below 0" in failed["detail"]
        assert ok["outcome"] == "ok"
        assert made["outputs"]["OUTPUT"].shape == (2, 3)
        assert own["outputs"]["OUTPUT"].tolist() == [["Zürich".encode(), b"\xff", b""]]
        assert halves["outputs"]["OUTPUT"].shape == (2, 2, 3)
        assert none == f"TargetError: infer: which model? {url} has bf16, failing, text"
        unsaid = done(Job("http", [{"model": "text"}], attributes={"host": url}), tmp_path)
        assert unsaid.answers[0][0].startswith(
            "ValueError: model text leaves the size of its input IN open ([-1])"
        )
