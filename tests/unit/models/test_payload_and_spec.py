from __future__ import annotations

import json

import numpy as np
import pytest

from squall.models.made import make_inputs
from squall.models.payload import ID_DIGITS, PREFIX, encode_body, encode_id
from squall.models.spec import DATATYPE_BYTES, HEADS, ModelSpec, TensorSpec, head_of, head_spec
from squall.scenarios.errors import ScenarioError, TargetError
from tests.unit.models.cases import cases


def spec_of(*inputs: TensorSpec, max_batch_size: int = 4) -> ModelSpec:
    return ModelSpec("m", "1", inputs, (TensorSpec("OUT", "FP32", (2,)),), max_batch_size)


def test_a_body_gives_back_the_tensors_it_was_made_of() -> None:
    spec = spec_of(*(TensorSpec(name, name, (3, 5)) for name in DATATYPE_BYTES))
    inputs = make_inputs(spec, 4, 2, 7)
    assert [array.nbytes for array in inputs.values()] == [one.n_bytes(4) for one in spec.inputs]
    body = encode_body(spec, inputs)
    data = PREFIX + encode_id(9) + body.suffix
    assert len(data) == body.n_bytes
    content, rest = json.loads(data[: body.n_json_bytes]), data[body.n_json_bytes :]
    assert content["id"] == "0" * (ID_DIGITS - 1) + "9"
    for item in content["inputs"]:
        size, sent = item["parameters"]["binary_data_size"], inputs[item["name"]]
        array = np.frombuffer(rest[:size], sent.dtype.newbyteorder("<")).reshape(item["shape"])
        assert np.array_equal(array, sent)
        rest = rest[size:]
    assert rest == b""


def test_bf16_is_the_upper_half_of_fp32() -> None:
    array = make_inputs(spec_of(TensorSpec("A", "BF16", (1000,))), 1, 0, 1)["A"]
    values = (array.astype(np.uint32) << 16).view(np.float32)
    assert np.isfinite(values).all()
    # mean and variance of 1,000 standard normals: 4 standard errors are 4 / sqrt(1000) and 4 sqrt(2 / 1000)
    assert abs(values.mean()) < 4 / np.sqrt(1000)
    assert abs(values.var() - 1) < 4 * np.sqrt(2 / 1000) + 2**-7  # and the cut-off mantissa


def test_a_model_without_batches_takes_no_batch_dimension() -> None:
    spec = spec_of(TensorSpec("A", "FP32", (3,)), max_batch_size=0)
    assert make_inputs(spec, 1, 0, 1)["A"].shape == (3,)
    with pytest.raises(ScenarioError, match="2 rows, but model m takes at most 1 a request"):
        make_inputs(spec, 2, 0, 1)


@pytest.mark.parametrize(("name", "settings", "text"), cases("test_what_the_zoo_has_not_is_one_line"))
def test_what_the_zoo_has_not_is_one_line(name: str, settings: dict[str, int], text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        head_of(name).sizes(settings)
    assert str(caught.value).startswith(f"model.{text}")


def test_settings_override_the_defaults_and_a_seed_of_zero_is_a_seed() -> None:
    assert HEADS["linear_head"].sizes({"width": 8, "weights_seed": 0}) == {
        "width": 8, "layers": 20, "classes": 2, "weights_seed": 0
    }  # fmt: skip


def test_a_spec_is_read_from_the_servers_config() -> None:
    config = {
        "name": "m", "max_batch_size": 8,
        "input": [{"name": "A", "data_type": "TYPE_FP16", "dims": ["3", "224"]}],
        "output": [{"name": "T", "data_type": "TYPE_STRING", "dims": [1]}],
    }  # fmt: skip
    spec = ModelSpec.from_config(config, "2")
    assert spec.inputs == (TensorSpec("A", "FP16", (3, 224)),)
    assert spec.outputs == (TensorSpec("T", "BYTES", (1,)),)
    assert (spec.version, spec.is_batched, spec.reply_bytes(2)) == ("2", True, None)
    text = {"name": "A", "data_type": "TYPE_STRING", "dims": [1]}
    assert ModelSpec.from_config({**config, "input": [text]}, "1").inputs == (TensorSpec("A", "BYTES", (1,)),)
    for said, is_optional in ((True, True), (False, False), ("true", False)):
        (given,) = ModelSpec.from_config({**config, "input": [{**text, "optional": said}]}, "1").inputs
        assert given.is_optional is is_optional
    strange = {**config, "input": [{**text, "data_type": "TYPE_INVALID"}]}
    with pytest.raises(TargetError, match="input A has datatype INVALID, squall makes BOOL"):
        ModelSpec.from_config(strange, "1")


@pytest.mark.parametrize(
    ("head", "n_bytes"), [("linear_head", 3 * 2 * 4), ("linear_head_stacked", 3 * 5 * 2 * 4)]
)
def test_the_size_of_a_heads_reply_is_rows_times_outputs_times_four(head: str, n_bytes: int) -> None:
    assert head_spec(head, "1", HEADS[head].sizes({}), 8).reply_bytes(3) == n_bytes
