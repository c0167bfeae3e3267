"""Compressed requests: what a server unpacks is the plain request, whatever the id, with one tail for all ids."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.actors.load.shared_memory import Places
from squall.actors.load.targets import TargetSettings, Wire
from squall.actors.messages.grpc_wire import MESSAGE_HEAD
from squall.actors.messages.gzip_wire import SettlingBytes, settling_of
from squall.actors.messages.template import Template
from squall.actors.net import protobuf
from squall.models.payload import ID_DIGITS, RequestOptions, encode_id
from squall.models.spec import ModelSpec, TensorSpec

SPEC = ModelSpec("m", "1", (TensorSpec("x", "FP32", (64,)),), (TensorSpec("y", "FP32", (2,)),), 8)
INPUTS = {"x": np.tile(np.float32(1.5), (3, 64))}
PLACES = Places({}, {})
IDS = st.one_of(st.integers(0, 10**ID_DIGITS - 1), st.integers(0, 2_000))


def wires(protocol: str, **options: object) -> tuple[Wire, Wire]:
    """Plain and compressed."""
    own = RequestOptions({"lang": "de"}, **options)  # type: ignore[arg-type]
    return Wire(protocol, {"a": "b"}, own), Wire(protocol, {"a": "b"}, replace(own, is_gzip=True))


def sent(template: Template, protocol: str, request_id: int) -> bytes:
    between = SettlingBytes(settling_of(protocol))(request_id)
    assert len(between) == template.n_between_bytes
    data = template.head + encode_id(request_id) + between + template.tail
    assert len(data) == template.n_bytes
    return data


@pytest.mark.parametrize("is_binary", [True, False])
@given(request_id=IDS)
def test_over_http_the_body_is_the_plain_one_but_for_spaces(is_binary: bool, request_id: int) -> None:
    plain, packed = (
        one.template("host", SPEC, INPUTS, 3, PLACES) for one in wires("http", is_binary=is_binary)
    )
    head, _, body = sent(packed, "http", request_id).partition(b"\r\n\r\n")
    plain_head, _, front = plain.head.partition(b"\r\n\r\n")
    wanted = front + encode_id(request_id) + plain.tail
    got = gzip.decompress(body)  # holds CRC and length to what is in it
    fields = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
    assert fields["Content-Encoding"] == "gzip"
    assert int(fields["Content-Length"]) == len(body)
    n_json = int(fields.get("Inference-Header-Content-Length", len(got)))
    n_plain_json = len(wanted) - (3 * 64 * 4 if is_binary else 0)
    assert json.loads(got[:n_json]) == json.loads(wanted[:n_plain_json])
    assert got[n_json:] == wanted[n_plain_json:]
    if is_binary:  # 768 bytes of one number
        assert len(packed.tail) < len(plain.tail) - 600
    assert fields["a"] == "b"
    assert b"a: b" in plain_head


@given(request_id=IDS, version=st.integers(1, 9))
def test_over_grpc_the_message_is_the_plain_one_but_for_fields_that_no_server_knows(
    request_id: int, version: int
) -> None:
    spec = replace(SPEC, version=str(version))
    plain, packed = (one.template("", spec, INPUTS, 3, PLACES) for one in wires("grpc"))
    data = sent(packed, "grpc", request_id)
    assert MESSAGE_HEAD.unpack_from(data) == (1, len(data) - MESSAGE_HEAD.size)
    got = gzip.decompress(data[MESSAGE_HEAD.size :])
    known = [(number, value) for number, value, _ in protobuf.read_fields(got) if number < 1_000]
    wanted = (plain.head + encode_id(request_id) + plain.tail)[MESSAGE_HEAD.size :]
    assert known == [(number, value) for number, value, _ in protobuf.read_fields(wanted)]
    assert wires("grpc")[1].metadata == {"a": "b", "grpc-encoding": "gzip"}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@given(request_id=IDS)
def test_a_tail_fits_every_model_whose_name_and_version_are_as_long(protocol: str, request_id: int) -> None:
    """As those of a file of encoded requests must: only the heads are made for each server."""
    _, packed = wires(protocol)
    first = packed.template("host", SPEC, INPUTS, 3, PLACES)
    spec = replace(SPEC, name="n", version="2")
    form = packed.form(TargetSettings("server-0", "other", 1, (spec,)), spec)
    n_json = packed.body(SPEC, INPUTS, PLACES).n_json_bytes if protocol == "http" else 0
    other = form.template(form.head(len(first.tail), n_json), first.tail, 3, spec)
    body = sent(other, protocol, request_id)
    start = MESSAGE_HEAD.size if protocol == "grpc" else body.index(b"\r\n\r\n") + 4
    assert encode_id(request_id) in gzip.decompress(body[start:])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_byte_that_is_another_is_found_out(protocol: str) -> None:
    """The CRC is that of the content: were it not looked at, the tests above could not fail."""
    template = wires(protocol)[1].template("host", SPEC, INPUTS, 3, PLACES)
    body = bytearray(sent(template, protocol, 7))
    start = MESSAGE_HEAD.size if protocol == "grpc" else body.index(b"\r\n\r\n") + 4
    at = body.index(encode_id(7))
    body[at + ID_DIGITS - 1 : at + ID_DIGITS] = b"8"
    with pytest.raises(gzip.BadGzipFile, match="CRC check failed"):
        gzip.decompress(bytes(body[start:]))
