"""The code that Triton runs, against the reference heads: answers, batch records and ranges."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from squall.cluster.node.batches import read_batches
from squall.models.heads import forward
from squall.models.payload import ID_DIGITS, LEAST_TRIAL_ID
from squall.models.repository import device_of, write_repository
from squall.models.spec import HEADS
from squall.scenarios.config.models import ModelConfig
from tests.tolerance import TOLERANCE
from tests.unit.models.test_heads import weights_of, x_of
from tests.unit.models.test_repository import parsed


class Tensor:
    """As much of pb_utils.Tensor as the model uses, on numpy's own DLPack."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.array = name, array

    @classmethod
    def from_dlpack(cls, name: str, capsule: Any) -> Tensor:
        return cls(name, np.from_dlpack(_Capsule(capsule)).copy())


class _Capsule:
    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Request:
    def __init__(self, request_id: str, x: Any) -> None:
        self._id, self.x = request_id, x

    def request_id(self) -> str:
        return self._id


class ModelException(Exception):
    """Stands for pb_utils.TritonModelException."""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    utils = types.ModuleType("triton_python_backend_utils")
    utils.Tensor = Tensor  # type: ignore[attr-defined]
    utils.get_input_tensor_by_name = lambda request, _: request.x  # type: ignore[attr-defined]
    utils.InferenceResponse = lambda tensors: tensors[0].array  # type: ignore[attr-defined]
    utils.TritonModelException = ModelException  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("heads", "forward_torch", "networks_torch", "encoder_weights"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    path = Path(__file__).parents[3] / "models" / "backend" / "model.py"
    spec = importlib.util.spec_from_file_location("served_model", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def served(backend: Any, folder: Path, head: str, **keys: Any) -> Any:
    """The model, initialised as Triton does it, from the repository that is written for it."""
    sizes, _ = weights_of(head)
    served_as = ModelConfig.model_validate({"name": head, "settings": sizes, **keys})
    (folder / "rec").mkdir(exist_ok=True)
    write_repository(folder, served_as, folder / "rec")
    config = MessageToDict(
        parsed((folder / head / "config.pbtxt").read_text()), preserving_proto_field_name=True
    )
    model = backend.TritonPythonModel()
    model.initialize(
        {
            "model_config": json.dumps(config), "model_repository": str(folder / head), "model_version": "1",
            "model_instance_name": f"{head}_0", "model_instance_kind": device_of(served_as).upper(),
            "model_instance_device_id": "0",
        }
    )  # fmt: skip
    return model


def lines_of(folder: Path, head: str = "linear_head") -> list[dict[str, Any]]:
    text = (folder / "rec" / f"{head}_0.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


TORCH = {"framework": "torch", "device": "cpu"}


@pytest.mark.parametrize("keys", [{}, TORCH, {**TORCH, "precision": "fp16"}])
@pytest.mark.parametrize("head", HEADS)
def test_the_served_code_gives_the_reference_answer_and_records_the_batch(
    backend: Any, tmp_path: Path, head: str, keys: dict[str, str]
) -> None:
    if keys:
        pytest.importorskip("torch", reason="torch is not installed")
    model = served(backend, tmp_path, head, **keys)
    x = x_of(7)
    parts = (x[:1], x[1:4], x[4:])
    answers = model.execute([Request(f"{i:012d}", part) for i, part in enumerate(parts)])
    model.execute([Request("solo", x[:2])])
    model.finalize()
    assert [len(answer) for answer in answers] == [1, 3, 3]
    expected = forward(weights_of(head)[1], x)
    rtol, atol = TOLERANCE[keys.get("precision", "fp32")]
    np.testing.assert_allclose(np.concatenate(answers), expected, rtol=rtol, atol=atol)
    if "precision" in keys:  # it was computed in half precision: float32 comes much closer
        assert np.abs(np.concatenate(answers) - expected).max() > 1e-4
    lines = lines_of(tmp_path, head)
    assert lines[0] == {"instance": f"{head}_0", "device": -1, "pid": os.getpid()}
    assert [(line["b"], line["r"], line["i"]) for line in lines[1:]] == [
        (0, 7, ["000000000000", "000000000001", "000000000002"]), (1, 2, ["solo"])
    ]  # fmt: skip
    assert all(line["s"] < line["e"] for line in lines[1:])


def test_a_full_disk_loses_records_and_no_answer(backend: Any, tmp_path: Path) -> None:
    model = served(backend, tmp_path, "linear_head")
    record = model._record
    whole, record._fd = record._fd, os.open("/dev/full", os.O_WRONLY)
    assert len(model.execute([Request("a", x_of(1))])) == 1
    os.close(record._fd)
    record._fd = whole
    model.execute([Request("b", x_of(1))])
    model.finalize()
    last = lines_of(tmp_path)[-1]
    assert (last["b"], last["i"], last["lost"]) == (1, ["b"], 1)


def test_after_a_line_that_was_cut_the_next_stands_on_its_own(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = backend._Record(str(tmp_path), "i", -1)
    write = os.write
    monkeypatch.setattr(backend.os, "write", lambda fd, data: write(fd, data[:9]))
    record.add(0, 1, 2, 3, ["a"])
    monkeypatch.setattr(backend.os, "write", write)
    record.add(1, 3, 4, 1, ["b"])
    record.add(2, 3, 4, 1, ["c"])
    record.close()
    lines = (tmp_path / "i.jsonl").read_text().splitlines()
    assert len(lines) == 4
    assert [json.loads(line)["b"] for line in lines[2:]] == [1, 2]
    assert json.loads(lines[2])["lost"] == 1


def test_instances_of_one_name_on_two_gpus_record_apart(backend: Any, tmp_path: Path) -> None:
    """Triton 2.51 names those of all GPUs alike, and both count their batches from 0."""
    records = [backend._Record(str(tmp_path), "m_0_0", device) for device in (0, 1, -1)]
    for start_ns, record in enumerate(records):
        record.add(record.next_batch_id, start_ns, 9, 1, [f"{start_ns:012d}"])
        record.close()
    labels = {"run": "r", "node": "node-0", "server": "server-0", "model": "m", "version": "1"}
    losses: list[str] = []
    rows = [row for table in read_batches(tmp_path, labels, losses) for row in table.to_pylist()]
    assert losses == []
    assert sorted((row["instance"], row["instance_device"], row["batch_id"], row["start_ns"]) for row in rows) == [
        ("m_0_0", -1, 0, 2), ("m_0_0", 0, 0, 0), ("m_0_0", 1, 0, 1)
    ]  # fmt: skip
    again = backend._Record(str(tmp_path), "m_0_0", 1)
    assert again.next_batch_id == 1, "it goes on with its own"
    again.close()


def test_a_batch_keeps_the_id_that_its_range_bears_where_a_request_was_tried_before_the_load(
    backend: Any, tmp_path: Path
) -> None:
    record = backend._Record(str(tmp_path), "m_0_0", -1)
    for batch_id, number in enumerate((LEAST_TRIAL_ID, 0, 1)):
        record.add(batch_id, batch_id, 9, 1, [f"{number:0{ID_DIGITS}d}"])
    record.close()
    (table,) = read_batches(tmp_path, {"run": "r"}, [])
    assert [(row["batch_id"], row["request_ids"]) for row in table.to_pylist()] == [(1, [0]), (2, [1])]


def test_a_second_process_of_one_name_and_device_is_an_instance_of_its_own(
    backend: Any, tmp_path: Path
) -> None:
    first, second = (backend._Record(str(tmp_path), "twin_0", 1) for _ in range(2))
    for record in (first, second):
        record.add(record.next_batch_id, 1, 2, 1, ["a"])
    assert (first.instance, second.instance) == ("twin_0", "twin_0:2")
    first.close()
    again = backend._Record(str(tmp_path), "twin_0", 1)
    assert (again.instance, again.next_batch_id) == ("twin_0", 1), "the name is free again, and goes on"
    again.close()
    second.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["twin_0.gpu1.jsonl", "twin_0:2.gpu1.jsonl"]


def test_batch_ids_go_on_after_a_line_that_a_killed_server_cut(backend: Any, tmp_path: Path) -> None:
    path = tmp_path / "i.jsonl"
    path.write_text('{"instance":"i","pid":1}\n{"b":41,"s":1,"e":2,"r":1,"i":["a"]}\n{"b":42,"s"')
    record = backend._Record(str(tmp_path), "i", -1)
    assert record.next_batch_id == 42
    record.close()
    assert [json.loads(line) for line in path.read_text().splitlines()[-1:]] == [
        {"instance": "i", "device": -1, "pid": os.getpid()}
    ]
    assert path.read_text().splitlines()[2] == '{"b":42,"s"'


def test_a_batch_is_in_a_range_with_its_id_and_the_clock_just_before(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    functions = (seen.append, lambda: seen.append(b"closed"))
    monkeypatch.setattr(backend, "_library_range_functions", lambda: functions)
    model = served(backend, tmp_path, "linear_head")
    before_ns = time.monotonic_ns()
    model.execute([Request("a", x_of(1))])
    model.execute([Request("b", x_of(2))])
    with pytest.raises(ValueError, match="mismatch"):
        model.execute([Request("c", x_of(1)[:, :3])])
    clocks_ns = []
    for batch_id, text in enumerate(seen[::2]):
        *start, clock_ns = text.decode().split("|")
        assert start == ["squall", "linear_head_0", "cpu", str(batch_id)]
        clocks_ns.append(int(clock_ns))
    assert seen[1::2] == [b"closed"] * 3, "that of a batch that fails too"
    assert before_ns < clocks_ns[0] < clocks_ns[1]
    batches = lines_of(tmp_path)[1:]
    assert all(line["s"] <= ns < line["e"] for line, ns in zip(batches, clocks_ns[:2], strict=True))


def test_a_framework_that_is_not_installed_is_told_with_the_mend(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(ModelException) as caught:
        served(backend, tmp_path, "linear_head", framework="torch", device="cpu")
    assert str(caught.value) == (
        "torch is not installed for the Python that Triton embeds: No module named 'torch'; install it into squall's "
        "environment on this node, or set model.framework: numpy, which computes heads, not encoders"
    )
