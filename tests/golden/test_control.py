"""What is asked of a server beside the load: readiness, model and statistics, in the clear and over TLS."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from squall.actors.net.access import Access
from squall.actors.net.stream import TlsSettings
from squall.actors.net.triton_control import Control, ControlError
from squall.actors.sampling.triton_source import TritonSource
from squall.cluster.cli import app
from squall.cluster.node.endpoint import attach
from squall.scenarios.config.models import ModelConfig
from squall.scenarios.config.servers import ServerConfig
from squall.scenarios.errors import TargetError
from tests.certificates import Authority
from tests.null_process import NullProcess, null_spec

MODEL = ModelConfig(name="linear_head")


class Secured:
    """A null Triton that wants a client's certificate, under a name that is not its address, and who may ask it."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        server = authority.issue("server", "DNS:triton.example")
        client = authority.issue("client", "DNS:client.example")
        self.null = NullProcess(
            f"--tls-certificate={server.certificate}", f"--tls-key={server.key}",
            f"--tls-client-ca={authority.ca}",
        )  # fmt: skip
        self.tls = TlsSettings(authority.ca, client.certificate, client.key, "triton.example")

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.null.ports['http']}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("tls"))
    with secured.null:
        yield secured


def refusal(url: str, tls: TlsSettings | None) -> str:
    with pytest.raises(TargetError) as caught:
        attach([MODEL], ServerConfig(url=url), Access(tls))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_attach_reads_a_server_over_mutual_tls_under_another_name(secured: Secured) -> None:
    endpoint = attach([MODEL], ServerConfig(url=secured.url + "/", grpc_port=9), Access(secured.tls))
    assert endpoint.models[0].spec == null_spec()
    assert (endpoint.url, endpoint.host, endpoint.port) == (
        secured.url, "127.0.0.1", secured.null.ports["http"]
    )  # fmt: skip
    assert (endpoint.grpc_port, endpoint.access.tls, endpoint.source) == (9, secured.tls, "url")


def test_a_first_look_that_tls_ends_says_what_to_do(secured: Secured) -> None:
    for url, hint in (
        (secured.url.replace("https", "http"), "; a server that speaks TLS has an https:// URL"),
        (secured.url, " write the scenario by hand with clients.tls"),
    ):
        done = CliRunner().invoke(app, ["init", "--server", url, "--model", "linear_head", "--out", "-"])
        assert isinstance(done.exception, TargetError)
        assert str(done.exception).startswith(f"no Triton is ready at {url}: ")
        assert str(done.exception).endswith(hint)
        assert done.stdout == ""


def test_attach_says_on_one_line_why_tls_does_not_do(secured: Secured) -> None:
    url = secured.url
    begin = f"no Triton is ready at {url}: "
    not_trusted = begin + "TLS: the server's certificate is not trusted: "
    assert refusal(url, None).startswith(not_trusted + "self-signed certificate")
    assert "IP address mismatch" in refusal(url, replace(secured.tls, server_name=None))
    assert "gpu.example" in refusal(url, replace(secured.tls, server_name="gpu.example"))
    nobody = replace(secured.tls, certificate=None, key=None)
    assert refusal(url, nobody) == begin + "TLS: tlsv13 alert certificate required"
    said = "the TLS authorities in absent.pem cannot be used: No such file or directory"
    assert refusal(url, replace(secured.tls, ca="absent.pem")) == begin + said
    in_the_clear = refusal(url.replace("https:", "http:"), None)
    assert in_the_clear.startswith(begin.replace("https:", "http:"))


def test_attach_over_https_to_a_server_without_tls_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        server = threading.Thread(target=answer)
        server.start()
        said = refusal(f"https://127.0.0.1:{listener.getsockname()[1]}", None)
        server.join()
    assert said.endswith(": TLS: the server does not speak TLS on this port")


def test_statistics_are_sampled_over_the_same_tls(secured: Secured) -> None:
    source = TritonSource(secured.url, None, "linear_head", Access(secured.tls))
    assert source.sample(0) == []  # the baseline
    (row,) = source.sample(10)
    assert (row["model"], row["request_count"], row["interval_ns"]) == ("linear_head", 0, 10)
    source.close()
    with pytest.raises(ControlError, match="not trusted"):
        TritonSource(secured.url, None, "linear_head").sample(0)


def test_a_kept_connection_that_the_server_ended_meanwhile_is_made_again() -> None:
    with NullProcess() as null:
        control = Control(f"http://127.0.0.1:{null.ports['http']}")
        assert control.ask_json("/v2")["name"]
        null.kill()
        with pytest.raises(ControlError, match="Connection refused"):
            control.ask("/v2")
        null.start()
        assert control.ask_json("/v2")["name"]
        null.kill()
        null.start()
        assert control.ask_json("/v2")["name"]
        with pytest.raises(ControlError, match="status 404") as refused:
            control.ask("/v2/models/none/config")
        assert "none" in refused.value.reason
        control.close()


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squall.actors.net.triton_control._TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for scheme in ("http", "https"):
            before = time.monotonic()
            with pytest.raises(ControlError, match="timed out"):
                Control(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}").ask("/v2")
            assert time.monotonic() - before < 5
