"""`squall init` of servers that answer from a script: what it writes loads, says what it must, and is refused where it
cannot be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import squall.cluster.commands.served_models
import squall.cluster.node.endpoint
from squall.cluster.cli import app
from squall.cluster.commands.draft import Wanted, draft
from squall.cluster.commands.draft_lines import scalar
from squall.cluster.commands.served_models import ServedModel
from squall.models.made import make_inputs
from squall.models.spec import DATATYPE_BYTES
from squall.scenarios.config.loader import load_scenario, scenario_from_mapping
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.errors import ScenarioError, SquallError, TargetError
from squall.scenarios.plan.drafting import plan_scenario
from squall.scenarios.strict_yaml import parse_yaml
from tests.scripted_control import ScriptedControl

URL = "http://h:8000"
READY, INDEX = "/v2/health/ready", "/v2/repository/index"
OUT = [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [2]}]
_KEY = re.compile(r"^\s*(?:- )?[\w\"][^#]*?:(?: |$)")


def tensor(name: str, datatype: str, *dims: int, **others: Any) -> dict[str, Any]:
    return {
        "name": name,
        "data_type": "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}",
        "dims": list(dims),
        **others,
    }


def config_of(*inputs: dict[str, Any], rows: int = 8, **others: Any) -> dict[str, Any]:
    return {"name": "m", "max_batch_size": rows, "input": list(inputs), "output": OUT, **others}


def drafted(config: dict[str, Any], **wanted: Any) -> tuple[str, Scenario]:
    """The text for a model of that configuration, and the scenario that it is."""
    model = ServedModel(config["name"], "1", ("1",), config)
    assert model.obstacle() is None
    settings = {"urls": (URL,), "protocol": "http", "version": None, "grpc_port": None, "file": "s.yaml"}
    text = draft(model, (), Wanted(**(settings | wanted)))
    scenario = scenario_from_mapping(parse_yaml(text, "drafted"), "drafted")
    for variant in range(3):
        made = make_inputs(model.spec, 1, variant, scenario.seed, made=scenario.clients.inputs)
        assert set(made) == {one["name"] for one in config["input"]}
    return text, scenario


def inputs_of(*inputs: dict[str, Any], rows: int = 8) -> dict[str, Any]:
    """`clients.inputs` as the file says it."""
    text, _ = drafted(config_of(*inputs, rows=rows))
    found: dict[str, Any] = yaml.safe_load(text)["clients"]["inputs"]
    return found


LAW = {"kind": "lognormal", "mean": 64, "cv": 1, "max": 512}
FEW = {"kind": "uniform", "low": 1, "high": 8}
SHAPES = [(), (4,), (-1,), (3, -1, -1), (-1, -1), (-1, 3, 512, 512), (2, 3, 4)]


def is_quick(place: int, datatype: str, dims: tuple[int, ...]) -> bool:
    """Whether it is among the third that is tried in `make test`, without pictures of texts, which take seconds."""
    return place % 3 == 0 and (datatype, dims) != ("BYTES", (-1, 3, 512, 512))


@pytest.mark.parametrize(
    ("rows", "dims", "datatype"),
    [
        # each datatype and each shape is among the quick ones
        pytest.param(
            rows,
            dims,
            datatype,
            marks=[] if is_quick(at + number + kind, datatype, dims) else [pytest.mark.slow],
        )
        for at, rows in enumerate((0, 8))
        for number, dims in enumerate(SHAPES)
        for kind, datatype in enumerate((*DATATYPE_BYTES, "BYTES"))
    ],
)
def test_a_model_of_any_datatype_and_shape_is_a_scenario_of_commented_keys(
    datatype: str, dims: tuple[int, ...], rows: int
) -> None:
    text, scenario = drafted(config_of(tensor("x", datatype, *dims), rows=rows))
    bare = [line for line in text.splitlines() if _KEY.match(line) and "  # " not in line]
    assert bare == []
    assert scenario.models[0].model.max_batch_size == max(rows, 1)
    assert (scenario.models[0].model.name, scenario.server.url) == ("m", URL)
    assert [phase.kind for phase in scenario.phases] == ["warmup", "measure", "drain"]


@pytest.mark.parametrize(
    ("one", "made"),
    [
        (tensor("x", "FP32", 4), {"low": 0, "high": 1}),
        (tensor("x", "BF16", -1), {"sizes": LAW, "low": 0, "high": 1}),
        (tensor("x", "INT8", 2), {"low": 0, "high": 99}),
        (tensor("x", "UINT8", 224, 224, 3), {"low": 0, "high": 255}),
        (tensor("x", "UINT8", 5), {"low": 0, "high": 99}),
        (tensor("x", "UINT8", 3, -1, -1), {"sizes": [224, 224], "low": 0, "high": 255}),
        (tensor("x", "FP32", -1, -1, 3), {"sizes": [224, 224], "low": 0, "high": 1}),
        (tensor("x", "FP32", -1, 3, 512, 512), {"sizes": 1, "low": 0, "high": 1}),
        (tensor("x", "INT64", -1, -1), {"sizes": [FEW, LAW], "low": 0, "high": 99}),
        (tensor("x", "BYTES", 1), {"length": LAW}),
        (tensor("x", "BYTES", -1), {"sizes": LAW, "length": LAW}),
        (tensor("x", "BOOL", 1), {}),
        (tensor("x", "BOOL", -1), {"sizes": LAW}),
        (tensor("input_mask", "INT32", 128), {"low": 1, "high": 1}),
        (tensor("x", "BOOL", 1, optional=True), {"present": 1}),  # the only one
    ],
    ids=lambda value: str(list(value.values())[:3]) if isinstance(value, dict) else None,
)
def test_an_entry_fits_datatype_and_dims(one: dict[str, Any], made: dict[str, Any]) -> None:
    assert inputs_of(one) == {one["name"]: made}


def test_inputs_of_the_same_open_dims_have_the_same_sizes() -> None:
    found = inputs_of(
        tensor("ids", "INT64", -1),
        tensor("attention_mask", "INT64", -1),
        tensor("pairs", "INT64", -1, 2),
        tensor("text", "BYTES", -1),
    )
    assert [found[name].get("like") for name in found] == [None, "ids", None, "ids"]
    assert found["attention_mask"] == {"like": "ids", "low": 1, "high": 1}


def test_payloads_are_many_where_sizes_or_lengths_are_drawn_only() -> None:
    for one, n_variants in (
        (tensor("x", "FP32", 4), 4),
        (tensor("x", "FP32", -1), 64),
        (tensor("x", "BYTES", 1), 64),
    ):
        assert drafted(config_of(one))[1].clients.payload_variants == n_variants


def test_what_is_only_suggested_loads_too() -> None:
    more = [*OUT, tensor("b, c", "INT32", 1)]
    text, _ = drafted({**config_of(tensor("x", "FP32", 4)), "output": more}, protocol="grpc", grpc_port=9)
    taken = re.sub(r"^( *)# ?( *\w+:( |$))", r"\1\2", text, flags=re.MULTILINE)
    scenario = scenario_from_mapping(parse_yaml(taken, "with suggestions"), "with suggestions")
    assert scenario.promises is not None
    assert [one.condition for one in scenario.promises] == ["p(95)<100ms", "rate<0.001"]
    assert (scenario.server.metrics_port, scenario.server.grpc_port) == (8_002, 9)
    assert list(scenario.clients.headers) == ["Authorization"]
    assert scenario.clients.tls is not None
    assert scenario.clients.request is not None
    assert scenario.clients.request.outputs == ("OUT",)
    assert 'where callers ask for some outputs only, of OUT, "b, c"' in text
    text, _ = drafted(config_of(tensor("x", "FP32", 4)), urls=("https://h",))
    taken = re.sub(r"^( *)# ?( *\w+:( |$))", r"\1\2", text, flags=re.MULTILINE)
    tls = scenario_from_mapping(parse_yaml(taken, "with suggestions"), "with suggestions").clients.tls
    assert tls is not None
    assert tls.server_name == "triton.example.org"


def test_the_rate_is_little_for_what_the_statistics_say() -> None:
    config = config_of(tensor("x", "FP32", 4))
    wanted = Wanted((URL,), "http", None, None, "s.yaml")
    for infer_ns, rate_hz in ((0.0, 20.0), (1e6, 20.0), (30e6, 10.0), (2e9, 0.1), (60e9, 0.1), (0.7e9, 0.4)):
        text = draft(ServedModel("m", "1", ("1",), config, int(infer_ns > 0), infer_ns), ("a", "b"), wanted)
        scenario = scenario_from_mapping(parse_yaml(text, "drafted"), "drafted")
        arrivals: list[Any] = [phase.arrivals for phase in scenario.phases if phase.arrivals]
        assert {one.rate_hz for one in arrivals} == {rate_hz, 2 * rate_hz}
        assert ("It has answered 1 requests" in text) == (infer_ns > 0)
        assert "its steps end in a, b" in text


def test_names_of_any_letters_are_written_as_they_are() -> None:
    odd = 'müde "x": # \n'
    _, scenario = drafted({**config_of(tensor(odd, "FP32", 4)), "name": odd})
    assert (scenario.models[0].model.name, scenario.name) == (odd, "m-de-x")
    assert list(scenario.clients.inputs or {}) == [odd]
    assert drafted({**config_of(tensor("x", "FP32", 4)), "name": "ß"})[1].name == "model"


@given(st.text(min_size=1))
def test_a_text_is_read_back_as_it_was(text: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # no text of UTF-8
        return
    assert parse_yaml(f"{scalar(text)}: {scalar(text)}  # {scalar(text)}", "x") == {text: text}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[ScriptedControl]:
    """A server without models; the current folder is a new one."""
    ScriptedControl.asked = []
    ScriptedControl.answers = {READY: {}, "/v2": {"version": "2.51.0"}, INDEX: []}
    for module in (squall.cluster.node.endpoint, squall.cluster.commands.served_models):
        monkeypatch.setattr(module, "Control", ScriptedControl)
    monkeypatch.chdir(tmp_path)
    return ScriptedControl


def serve(name: str, *versions: str, **config: Any) -> None:
    """Adds a model that is ready."""
    answers, path = ScriptedControl.answers, f"/v2/models/{name}"
    answers |= {f"{path}/ready": {}, path: {"name": name, "versions": list(versions)}}
    made = {**config_of(tensor("x", "FP32", 4)), **config, "name": name}
    answers[f"{path}/config"] = made
    for version in versions:
        answers |= {f"{path}/versions/{version}/ready": {}, f"{path}/versions/{version}/config": made}
        answers[INDEX].append({"name": name, "version": version, "state": "READY"})


def refusal(*arguments: str, of: type[SquallError] = ScenarioError, server: str = URL) -> str:
    done = CliRunner().invoke(app, ["init", "--server", server, *arguments])
    assert isinstance(done.exception, of), done.output
    return str(done.exception)


def test_one_model_is_taken_and_written(server: type[ScriptedControl]) -> None:
    serve("lone", "1", "3")
    done = CliRunner().invoke(app, ["init", "--server", f"{URL}/"])
    assert (done.exit_code, done.stderr, done.stdout) == (
        0,
        "scenario.yaml is written: squall run scenario.yaml\n",
        "",
    )
    scenario = load_scenario("scenario.yaml")
    assert (scenario.models[0].model.name, scenario.models[0].model.version, scenario.server.url) == (
        "lone",
        None,
        URL,
    )
    assert list(Path().iterdir()) == [Path("scenario.yaml")]
    assert all(f"{URL}/v2" in path for path in server.asked)
    printed = CliRunner().invoke(app, ["init", "--server", URL, "--version", "1", "--out", "-"])
    assert (
        scenario_from_mapping(parse_yaml(printed.stdout, "printed"), "printed").models[0].model.version == "1"
    )


@pytest.mark.usefixtures("server")
def test_the_command_that_is_offered_quotes_the_file() -> None:
    serve("lone", "1")
    done = CliRunner().invoke(app, ["init", "--server", URL, "--out", "a;b.yaml"])
    assert done.stderr == "a;b.yaml is written: squall run 'a;b.yaml'\n"
    assert "`squall run 'a;b.yaml'` sends the load" in Path("a;b.yaml").read_text()


@pytest.mark.usefixtures("server")
def test_a_file_that_is_there_stays_unless_it_is_forced() -> None:
    serve("lone", "1")
    path = Path("scenario.yaml")
    path.write_text("mine")
    assert refusal() == "--out scenario.yaml: is there already; --force replaces it, --out names another file"
    assert path.read_text() == "mine"
    assert CliRunner().invoke(app, ["init", "--server", URL, "--force"]).exit_code == 0
    assert load_scenario(path).models[0].model.name == "lone"
    assert "cannot be written" in refusal("--out", "no/such/folder.yaml")


@pytest.mark.usefixtures("server")
def test_several_models_are_listed() -> None:
    serve("b", "2", "1")
    serve("a", "1", max_batch_size=0)
    serve("c", "1", input=[tensor("x", "FP128", 4)])
    serve("d", "1", model_transaction_policy={"decoupled": True}, ensemble_scheduling={"step": []})
    done = CliRunner().invoke(app, ["init", "--server", URL], env={"COLUMNS": "100"})
    assert isinstance(done.exception, ScenarioError)
    assert str(done.exception) == f"--model: {URL} has 4 models that are ready, name one: a, b, c, d"
    assert [" ".join(line.split()) for line in done.stderr.splitlines() if line[:1] in "Mabcd"] == [
        "Model Version Inputs Rows Kind",
        "a 1 x FP32 [4] 1 unbatched",
        "b 2, 1 x FP32 [4] 8 batched",
        "c 1 x FP128 [4] 8 batched (not yet)",
        "d 1 x FP32 [4] 8 decoupled",
    ]
    assert done.stdout == ""
    assert not Path("scenario.yaml").exists()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"input": [tensor("x", "FP128", 4)]}, "input x has datatype FP128, squall makes BOOL, UINT8"),
        ({"input": [tensor("x", "INT32", 2, is_shape_tensor=True)]}, "its input x is a shape tensor"),
        ({"input": []}, "its configuration on the server names no inputs"),
        (
            {"model_transaction_policy": {"decoupled": True}, "input": [tensor("image", "FP32", 4, 4)]},
            "over HTTP carries inputs of one dimension, and image has more: use --protocol grpc",
        ),
    ],
)
def test_what_squall_cannot_load_is_said_in_one_line(config: dict[str, Any], why: str) -> None:
    serve("stream", "1", model_transaction_policy={"decoupled": True})
    serve("one", "1", **config)
    said = refusal("--model", "one", of=TargetError)
    assert why in said
    assert "one" in said
    assert "\n" not in said
    assert not Path("scenario.yaml").exists()


HUGE = 10**30
ODD_CONFIGS: list[dict[str, Any]] = [
    {"input": [tensor("x", "FP32", -7)]},
    {"input": [tensor("x", "FP32", HUGE)]},
    {"input": [tensor("x", "FP32", 0, 2**31 - 1, 2**31 - 1, 2**31 - 1)]},
    {"input": [tensor("x", "FP32", 2**31 - 1)]},
    {"input": [tensor("x", "FP32", 4_096, 4_096, 5)]},
    {"input": [tensor("x", "BYTES", 4_096, 512)]},
    {"input": [{**tensor("x", "FP32"), "dims": ["many"]}]},
    {"input": [{**tensor("x", "FP32"), "dims": [[1]]}]},
    {"input": [{**tensor("x", "FP32"), "dims": None}]},
    {"input": [tensor("x", "FP32", *[1] * 65)]},
    {"input": [{**tensor("x", "FP32", 1), "name": 5}]},
    {"input": [tensor("", "FP32", 1)]},
    {"input": [tensor(f"x{number}", "FP32", 1) for number in range(4_097)]},
    {"input": "INPUT"},
    {"input": 5},
    {"output": [5]},
    {"max_batch_size": HUGE},
    {"max_batch_size": -1},
    {"max_batch_size": "9" * 5_000},
    {"parameters": ["drawn.x"]},
    {"parameters": {"drawn.x": [1]}},
    {"dynamic_batching": [1]},
    {"dynamic_batching": {"max_queue_delay_microseconds": HUGE}},
    {"dynamic_batching": {"priority_levels": "many"}},
    {"instance_group": 5},
    {"instance_group": [{"count": HUGE}]},
    {"instance_group": [{"gpus": 5}]},
    {"response_cache": [1]},
    {"ensemble_scheduling": [1]},
    {"ensemble_scheduling": {"step": 5}},
    {"ensemble_scheduling": {"step": [{"model_name": 5}]}},
    {"ensemble_scheduling": {"step": [{"model_name": "../x"}]}},
    {"ensemble_scheduling": {"step": [{"model_name": "x"}] * 1_001}},
]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("config", ODD_CONFIGS, ids=lambda config: str(config)[:50])
@pytest.mark.parametrize("named", [(), ("--model", "one")])
def test_an_odd_configuration_is_one_line(config: dict[str, Any], named: tuple[str, ...]) -> None:
    serve("one", "1", **config)
    said = refusal(*named, of=TargetError)
    assert "\n" not in said
    assert len(said) < 500
    assert not Path("scenario.yaml").exists()


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v2/models/one", {"name": "one", "versions": 5}),
        ("/v2/models/one", {"name": "one", "versions": ["1"] * 1_001}),
        ("/v2/models/one", {"name": "one", "versions": ["9" * 5_000, "../1", "\u0661"]}),
        ("/v2/models/one/versions/1/config", {**config_of(), "name": "other"}),
        ("/v2/models/one/versions/1/config", [1]),
        ("/v2", 5),
        (INDEX, 5),
        (INDEX, [5]),
        (INDEX, [{"name": 5, "state": "READY"}]),
        (INDEX, [{"name": "../one", "state": "READY"}]),
        (INDEX, [{"name": ["one"], "state": "READY"}]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_odd_answer_is_one_line(path: str, answer: Any) -> None:
    serve("one", "1")
    ScriptedControl.answers[path] = answer
    said = refusal(of=TargetError)
    assert "\n" not in said
    assert len(said) < 500


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("count", [10**30, "9" * 400, [1], None, -1])
def test_odd_statistics_are_none(count: Any) -> None:
    serve("one", "1")
    counted = {"success": {"count": count}, "compute_infer": {"count": 1, "ns": count}}
    ScriptedControl.answers["/v2/models/one/versions/1/stats"] = {
        "model_stats": [{"inference_stats": counted}]
    }
    assert CliRunner().invoke(app, ["init", "--server", URL]).exit_code == 0
    assert "It has answered" not in Path("scenario.yaml").read_text()


@pytest.mark.usefixtures("server")
def test_a_message_lists_few_of_many_models() -> None:
    for number in range(30):
        serve(f"model-{number:02}", "1")
    assert refusal().endswith("model-18 and 11 more")


@pytest.mark.usefixtures("server")
def test_a_stateful_and_a_decoupled_model_get_what_they_need() -> None:
    serve("steps", "1", sequence_batching={"oldest": {}})
    assert CliRunner().invoke(app, ["init", "--server", URL]).exit_code == 0
    sequences = load_scenario(Path("scenario.yaml")).clients.sequences
    assert sequences is not None
    assert sequences.concurrent == 8
    serve("talk", "1", model_transaction_policy={"decoupled": True})
    assert CliRunner().invoke(app, ["init", "--server", URL, "--model", "talk", "--force"]).exit_code == 0
    assert load_scenario(Path("scenario.yaml")).clients.sequences is None
    assert "  # stream: {tokens: " in Path("scenario.yaml").read_text()


@pytest.mark.usefixtures("server")
def test_a_server_or_model_that_is_not_there_is_said() -> None:
    assert (
        refusal(of=TargetError) == f"{URL} lists no model that is ready; if it has one, name it with --model"
    )
    serve("lone", "1")
    assert refusal("--model", "bone", of=TargetError).endswith("it has lone")
    assert refusal("--version", "7", of=ScenarioError).startswith(f"--model: {URL} has 0 models")
    assert refusal(server="h:8000").startswith("--server: url: 'h:8000' must be of the form http://host:port")
    assert "must be a whole number from 1" in refusal("--version", "x")
    assert "--server: grpc_port: 0" in refusal("--grpc-port", "0")
    ScriptedControl.answers.clear()
    assert refusal(of=TargetError) == f"no Triton is ready at {URL}: status 404"
    assert "for others write the scenario by hand with clients.tls" in refusal(
        of=TargetError, server="https://h"
    )
    ScriptedControl.answers[READY] = {}  # as at the port of the metrics
    assert refusal(of=TargetError).startswith(
        f"{URL} does not answer like a Triton server: status 404; is it its HTTP"
    )


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    "why", ["the server closed the connection", "[SSL: WRONG_VERSION_NUMBER] wrong version"]
)
def test_a_server_without_tls_at_an_https_url_is_told(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(squall.cluster.commands.served_models, "why_not_there", lambda *_: why)
    told = refusal(of=TargetError, server="https://h:8000")
    assert told.startswith(
        f"no Triton is ready at https://h:8000: {why}; a server that speaks no TLS has an http:// URL; init"
    )


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ("it does not speak HTTP (BadStatusLine)", "a server that speaks TLS has an https:// URL"),
    ],
)
def test_what_a_first_look_cannot_do_is_said(
    server: type[ScriptedControl], monkeypatch: pytest.MonkeyPatch, why: str, hint: str
) -> None:
    monkeypatch.setattr(squall.cluster.commands.served_models, "why_not_there", lambda *_: why)
    assert refusal(of=TargetError).startswith(f"no Triton is ready at {URL}: {why}; {hint}")
    assert server.asked == []


@pytest.mark.usefixtures("server")
def test_several_servers_have_one_model() -> None:
    serve("lone", "1")
    done = CliRunner().invoke(app, ["init", "--server", URL, "--server", "http://i:8000", "--out", "-"])
    scenario = scenario_from_mapping(parse_yaml(done.stdout, "printed"), "printed")
    assert [entry.url for entry in scenario.servers or ()] == [URL, "http://i:8000"]
    assert [line for line in done.stdout.splitlines() if _KEY.match(line) and "  # " not in line] == []


@pytest.mark.parametrize("together_ns", [5_000_000, 20_000_000, 100_000_000])
def test_the_warm_up_brings_as_many_requests_at_once_as_the_measured_phase(together_ns: int) -> None:
    """What arrives within an execution is the next batch: no size of it is new when it is measured."""
    plan = plan_scenario(drafted(config_of(tensor("x", "FP32", 4)))[1])
    most = {}
    for span in plan.spans:
        own = plan.offset_ns[(plan.offset_ns >= span.start_ns) & (plan.offset_ns < span.end_ns)]
        if len(own):
            within = np.searchsorted(own, own + together_ns) - np.arange(len(own))
            most[span.name] = int(within.max())
    assert most["warmup"] >= most["measure"] >= 2
