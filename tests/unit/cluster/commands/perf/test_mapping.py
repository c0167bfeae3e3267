"""The scenario of a level: what a command line asks for stands in it, and it loads back from its file."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from squall.cluster.commands.perf.asked import asked_of
from squall.cluster.commands.perf.flags import parse
from squall.cluster.commands.perf.honoured import asked_of_model, notes, refuse, refuse_model, refuse_payload
from squall.cluster.commands.perf.intervals import read_intervals
from squall.cluster.commands.perf.mapping import Load, mapping_of, scenario_of
from squall.cluster.commands.perf.served import Served, place_of
from squall.models.spec import ModelSpec, TensorSpec
from squall.scenarios.config.loader import scenario_from_mapping
from squall.scenarios.errors import ScenarioError
from squall.scenarios.fields import slug
from squall.scenarios.strict_yaml import parse_yaml, yaml_text

SPEC = ModelSpec(
    "My_Model", "1",
    (TensorSpec("TEXT", "BYTES", (1,)), TensorSpec("IDS", "INT64", (-1,)), TensorSpec("FLAG", "BOOL", (1,))),
    (TensorSpec("OUT", "FP32", (1,)),), 64,
)  # fmt: skip
SERVED = Served("http://localhost:8000", SPEC, has_cache=False)
STATEFUL = Served("", replace(SPEC, is_stateful=True), has_cache=False)
DECOUPLED = Served("", replace(SPEC, is_decoupled=True), has_cache=False)
JSON = "--input-tensor-format json --output-tensor-format json"
LOAD = Load(Fraction(3), 1_000_000_000, 15_000_000_000)


def mapping(line: str, load: Load = LOAD, served: Served = SERVED) -> dict[str, Any]:
    asked = asked_of(parse(["-m", "My_Model", *shlex.split(line)]))
    found = mapping_of(asked, place_of(asked), served, load)
    scenario_of(asked, place_of(asked), served, load)
    return found


def told(line: str, served: Served = SERVED) -> str:
    typed = parse(["-m", "My_Model", *shlex.split(line)])
    asked = asked_of(typed)
    refuse_model(typed, asked, served)
    return "\n".join(notes(typed, asked, served))


def test_a_plain_line_is_a_closed_loop_at_the_port_of_http() -> None:
    found = mapping("")
    assert found["server"] == {"url": "http://localhost:8000"}
    assert [phase["name"] for phase in found["phases"]] == ["warmup", "measure", "drain"]
    assert found["phases"][1] == {
        "name": "measure", "kind": "measure", "duration": "15s", "arrivals": {"kind": "closed", "users": 3},
    }  # fmt: skip
    clients = found["clients"]
    assert (clients["workers_per_node"], clients["connections"], clients["payload_variants"]) == (2, 2, 1)
    assert clients["rows"] == {"kind": "constant", "value": 1}
    assert found["name"] == "perf-my-model"


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"TEXT": ["a"], "IDS": [1, 2], "FLAG": [True]}, None),
        (
            {"TEXT": ["a"], "IDS": [1, 2]},
            "has no column 'FLAG' for input FLAG of model My_Model, it has TEXT, IDS",
        ),
        ({"TEXT": ["a", "b"], "IDS": [1], "FLAG": [True]}, "row 1: input TEXT has 2 elements, and its dims"),
    ],
)
def test_data_that_the_model_does_not_take_is_told_before_anything_is_started(
    tmp_path: Path, entry: dict[str, Any], why: str | None
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [entry]}))
    asked = asked_of(parse(["-m", "My_Model", "-b", "2", "--input-data", str(path)]))
    scenario = scenario_of(asked, place_of(asked), SERVED, LOAD)
    if why is None:
        refuse_payload(asked, scenario, SERVED)
        return
    with pytest.raises(ScenarioError, match=re.escape(why)):
        refuse_payload(asked, scenario, SERVED)


def test_every_connection_of_http_is_opened_and_grpc_shares_a_few() -> None:
    users = Load(Fraction(64), 1, 10**9)
    assert mapping("", users)["clients"]["connections"] == 32
    assert mapping("-i grpc", users)["clients"]["connections"] == 16
    assert mapping("", Load(Fraction(1), 1, 10**9))["clients"]["workers_per_node"] == 1


@pytest.mark.parametrize(
    ("line", "arrivals"),
    [
        ("--request-rate-range 3", {"kind": "constant", "rate": "3/s"}),
        ("--request-rate-range 3 --request-distribution poisson", {"kind": "poisson", "rate": "3/s"}),
    ],
)
def test_a_rate_is_a_schedule(line: str, arrivals: dict[str, Any]) -> None:
    assert mapping(line)["phases"][1]["arrivals"] == arrivals


def test_intervals_are_a_trace_of_gaps_again_and_again(tmp_path: Path) -> None:
    gaps = tmp_path / "gaps.txt"
    gaps.write_text("100000\n200000\n500000\n")
    found = mapping(f"--request-intervals {gaps}", Load(None, 10**9, 10**10))
    assert found["phases"][1]["arrivals"] == {
        "kind": "trace", "file": str(gaps), "format": "intervals", "unit": "us", "length": "800ms", "loop": True,
    }  # fmt: skip
    assert read_intervals(gaps).rate_hz == pytest.approx(3 / 0.8)


@pytest.mark.parametrize("text", ["", "a\n", "1.5\n", "-3\n5\n", "0\n0\n"])
def test_a_file_of_other_than_gaps_is_refused(tmp_path: Path, text: str) -> None:
    gaps = tmp_path / "gaps.txt"
    gaps.write_text(text)
    with pytest.raises(ScenarioError, match="--request-intervals"):
        read_intervals(gaps)


def test_text_has_the_length_of_perf_analyzer_and_zeros_are_zeros() -> None:
    assert mapping("")["clients"]["inputs"] == {"TEXT": {"length": 128}}
    found = mapping("-z --string-length 7 --shape IDS:5")
    assert found["clients"]["inputs"] == {"TEXT": {"length": 7}, "IDS": {"low": 0, "high": 0}}
    assert found["model"]["shapes"] == {"IDS": [5]}
    assert "FLAG of datatype BOOL is drawn" in told("-z")


def test_what_else_a_line_asks_for_stands_in_the_scenario(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    found = mapping(
        f"-x 2 -b 40 -u https://host:9000/ -H 'X-A: b:c' --shared-memory system --seed 7 --collect-metrics"
        f" --metrics-url host:9002/metrics --metrics-interval 50 --ssl-https-ca-certificates-file {ca}"
    )
    assert found["server"] == {"url": "https://host:9000", "metrics_port": 9002}
    assert found["model"] == {"name": "My_Model", "version": "2", "max_batch_size": 40}
    assert (found["seed"], found["profile"]) == (7, {"kernels": "off", "gpu_interval": "50ms"})
    clients = found["clients"]
    assert (clients["headers"], clients["shared_memory"]) == ({"X-A": "b:c"}, True)
    assert clients["tls"] == {"ca": str(ca)}
    assert mapping("-u https://host --ssl-https-verify-peer 0")["clients"]["tls"] == {"verify": False}


def test_grpc_is_loaded_at_its_port_and_the_model_is_asked_over_http() -> None:
    found = mapping("-i grpc -u host:9001 -H a:b --ssl-grpc-use-ssl")
    assert found["server"] == {"url": "http://host:8000", "grpc_port": 9001}
    assert (found["clients"]["tls"], found["clients"]["headers"]) == ({}, {"a": "b"})
    assert mapping("-i grpc --http-url http://other:70")["server"] == {
        "url": "http://other:70",
        "grpc_port": 8001,
    }
    assert "asked over HTTP" in told("-i grpc")
    assert "-H: sent as metadata" in told("-i grpc -H a:b")


@pytest.mark.parametrize(
    "line", ["-i grpc -u host", "-u host:1/path", "-u ftp://a:1", "-u ''", "--http-url x:1"]
)
def test_what_is_no_address_is_refused(line: str) -> None:
    with pytest.raises(ScenarioError, match=r"^(-u|--http-url): "):
        mapping(line)


@pytest.mark.parametrize("url", ["host", "http://host", "host:80"])
def test_an_address_without_a_port_has_the_one_of_its_scheme(url: str) -> None:
    assert mapping(f"-u {url}")["server"]["url"] == "http://host:80"


def test_a_flag_that_changes_nothing_is_told() -> None:
    assert told("") == ""
    assert told("--trace-level OFF") == ""
    assert "--max-threads: changes nothing" in told("--max-threads 4")
    assert told("--num-of-sequences 4") == "--num-of-sequences: changes nothing: the model keeps no sequences"
    assert "each user has one sequence at a time" in told("--num-of-sequences 4", STATEFUL)
    assert told("--num-of-sequences 4 --request-rate-range 5 --serial-sequences", SERVED).count("\n") == 1
    assert "json tensors: change nothing with -i grpc" in told(f"-i grpc {JSON}")
    assert "has no port" in told("--collect-metrics --metrics-url host/metrics")
    assert "response cache" in told("", Served("", SPEC, has_cache=True))


@pytest.mark.parametrize(
    ("line", "served", "said"),
    [
        ("-b 2", STATEFUL, "keeps sequences, and a request of these has one row: -b 1"),
        ("--sequence-id-range 1:9", STATEFUL, "leave --sequence-id-range out"),
        ("--serial-sequences --request-rate-range 5", STATEFUL, "--serial-sequences is for --concurrency-range"),
        ("--input-data DATA", STATEFUL, "entries of a file (--input-data) are not played as sequences"),
        ("", DECOUPLED, "is decoupled, and needs --streaming and -i grpc, as in perf_analyzer"),
        ("-i grpc", DECOUPLED, "is decoupled, and needs --streaming"),
        ("-i grpc --streaming --shared-memory system", SERVED, "--shared-memory with --streaming"),
        ("-i grpc --streaming --input-data DATA", SERVED, "--streaming with validation_data"),
    ],
)  # fmt: skip
def test_what_is_not_to_be_had_of_a_model_is_one_line(
    tmp_path: Path, line: str, served: Served, said: str
) -> None:
    data = tmp_path / "data.json"
    data.write_text('{"data": [], "validation_data": []}')
    with pytest.raises(ScenarioError) as refused:
        told(line.replace("DATA", str(data)), served)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_streaming_is_a_stream_of_the_clients() -> None:
    assert mapping("-i grpc --streaming", served=DECOUPLED)["clients"]["stream"] is True
    assert "stream" not in mapping("-i grpc")["clients"]
    assert told("-i grpc --streaming --http-url h:1", DECOUPLED) == ""


@pytest.mark.parametrize(
    ("line", "served", "is_async"),
    [
        ("", SERVED, False),
        ("-a", SERVED, True),
        ("--streaming -i grpc", SERVED, True),
        ("", STATEFUL, True),
        ("--sync", STATEFUL, False),
    ],
)
def test_streams_and_sequences_are_asynchronous_as_perf_analyzer_has_them(
    line: str, served: Served, is_async: bool
) -> None:
    typed = parse(["-m", "My_Model", *shlex.split(line)])
    assert asked_of_model(typed, asked_of(typed), served).is_async == is_async


def test_parameters_are_what_each_request_says() -> None:
    found = mapping(
        "-i grpc --request-parameter lang:de:string --request-parameter k:-5:int --request-parameter f:true:bool"
        " --request-parameter k:6:int --request-parameter priority:2:int --request-parameter timeout:1500:int"
    )
    assert found["clients"]["request"] == {
        "parameters": {"lang": "de", "k": 6, "f": True}, "priority": 2, "timeout": "1500us",
    }  # fmt: skip
    assert mapping("--request-parameter k::string")["clients"]["request"] == {"parameters": {"k": ""}}
    for one in ("priority:high:string", "timeout:soon:string", "sequence_id:5:int"):
        with pytest.raises(ScenarioError, match=r"clients\.request\."):
            mapping(f"--request-parameter {one}")


def test_json_tensors_are_no_binary_ones() -> None:
    assert mapping(JSON)["clients"]["request"] == {"binary": False}
    assert "request" not in mapping(f"-i grpc {JSON}")["clients"]


@pytest.mark.parametrize(
    ("line", "law"),
    [
        ("", {"kind": "uniform", "low": 17, "high": 23}),
        ("--sequence-length 5 --sequence-length-variation 40", {"kind": "uniform", "low": 4, "high": 6}),
        ("--sequence-length 5 --sequence-length-variation 50", {"kind": "uniform", "low": 3, "high": 7}),
        ("--sequence-length 3 --sequence-length-variation 200", {"kind": "uniform", "low": 1, "high": 8}),
        ("--sequence-length 7 --sequence-length-variation 0", 7),
        ("--sequence-length 1", 1),
    ],
)  # fmt: skip
def test_a_stateful_model_gets_sequences_as_long_as_perf_analyzer_draws_them(line: str, law: Any) -> None:
    assert mapping(line, served=STATEFUL)["clients"]["sequences"] == {"length": law}
    assert "sequences" not in mapping(line)["clients"]


def test_requests_are_compressed_as_asked() -> None:
    assert mapping("-i grpc --grpc-compression-algorithm gzip")["clients"]["request"] == {
        "compression": "gzip"
    }
    assert "request" not in mapping("-i grpc --grpc-compression-algorithm none")["clients"]


def test_sequences_of_a_schedule_are_dealt_to_all_workers() -> None:
    plain = mapping("--request-rate-range 5", served=STATEFUL)["clients"]
    assert (plain["sequences"]["concurrent"], plain["workers_per_node"]) == (4, 2)
    odd = mapping("--request-rate-range 5 --num-of-sequences 3", served=STATEFUL)["clients"]
    assert (odd["sequences"]["concurrent"], odd["workers_per_node"]) == (3, 2)
    one = mapping("--request-rate-range 5 --num-of-sequences 1", served=STATEFUL)["clients"]
    assert (one["sequences"]["concurrent"], one["workers_per_node"]) == (1, 1)


def test_a_text_that_is_given_is_each_element_of_it() -> None:
    assert mapping("--string-data 'a b' --string-length 7")["clients"]["inputs"] == {
        "TEXT": {"words": ["a b"]}
    }


def test_right_values_in_the_file_of_inputs_are_those_of_every_reply(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"validation_data": [{"OUT": [1]}], "data": [{}]}')
    check = scenario_from_mapping(mapping(f"--input-data {path}"), "x").clients.check
    assert check is not None
    assert (check.share, check.rtol, check.atol, check.reference) == (1, 0, 0, str(path))
    path.write_text("[")
    with pytest.raises(ScenarioError, match=r"data\.json: .*is not a JSON object"):
        mapping(f"--input-data {path}")


def test_a_file_of_inputs_is_the_scenario_s_data(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"data": []}')
    data = scenario_from_mapping(mapping(f"--input-data {path}"), "x").clients.data
    assert data is not None
    assert Path(data.path) == path
    with pytest.raises(ScenarioError, match="one file or folder"):
        refuse(parse(["-m", "m", "--input-data", str(path), "--data-directory", str(tmp_path)]))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-i grpc --streaming",
        "--request-parameter k:yes:string",
        "-i grpc",
        "-z --shape IDS:5",
        "--request-rate-range 0.1",
        "-H 'a: 1e3' -x 1",
    ],
)
def test_a_mapping_is_the_same_after_it_was_a_file(line: str) -> None:
    made = mapping(line)
    read = parse_yaml(yaml_text(made), "file")
    assert read == made
    assert scenario_from_mapping(read, "file").digest() == scenario_from_mapping(made, "made").digest()


def test_a_name_of_a_run_is_made_of_any_name_of_a_model() -> None:
    assert [slug(one) for one in ("My_Model.v2", "日本", "--")] == ["my-model-v2", "model", "model"]
