"""Command lines as perf_analyzer's users type them: read as getopt_long reads them, wrong ones refused in one line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from squall.cluster.cli import app
from squall.cluster.commands.perf.asked import Asked, asked_of
from squall.cluster.commands.perf.flags import FLAGS, help_text, parse
from squall.cluster.commands.perf.honoured import refuse
from squall.scenarios.errors import ScenarioError

HONOURED = [
    "-m simple",
    "-m my_model",
    "-m mymodel -b 4 --shape IMAGE:3,224,224",
    "-m inception_graphdef --concurrency-range 1:4 -f perf.csv",
    "-m inception_graphdef --percentile=95 --concurrency-range 1:4",
    "-m resnet50_libtorch --collect-metrics -f output.csv --verbose-csv",
    "-m densenet_onnx --concurrency-range 64 --max-threads 32 -u localhost:8001 -i gRPC",
    "-m simple --concurrency-range=4",
    "-m simple --request-rate-range=20",
    "-m simple --request-rate-range 100:200:50 --request-distribution poisson -a",
    "-m simple --shared-memory=system",
    "-m simple --input-data zero --string-length 16",
    "-m simple --bls-composing-models=modelA:3,modelB",
    "-m simple -i grpc -u localhost:8001 --async --percentile 95 -p 9000 -s 20 -r 5 -l 300 -v -v",
    "-m simple --measurement-mode=count_windows --measurement-request-count=100",
    "-m simple -d -t 2 -c 8 -z",
    "-m simple --concurrency-range 1:64:1 --binary-search -l 20",
    "-m simple --trace-level TIMESTAMPS --trace-rate 100 --trace-count -1 --log-frequency 0",
    "-m simple --num-of-sequences 8 --sequence-length=20 --sequence-id-range 1:100 --serial-sequences",
    "-m simple -H Authorization:Bearer -H 'X-Trace: a:b'",
    "-m simple --string-data hello",
    "-m simple --input-tensor-format json --output-tensor-format=json",
    "-m model -i grpc --async --streaming --profile-export-file profile.json --request-parameter max_tokens:256:int",
]
"""Of its documentation and of pages about it; files that they name aside."""
REFUSED = {
    "-m model -i grpc --async --streaming --profile-export-file profile.json --periodic-concurrency-range 10:100:30"
    " --request-period 10 --request-parameter max_tokens:256:int": [
        "--periodic-concurrency-range", "--request-period",
    ],
    "-m facebook/opt-125m --input-data=input_data.json --service-kind=openai --endpoint=v1/chat/completions --async": [
        "--input-data", "--service-kind",
    ],
    "-m facebook/opt-125m --session-concurrency=2 --input-data=input_data.json --service-kind=openai"
    " --profile-export-file=profile_export.json --endpoint=v1/chat/completions --async": [
        "--session-concurrency", "--service-kind",
    ],
    "-m my_model --service-kind=triton_c_api --triton-server-directory=/opt/tritonserver"
    " --model-repository=/my/model/repository": ["--service-kind"],
    "--service-kind=dynamic_grpc -u=localhost:8001 --input-data=inputs.json --grpc-method=v1.Simple/Echo": [
        "--service-kind", "--grpc-method",
    ],
    "-m resnet50 --service-kind torchserve -i http -u localhost:8080 -b 1 -p 5000 --input-data data.json": [
        "--service-kind",
    ],
    "-m bert4rec -u 127.0.0.1:8001 -i grpc --input-data ./data.json --request-rate-range 1500:3000:500": [
        "--input-data",
    ],
    "-m simple --shared-memory=cuda": ["--shared-memory"],
    "-m simple --input-tensor-format json": ["--input-tensor-format"],
    "-m simple --output-tensor-format=json": ["--output-tensor-format"],
    "-m simple -i grpc --grpc-compression-algorithm deflate": ["--grpc-compression-algorithm"],
    "-m simple --schedule 1,2,3": ["--schedule"],
    "-m simple --enable-mpi": ["--enable-mpi"],
}  # fmt: skip


def asked(line: str) -> Asked:
    typed = parse(shlex.split(line))
    refuse(typed)
    return asked_of(typed)


@pytest.mark.parametrize("line", HONOURED)
def test_a_command_line_of_its_documentation_is_taken(line: str) -> None:
    assert asked(line).model == shlex.split(line)[1]


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_honoured_is_named_flag_by_flag(line: str) -> None:
    named = [flag for flag in REFUSED[line] if flag != "--input-data"]
    if not named:
        with pytest.raises(
            ScenarioError, match=r"--input-data: '.*' is neither zero nor random, and no such file"
        ):
            asked(line)
        return
    with pytest.raises(ScenarioError, match="cannot be honoured") as refused:
        asked(line)
    assert all(f"{flag} (" in str(refused.value) for flag in named)


def test_the_shell_of_squall_hands_every_word_on_as_it_is() -> None:
    words = ["-vvz", "-m=a", "--trace-count", "-1", "--schedule", "-q", "--streaming", "--help-me-not"]
    done = CliRunner().invoke(app, ["perf", *words])
    assert isinstance(done.exception, ScenarioError)
    assert str(done.exception).startswith("perf: --help-me-not: perf_analyzer has no such flag")
    done = CliRunner().invoke(app, ["perf", *words[:-1]])
    assert str(done.exception).startswith("perf: cannot be honoured: --schedule (")
    for asked_for in ([], ["--help"], ["-h"]):
        done = CliRunner().invoke(app, ["perf", *asked_for])
        assert (done.exit_code, done.output) == (0, f"{help_text()}\n")


def test_every_flag_is_in_one_of_the_examples_or_below() -> None:
    typed = {name for line in [*HONOURED, *REFUSED] for name in parse(shlex.split(line))}
    elsewhere = {flag.name for flag in FLAGS if flag.name.startswith("ssl-") or flag.kept == "ours"}
    rest = {flag.name for flag in FLAGS} - typed - elsewhere
    assert rest == {
        "x", "sync", "data-directory", "output-shared-memory-size", "metrics-url", "metrics-interval",
        "model-signature-name", "sequence-length-variation", "request-intervals", "request-count",
        "warmup-request-count", "version",
    }  # fmt: skip


def test_values_stand_behind_an_equals_sign_in_the_next_word_or_in_the_same_one() -> None:
    ways = ["-m a -b 4 --percentile 95", "-ma -b4 --percentile=95", "-m=a -b=4 --percenti 95"]
    assert {(one.model, one.batch_size, one.percentile) for one in map(asked, ways)} == {("a", 4, 95)}


def test_several_letters_stand_together_and_a_value_may_begin_with_a_dash() -> None:
    assert {name: len(values) for name, values in parse(["-vvz", "-m", "a"]).items()} == {
        "v": 2,
        "z": 1,
        "m": 1,
    }
    assert parse(["--trace-count", "-1"]) == {"trace-count": ["-1"]}


def test_what_is_not_stated_is_as_perf_analyzer_has_it() -> None:
    found = asked("-m a")
    assert (found.mode, found.protocol, found.batch_size, found.window_ns, found.max_trials) == (
        "concurrency", "http", 1, 5_000_000_000, 10,
    )  # fmt: skip
    assert (found.stability_ratio, found.percentile, found.input_data, found.string_length) == (
        0.1,
        None,
        ("random",),
        128,
    )
    assert found.levels is not None
    assert found.levels.start == 1
    assert (found.levels.has_several, found.latency_threshold_ns) == (False, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-m a --concurency-range 1", "did you mean --concurrency-range?"),
        ("-m a --batch-size 3", "did you mean -b?"),
        ("-m a --zzz", "perf_analyzer has no such flag"),
        ("-m a -q", "-q: perf_analyzer has no such flag"),
        ("-m a --ssl-grpc 1", "--ssl-grpc may be --ssl-grpc-use-ssl, "),
        ("-m a word", "'word' belongs to no flag"),
        ("-m", "-m needs a value: MODEL"),
        ("-m a --percentile", "--percentile needs a value"),
        ("-m a --streaming=yes", "--streaming takes no value"),
        ("-b 1", "-m MODEL is missing"),
        ("-m a -b 0", "-b: 0 is below 1"),
        ("-m a -b x", "-b: 'x' is not a whole number"),
        ("-m a -s -3", "--stability-percentage: -3 is not from 0 on"),
        ("-m a -s nan", "--stability-percentage: nan is not from 0 on"),
        ("-m a -i tcp", "-i: 'tcp' is none of http, grpc"),
        ("-m a --percentile 100", "--percentile: 100 is neither -1 nor from 1 to 99"),
        ("-m a --concurrency-range 1:2 --request-rate-range 3", "exclude each other"),
        ("-m a -t 2 --concurrency-range 1", "exclude each other"),
        ("-m a --concurrency-range 1:0", "needs --latency-threshold"),
        ("-m a --binary-search --concurrency-range 1:4", "--binary-search: needs --latency-threshold"),
        ("-m a --binary-search -l 3 --concurrency-range 4", "--binary-search: needs a range with an end"),
        ("-m a --request-count 5 --concurrency-range 1:4", "--request-count: is for one level"),
        ("-m a --request-count 5 --concurrency-range 6", "--request-count: 5 is below the level of 6"),
        ("-m a --warmup-request-count 5 --request-rate-range 1:4", "--warmup-request-count: is for one level"),
        ("-m a --async --sync", "--async and --sync exclude each other"),
        ("-m a --metrics-url x:1/metrics", "need --collect-metrics"),
        ("-m a --shape IMAGE", "--shape: 'IMAGE' is not name:dim,dim"),
        ("-m a --shape IMAGE:3,0", "dims above 0"),
        ("-m a -H nothing", "-H: 'nothing' is not NAME:VALUE"),
        ("-m a -f /nowhere/a.csv", "--latency-report-file: /nowhere/a.csv: /nowhere is no folder"),
        ("-m a --profile-export-file /tmp", "--profile-export-file: /tmp: is a folder"),
        ("-m a --request-intervals /nowhere", "--request-intervals: /nowhere: no such file"),
        ("-m a --ssl-https-ca-certificates-file /nowhere", "no such file"),
        ("-m a --streaming", "--streaming: needs -i grpc"),
        ("-m a --streaming -i grpc --sync", "--streaming: needs -i grpc, and not --sync"),
        ("-m a --request-parameter k:1", "--request-parameter: 'k:1' is not name:value:type"),
        ("-m a --request-parameter a:b:c:string", "is not name:value:type"),
        ("-m a --request-parameter :1:int", "is not name:value:type"),
        ("-m a --request-parameter k:1.5:int", "'1.5' is not a whole number"),
        ("-m a --request-parameter k:yes:bool", "'yes' is neither true nor false"),
        ("-m a --request-parameter k:1.5:double", "type 'double' is none of bool, int, string"),
        ("-m a --sequence-length 0", "--sequence-length: 0 is below 1"),
        ("-m a --num-of-sequences 0", "--num-of-sequences: 0 is below 1"),
        ("-m a --ssl-https-private-key-type DER", "squall reads PEM files"),
        ("-m a --ssl-https-verify-host 0", "with its name"),
        ("-m a --ssl-https-verify-peer 2", "'2' is none of 0, 1"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_one_line_that_says_what_is_wrong(line: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        asked(line)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_export_does_not_write_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "there.json").touch()
    with pytest.raises(ScenarioError, match="is there already"):
        asked(f"-m a --profile-export-file {tmp_path}/there.json")


def test_old_flags_are_a_range_of_concurrency() -> None:
    for line, start, end in [("-m a -t 3", 3, 3), ("-m a -d -c 8", 1, 8), ("-m a -d -t 2 -c 8", 2, 8)]:
        levels = asked(line).levels
        assert levels is not None
        assert [levels.start, levels.end] == [start, end]


def test_the_help_names_every_flag_and_no_flag_is_there_twice() -> None:
    names = [name for flag in FLAGS for name in (flag.name, flag.short) if name]
    assert len(names) == len(set(names))
    assert all(flag.shown in help_text() for flag in FLAGS)
