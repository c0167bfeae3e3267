"""`squall models build`: options that a backend does not take, and what is written where it takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

from squall.cluster.cli import app
from squall.scenarios.errors import SquallError


def build(*options: str) -> str:
    done = CliRunner().invoke(app, ["models", "build", "linear_head", *options])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--backend jax", "--backend: 'jax' is not one of python, onnxruntime, tensorrt"),
        ("--opset 18", "--opset is for --backend onnxruntime and tensorrt, not python"),
        ("--workspace 4GiB", "--workspace is for --backend tensorrt, not python"),
        (
            "--backend onnxruntime --timing-cache t",
            "--timing-cache is for --backend tensorrt, not onnxruntime",
        ),
        ("--backend tensorrt --framework torch", "--framework is for --backend python, not tensorrt"),
        ("--backend tensorrt --device cpu", "--backend tensorrt computes on GPUs alone: leave --device out"),
        (
            "--backend onnxruntime --cuda-graphs",
            "--cuda-graphs is for --backend python and tensorrt, not onnxruntime",
        ),
        ("--backend onnxruntime --accelerator tensorrt", "--accelerator is for --device gpu"),
        ("--backend onnxruntime --accelerator openvino", "--accelerator: 'openvino' is not tensorrt"),
        ("--backend onnxruntime --device gpu --threads 2", "--threads are those of an instance on the CPU"),
        ("--busy-wait", "--busy-wait is for --backend tensorrt, not python"),
        ("--preferred-batch-size 64", "preferred batch size 64 is above max_batch_size 32"),
        ("--queue-delay 5", "queue_delay: '5' has no unit"),
        ("--backend tensorrt --workspace 4", "--workspace: '4' has no unit"),
        ("--device tpu --framework torch", "device: 'tpu' must be 'cpu' or 'gpu'"),
        ("--backend tensorrt --pageable", "--pageable is for --backend python, not tensorrt"),
        ("--device gpu", "framework numpy computes in fp32 on the CPU: use framework torch"),
        ("--on-timeout drop", "queue.on_timeout: 'drop' must be 'reject' or 'delay'"),
        ("--backend onnxruntime --precision int8", "precision: 'int8' must be 'fp32' or 'fp16'"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_written(
    options: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(SquallError) as caught:
        build("--out", str(tmp_path / "repository"), *options.split())
    assert why in str(caught.value)
    assert not (tmp_path / "repository").exists()


def test_the_queue_that_is_asked_for_stands_in_the_configuration(tmp_path: Path) -> None:
    said = build(
        "--out", str(tmp_path), "--set", "width=16", "-b", "256", "--instances", "2", "--preferred-batch-size", "256",
        "--preferred-batch-size", "128", "--queue-delay", "10ms", "--queue-timeout", "120s", "--queue-size", "20480",
        "--preserve-ordering",
    )  # fmt: skip
    assert said == f"{tmp_path}/linear_head: INPUT FP32 [16] a row, at most 256 rows a batch\n"
    text = (tmp_path / "linear_head" / "config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    batching = config.dynamic_batching
    assert (config.backend, config.instance_group[0].count) == ("python", 2)
    assert (list(batching.preferred_batch_size), batching.preserve_ordering) == ([128, 256], True)
    policy = batching.default_queue_policy
    assert (batching.max_queue_delay_microseconds, policy.max_queue_size) == (10_000, 20_480)
    assert policy.default_timeout_microseconds == 120_000_000
