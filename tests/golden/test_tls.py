"""TLS from our client to the null Triton: who is trusted, what is said of who is not, and no arrival lost."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from squall.actors.clock import SystemClock
from squall.actors.load.engine import Rules
from squall.actors.load.worker import LoadWorker, WorkerSettings
from squall.actors.net.stream import TlsSettings
from squall.models.spec import ModelSpec
from squall.scenarios.errors import TargetError
from tests.certificates import Authority, Identity
from tests.golden.driving import (
    MS,
    S,
    assert_one_row_each,
    column,
    numbers,
    plan_of,
    run_worker,
    settings_of,
    toward,
)
from tests.null_process import NullProcess, null_spec

both_protocols = pytest.mark.parametrize("protocol", ["http", "grpc"])
NOT_TRUSTED = "the server's certificate is not trusted: "


@dataclass(frozen=True)
class Certificates:
    """`ca` has signed all but `stranger`; `elsewhere` is a server's, for another name."""

    ca: str
    server: Identity
    elsewhere: Identity
    client: Identity
    stranger: Identity
    other_ca: str


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    authority, other = Authority(folder), Authority(folder, "other")
    return Certificates(
        authority.ca, authority.issue("server", "DNS:localhost,IP:127.0.0.1"),
        authority.issue("elsewhere", "DNS:triton.example"), authority.issue("client", "DNS:client.example"),
        other.issue("stranger", "DNS:stranger.example"), other.ca,
    )  # fmt: skip


def served(identity: Identity, *more: str) -> NullProcess:
    return NullProcess(f"--tls-certificate={identity.certificate}", f"--tls-key={identity.key}", *more)


@pytest.fixture(scope="module")
def null(certificates: Certificates) -> Iterator[NullProcess]:
    with served(certificates.server) as null:
        yield null


@pytest.fixture(scope="module")
def elsewhere(certificates: Certificates) -> Iterator[NullProcess]:
    with served(certificates.elsewhere) as null:
        yield null


@pytest.fixture(scope="module")
def mutual(certificates: Certificates) -> Iterator[NullProcess]:
    with served(certificates.server, f"--tls-client-ca={certificates.ca}") as null:
        yield null


def over_tls(
    folder: Path, null: NullProcess, protocol: str, tls: TlsSettings, spec: ModelSpec | None = None
) -> WorkerSettings:
    settings = settings_of(
        folder, null.ports[protocol], Rules(5 * S), spec=spec or null_spec(), protocol=protocol
    )
    return toward(settings, tls=tls)


def refusal(settings: WorkerSettings) -> str:
    """What `prepare` says, less its beginning; it is one line."""
    worker = LoadWorker(settings, SystemClock())
    with pytest.raises(TargetError) as caught:
        worker.prepare(plan_of([0], S))
    before, text = str(caught.value).split(
        f"worker 0: no connection to 127.0.0.1:{settings.targets[0].port}: "
    )
    assert before == ""
    assert "\n" not in text
    return text


def run_short(settings: WorkerSettings, n: int = 60) -> pa.Table:
    plan = plan_of([i * 2 * MS for i in range(n)], 10 * S)
    rows = run_worker(settings, plan)
    assert_one_row_each(rows, plan)
    return rows


@both_protocols
def test_a_server_of_a_trusted_authority_is_loaded(
    null: NullProcess, certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    rows = run_short(over_tls(tmp_path, null, protocol, TlsSettings(ca=certificates.ca)))
    assert column(rows, "outcome") == ["ok"] * 60
    instants = [numbers(rows, name) for name in ("scheduled_ns", "sent_ns", "first_byte_ns", "done_ns")]
    assert all((early <= late).all() for early, late in pairwise(instants))


@both_protocols
def test_requests_of_1_mib_go_over_tls(certificates: Certificates, protocol: str, tmp_path: Path) -> None:
    n_numbers = 1 << 18
    with served(certificates.server, f"--width={n_numbers}") as null:
        tls = TlsSettings(ca=certificates.ca)
        rows = run_short(over_tls(tmp_path, null, protocol, tls, null_spec(n_numbers)), 12)
    assert column(rows, "outcome") == ["ok"] * 12


@both_protocols
def test_a_server_of_another_authority_is_refused_at_prepare(
    null: NullProcess, certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    for ca in (None, certificates.other_ca):
        folder = tmp_path / str(ca is None)
        folder.mkdir()
        text = refusal(over_tls(folder, null, protocol, TlsSettings(ca=ca)))
        assert text.startswith("TLS: " + NOT_TRUSTED)
        assert "certificate" in text.removeprefix("TLS: " + NOT_TRUSTED)


@both_protocols
def test_a_certificate_for_another_name_is_refused_and_server_name_overrides_the_name(
    elsewhere: NullProcess, certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    tls = TlsSettings(ca=certificates.ca)
    (tmp_path / "1").mkdir()
    text = refusal(over_tls(tmp_path / "1", elsewhere, protocol, tls))
    assert text.startswith("TLS: " + NOT_TRUSTED + "IP address mismatch")
    (tmp_path / "2").mkdir()
    text = refusal(over_tls(tmp_path / "2", elsewhere, protocol, replace(tls, server_name="gpu.example")))
    assert text.startswith("TLS: " + NOT_TRUSTED + "Hostname mismatch")
    assert "gpu.example" in text
    named = replace(tls, server_name="triton.example")
    assert column(run_short(over_tls(tmp_path, elsewhere, protocol, named)), "outcome") == ["ok"] * 60


@both_protocols
def test_without_verify_any_certificate_will_do(
    elsewhere: NullProcess, protocol: str, tmp_path: Path
) -> None:
    rows = run_short(over_tls(tmp_path, elsewhere, protocol, TlsSettings(verify=False)))
    assert column(rows, "outcome") == ["ok"] * 60


@both_protocols
def test_mutual_tls_takes_the_clients_certificate(
    mutual: NullProcess, certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    client = certificates.client
    tls = TlsSettings(ca=certificates.ca, certificate=client.certificate, key=client.key)
    assert column(run_short(over_tls(tmp_path, mutual, protocol, tls)), "outcome") == ["ok"] * 60


@both_protocols
@pytest.mark.parametrize("has_certificate", [False, True], ids=["none", "a stranger's"])
def test_mutual_tls_without_a_certificate_of_the_authority_is_told_in_the_servers_words(
    mutual: NullProcess, certificates: Certificates, protocol: str, has_certificate: bool, tmp_path: Path
) -> None:
    tls = TlsSettings(ca=certificates.ca)
    if has_certificate:
        tls = replace(tls, certificate=certificates.stranger.certificate, key=certificates.stranger.key)
    why = f"TLS: {'tlsv1 alert unknown ca' if has_certificate else 'tlsv13 alert certificate required'}"
    settings = over_tls(tmp_path, mutual, protocol, tls)
    # TLS 1.3 tells the client only after its own end of the handshake: HTTP/1.1 has none but the request to wait for
    if protocol == "grpc":
        assert refusal(settings) == why
    else:
        rows = run_short(settings)
        assert set(column(rows, "outcome")) == {"transport_error"}
        assert set(column(rows, "detail")) == {why}


@both_protocols
def test_files_that_cannot_be_used_are_named(
    null: NullProcess, certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    client = certificates.client
    for index, (tls, said) in enumerate(
        (
            (TlsSettings(ca="absent.pem"), "the TLS authorities in absent.pem cannot be used: No such file"),
            (TlsSettings(ca=client.key), f"the TLS authorities in {client.key} cannot be used: TLS: no cert"),
            (TlsSettings(certificate=client.certificate, key=certificates.server.key), "key values mismatch"),
        )
    ):
        (tmp_path / str(index)).mkdir()
        assert said in refusal(over_tls(tmp_path / str(index), null, protocol, tls))


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        (
            "http",
            "the server takes no connections or speaks no TLS",
        ),  # it waits for the end of a request's head
        ("grpc", "TLS: the server does not speak TLS on this port"),
    ],
)
def test_a_server_without_tls_is_said_to_have_none(protocol: str, said: str, tmp_path: Path) -> None:
    with NullProcess() as null, pytest.MonkeyPatch.context() as patch:
        patch.setattr("squall.actors.load.worker._CONNECT_NS", 500 * MS)
        assert refusal(over_tls(tmp_path, null, protocol, TlsSettings(verify=False))) == said


@both_protocols
def test_a_client_without_tls_gets_an_outcome_for_each_request_or_is_refused(
    null: NullProcess, protocol: str, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, null.ports[protocol], Rules(S), spec=null_spec(), protocol=protocol)
    if protocol == "grpc":
        ends = ("the server closed the connection", "Connection reset by peer", "malformed reply")
        assert refusal(settings).startswith(ends)
    else:  # HTTP/1.1 has no greeting
        rows = run_short(settings)
        assert set(column(rows, "outcome")) <= {"transport_error", "bad_reply"}


@both_protocols
def test_large_requests_and_replies_pass_over_tls(
    certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    width, classes = 150_000, 120_000  # 600 kB to the server, 480 kB back
    with served(certificates.server, f"--width={width}", f"--classes={classes}") as null:
        spec = null_spec(width, classes)
        rows = run_short(over_tls(tmp_path, null, protocol, TlsSettings(ca=certificates.ca), spec), 20)
    assert column(rows, "outcome") == ["ok"] * 20
    assert min(numbers(rows, "request_bytes")) > 4 * width
    assert min(numbers(rows, "response_bytes")) > 4 * classes


@both_protocols
def test_a_server_killed_in_the_middle_leaves_no_arrival_without_its_outcome(
    certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    plan = plan_of([i * 4 * MS for i in range(5_000)], 40 * S)
    with served(certificates.server, "--service=constant:20ms") as null:
        settings = over_tls(tmp_path, null, protocol, TlsSettings(ca=certificates.ca))
        settings = replace(settings, rules=Rules(60 * S))

        def kill(worker: LoadWorker) -> None:
            while worker.progress().n_done < 60:
                time.sleep(0.005)
            null.kill()
            while worker.progress().n_failed < 30:
                time.sleep(0.005)
            worker.stop()

        rows = run_worker(settings, plan, meanwhile=kill)
    assert_one_row_each(rows, plan)
    ends = Counter(column(rows, "outcome"))
    assert set(ends) <= {"ok", "transport_error", "cancelled", "unsent"}  # the last two by the stop
    assert ends["ok"] >= 60
    assert ends["transport_error"] >= 30
    failed = rows.filter(pc.field("outcome") == "transport_error")
    assert set(column(failed, "detail")) <= {
        "the server closed the connection", "Connection reset by peer", "Broken pipe",
        "connect: Connection refused", "connect: Connection reset by peer",
        "connect: the server closed the connection",
    }  # fmt: skip


def forward(listener: socket.socket, port: int) -> None:
    """Takes two connections, ends the first and joins the second with `port` until an end closes."""
    listener.accept()[0].close()
    client, _ = listener.accept()
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        ends = {client: server, server: client}
        while True:
            for ready in select.select(list(ends), [], [], 20)[0]:
                data = ready.recv(65_536)
                if not data:
                    return
                ends[ready].sendall(data)


@both_protocols
def test_a_connection_that_takes_its_time_to_be_made_speaks_tls_too(
    null: NullProcess, certificates: Certificates, protocol: str, tmp_path: Path
) -> None:
    """As to a server some network away: connect is still under way when the call returns."""
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(
            listener.getsockname()
        )  # the queue is full: the client's SYN is dropped, and sent again
        settings = over_tls(tmp_path, null, protocol, TlsSettings(ca=certificates.ca))
        settings = replace(toward(settings, port=listener.getsockname()[1]), n_connections=1)
        forwarder = threading.Timer(0.2, forward, (listener, null.ports[protocol]))
        forwarder.start()
        rows = run_worker(settings, plan_of([0], 10 * S))
        forwarder.join()
    assert column(rows, "outcome") == ["ok"]
