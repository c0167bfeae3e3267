"""Weights in Hugging Face's names: files found, read and refused."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squall.models.checkpoint import find, read, shapes

NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint16": "BF16"}
HAS_TORCH = importlib.util.find_spec("torch") is not None


def write_safetensors(path: Path, arrays: Mapping[str, Any]) -> None:
    """As the format has it; an array of uint16 is written as BF16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, parts = 0, []
    for name, array in arrays.items():
        parts.append(np.ascontiguousarray(array).tobytes())
        end = at + len(parts[-1])
        kind = NAMES[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


ARRAYS: dict[str, Any] = {
    "bert.a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.LayerNorm.gamma": np.array([1.5, -2.0], np.float16),
    "a.LayerNorm.beta": np.array([0x3FC0, 0xC000], np.uint16),  # 1.5 and -2 in BF16
    "position_ids": np.arange(4),
}


def test_tensors_of_floats_are_read_under_the_encoders_names(tmp_path: Path) -> None:
    file = tmp_path / "x"
    write_safetensors(file, ARRAYS)
    found = read(file)
    assert set(found) == {"a.weight", "a.LayerNorm.weight", "a.LayerNorm.bias"}
    np.testing.assert_array_equal(found["a.weight"], ARRAYS["bert.a.weight"])
    np.testing.assert_array_equal(found["a.LayerNorm.weight"], [1.5, -2])
    np.testing.assert_array_equal(found["a.LayerNorm.bias"], [1.5, -2])
    assert shapes(file)["a.weight"] == (2, 3)


@pytest.mark.skipif(importlib.util.find_spec("safetensors") is None, reason="safetensors is not installed")
def test_what_the_package_writes_is_read_the_same(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    arrays = {name: array for name, array in ARRAYS.items() if array.dtype != np.uint16}
    save_file(arrays, tmp_path / "theirs")
    write_safetensors(tmp_path / "ours", arrays)
    theirs, ours = read(tmp_path / "theirs"), read(tmp_path / "ours")
    assert sorted(theirs) == sorted(ours)
    assert all(np.array_equal(theirs[name], ours[name]) for name in ours)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_a_file_of_torch_is_read_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    import torch

    file = tmp_path / "pytorch_model.bin"
    tensors = {"bert.a.weight": torch.ones(2, 3, dtype=torch.bfloat16), "n": torch.arange(3)}
    torch.save(tensors, file)
    found = read(find(str(tmp_path), {}))
    assert found["a.weight"].dtype == np.float32
    assert list(found) == ["a.weight"]
    assert shapes(file) == {"a.weight": (2, 3), "n": (3,)}
    torch.save({"a": Path("x")}, file)
    with pytest.raises(ValueError, match="is no file of tensors that torch reads"):
        read(file)


def test_a_file_is_found_by_its_path_its_folder_and_its_name_in_the_hubs_cache(tmp_path: Path) -> None:
    blob = tmp_path / "hub" / "models--some--model" / "blobs" / "5e0f"
    snapshot = blob.parents[1] / "snapshots" / "abc"
    for folder in (blob.parent, snapshot, blob.parents[1] / "refs"):
        folder.mkdir(parents=True)
    write_safetensors(blob, ARRAYS)
    (snapshot / "model.safetensors").symlink_to(blob)
    assert find("some/model", {"HF_HOME": str(tmp_path)}) == blob
    (blob.parents[1] / "refs" / "main").write_text("abc\n")
    assert find("some/model", {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HOME": "/elsewhere"}) == blob
    assert find(str(snapshot), {}) == find(str(snapshot / "model.safetensors"), {}) == blob
    with pytest.raises(
        ValueError, match=r"^other/model: no such file or folder, and no model .* downloads nothing"
    ):
        find("other/model", {"HF_HOME": str(tmp_path)})


def test_what_cannot_be_found_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has neither model\.safetensors nor pytorch_model\.bin"):
        find(str(tmp_path), {})
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"its weights are in several files: save them as one model\.safetensors"
    ):
        find(str(tmp_path), {})
    with pytest.raises(ValueError, match=r"^/nowhere/x\.safetensors: no such file or folder$"):
        find("/nowhere/x.safetensors", {})


@pytest.mark.parametrize(
    "broken",
    [
        *(9, 40, -1),  # cut
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        {"dtype": "F32", "shape": [2]},
        [],
    ],
)
def test_a_file_that_does_not_have_what_its_header_says_is_refused(tmp_path: Path, broken: Any) -> None:
    file = tmp_path / "x"
    if isinstance(broken, int):
        write_safetensors(file, ARRAYS)
        file.write_bytes(file.read_bytes()[:broken])
    else:
        text = json.dumps({"a": broken}).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    for reads in (read, shapes):
        with pytest.raises(ValueError, match=r"x: is no whole \.safetensors file"):
            reads(file)
