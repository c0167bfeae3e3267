"""Tensor and model specs: what a model takes and gives, and the models of the zoo with their sizes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from squall.scenarios.errors import ScenarioError, TargetError, way_out

DATATYPE_BYTES = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4,
    "INT64": 8, "FP16": 2, "FP32": 4, "FP64": 8, "BF16": 2,
}  # fmt: skip
"""Bytes an element of each fixed-size datatype of the KServe v2 protocol; BYTES has no fixed size."""
Dims = tuple[int, ...]
"""Sizes of a tensor, axis by axis; of a model's input -1 stands for one that the request chooses."""
Sizes = Mapping[str, int]
"""Of a model of the zoo, by the names of its settings."""
FIRST_TOKEN = 5
"""Of those that squall makes for encoders: smaller ones are special (of XLM-RoBERTa: begin, padding, end, unknown)."""
_RANGE = re.compile(r"(\d{1,19}) (\d{1,19})")
_DRAWN = "drawn."
"""Before the name of an input in a parameter of its model's configuration: `drawn.input_ids`, "5 30521"."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: `dims` without the batch dimension; -1 stands for a size the request chooses. `is_optional`: of an
    input that a request may leave out. `drawn`: of whole numbers, the least and the most that squall makes where a
    scenario says nothing; None: 0 to 99."""

    name: str
    datatype: str
    dims: Dims
    is_optional: bool = False
    drawn: tuple[int, int] | None = field(default=None, compare=False)  # the tensor is the same

    def takes(self, dims: Sequence[int]) -> bool:
        """Whether a tensor of `dims`, without the batch dimension, may be this one."""
        return len(dims) == len(self.dims) and all(
            own in (-1, size) for own, size in zip(self.dims, dims, strict=True)
        )

    def n_bytes(self, rows: int) -> int | None:
        """Size in bytes of a batch of `rows`; None where the datatype or a dimension is not fixed."""
        if self.datatype not in DATATYPE_BYTES or -1 in self.dims:
            return None
        return rows * prod(self.dims) * DATATYPE_BYTES[self.datatype]


@dataclass(frozen=True)
class ModelSpec:
    """What a request to a model holds and what its reply must hold.

    `is_batched`: tensors have a leading batch dimension of 1 to `max_batch_size` rows. `is_decoupled`: it, or a
    step of it, answers a request with any number of responses. `is_stateful`: requests are of sequences.
    `n_priorities`: levels of its queue, 0 where its configuration states none.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    is_decoupled: bool = False
    is_stateful: bool = False
    n_priorities: int = field(
        default=0, compare=False
    )  # models that differ in it alone take the same requests

    @property
    def is_batched(self) -> bool:
        return self.max_batch_size > 0

    def shape(self, rows: int, dims: Dims) -> Dims:
        """Of a tensor of these dims in a request of so many rows."""
        return (rows, *dims) if self.is_batched else dims

    def reply_bytes(self, rows: int) -> int | None:
        """Bytes of all output tensors for `rows`; None where one of them has no fixed size."""
        sizes = [tensor.n_bytes(rows) for tensor in self.outputs]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def carried(self, names: Collection[str]) -> tuple[TensorSpec, ...]:
        """The inputs of a request that has those of `names`; an optional one may be missing."""
        return tuple(tensor for tensor in self.inputs if tensor.name in names or not tensor.is_optional)

    def asking_for(self, outputs: Sequence[str] | None) -> ModelSpec:
        """The spec of a request for these outputs alone, which its reply then holds; None: for every one.

        Raises ScenarioError for one that the model has not.
        """
        if outputs is None:
            return self
        of_name = {tensor.name: tensor for tensor in self.outputs}
        for index, name in enumerate(outputs):
            if name not in of_name:
                raise ScenarioError(
                    f"clients.request.outputs[{index}]: model {self.name} has no output {name!r}, {hint(name, of_name)}"
                )
        return replace(self, outputs=tuple(of_name[name] for name in outputs))

    def validate_rows(self, rows: int) -> None:
        """Raises ScenarioError where a request has more rows than the model takes."""
        most = self.max_batch_size or 1
        if rows > most:
            raise ScenarioError(
                f"clients.rows: {rows} rows, but model {self.name} takes at most {most} a request"
            )

    def validate_input_names(self, where: str, names: Collection[str]) -> None:
        """Raises ScenarioError for an input that the model has not; `where`: key path of what names it."""
        own = [tensor.name for tensor in self.inputs]
        for name in names:
            if name not in own:
                raise ScenarioError(f"{where}.{name}: model {self.name} has no such input, {hint(name, own)}")

    @classmethod
    def from_config(cls, config: Mapping[str, Any], version: str) -> ModelSpec:
        """Spec of a running model from the server's `/v2/models/M/config`.

        Raises TargetError for an input of an unknown datatype.
        """
        max_batch_size = int(config.get("max_batch_size", 0))
        inputs = tuple(_as_drawn(_tensor(item), config) for item in config.get("input", ()))
        for tensor in inputs:
            if tensor.datatype not in (*DATATYPE_BYTES, "BYTES"):
                raise TargetError(
                    f"model {config['name']}: input {tensor.name} has datatype {tensor.datatype}, "
                    f"squall makes {', '.join(DATATYPE_BYTES)}, BYTES"
                )
        outputs = tuple(_tensor(item) for item in config.get("output", ()))
        return cls(
            str(config["name"]),
            version,
            inputs,
            outputs,
            max_batch_size,
            is_decoupled(config),
            is_stateful(config),
            int((config.get("dynamic_batching") or {}).get("priority_levels", 0)),
        )


def hint(name: str, known: Collection[str]) -> str:
    """What to say of a name that is none of those known: the nearest of them, or all."""
    return way_out(name, known, f"it has {', '.join(known)}")


def is_decoupled(config: Mapping[str, Any]) -> bool:
    """Whether the model of that configuration may answer a request never, or more than once."""
    policy = config.get("model_transaction_policy")
    return isinstance(policy, Mapping) and policy.get("decoupled") is True


def is_stateful(config: Mapping[str, Any]) -> bool:
    """Whether requests to the model of that configuration are of sequences."""
    return config.get("sequence_batching") is not None


def _tensor(item: Mapping[str, Any]) -> TensorSpec:
    datatype = str(item["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")
    dims = tuple(int(dim) for dim in item["dims"])
    return TensorSpec(str(item["name"]), datatype, dims, item.get("optional") is True)


def drawn_parameters(spec: ModelSpec) -> dict[str, str]:
    """What a model's configuration says of the numbers to make for its inputs, whichever backend serves it."""
    return {f"{_DRAWN}{one.name}": "{} {}".format(*one.drawn) for one in spec.inputs if one.drawn is not None}


def _as_drawn(tensor: TensorSpec, config: Mapping[str, Any]) -> TensorSpec:
    """With what the configuration says of it; what is no range is another's parameter."""
    said = (config.get("parameters") or {}).get(f"{_DRAWN}{tensor.name}") or {}
    ends = _RANGE.fullmatch(str(said.get("string_value", "")))
    if ends is None or int(ends[1]) > int(ends[2]):
        return tensor
    return replace(tensor, drawn=(int(ends[1]), int(ends[2])))


@dataclass(frozen=True)
class HeadSpec:
    """A model of the zoo: its sizes with their full-scale defaults, and one line on what it computes.

    `n_before`: positions that an encoder has before that of the first token.
    """

    name: str
    about: str
    defaults: Sizes
    n_before: int = 0

    @property
    def is_encoder(self) -> bool:
        """Whether it takes tokens."""
        return "vocabulary" in self.defaults

    def sizes(self, settings: Sizes, where: str = "model") -> dict[str, int]:
        """`defaults` overridden by `settings`. Raises ScenarioError for an unknown key or a size below 1; `where`: key
        path of the model."""
        for key, value in settings.items():
            least = 0 if key == "weights_seed" else 1
            if key not in self.defaults:
                raise ScenarioError(f"{where}.settings.{key}: unknown key, {hint(key, self.defaults)}")
            if value < least:
                raise ScenarioError(
                    f"{where}.settings.{key}: {value} is too small, it must be {least} or more"
                )
        sizes = {**self.defaults, **settings}
        if self.is_encoder:
            self._validate_encoder(sizes, f"{where}.settings")
        return sizes

    def _validate_encoder(self, sizes: Sizes, where: str) -> None:
        """Raises ScenarioError for sizes that make no encoder."""
        if sizes["hidden"] % sizes["heads"]:
            raise ScenarioError(
                f"{where}.heads: {sizes['heads']} heads do not divide hidden {sizes['hidden']} evenly"
            )
        room = sizes["positions"] - self.n_before
        if sizes["sequence"] > room:
            raise ScenarioError(
                f"{where}.sequence: {sizes['sequence']} tokens, and {sizes['positions']} positions hold {room}"
            )
        if sizes["vocabulary"] <= FIRST_TOKEN:
            raise ScenarioError(
                f"{where}.vocabulary: {sizes['vocabulary']} is too small, tokens are drawn from {FIRST_TOKEN} on"
            )


HEADS = {
    head.name: head
    for head in (
        HeadSpec(
            "linear_head",
            "layers x (Linear(width, width) + ReLU), then Linear(width, classes)",
            {"width": 1024, "layers": 20, "classes": 2, "weights_seed": 1},
        ),
        HeadSpec(
            "linear_head_stacked",
            "heads x linear_head on the same input, each layer one batched matrix product",
            {"width": 1024, "layers": 20, "classes": 2, "heads": 5, "weights_seed": 1},
        ),
        HeadSpec(
            "seqlen_head",
            "input expanded to a sequence, layers x (Linear(width) + LayerNorm + ReLU), first position to classes",
            {"width": 1024, "layers": 20, "classes": 2, "sequence": 128, "weights_seed": 1},
        ),
    )
}
"""The classifier heads of the zoo, by model name."""

ENCODERS = {
    encoder.name: encoder
    for encoder in (
        HeadSpec(
            "bert_tiny",
            "BERT: tokens, layers of a post-norm transformer, Linear and tanh of the first position",
            {
                "hidden": 128, "layers": 2, "heads": 2, "intermediate": 512, "vocabulary": 30522, "positions": 512,
                "sequence": 64, "weights_seed": 1,
            },
        ),
        HeadSpec(
            "multilingual_e5_large",
            "XLM-RoBERTa large: tokens, layers of a post-norm transformer, their mean over the mask to length 1",
            {
                "hidden": 1024, "layers": 24, "heads": 16, "intermediate": 4096, "vocabulary": 250002,
                "positions": 514, "sequence": 128, "weights_seed": 1,
            },
            n_before=2,
        ),
    )
}  # fmt: skip
"""The encoders of the zoo, by model name."""

ZOO = HEADS | ENCODERS


def head_of(name: str, where: str = "model") -> HeadSpec:
    """The zoo's model of that name. Raises ScenarioError that lists the names there are; `where`: key path of the
    model."""
    if name not in ZOO:
        raise ScenarioError(f"{where}.name: unknown model {name!r}: {hint(name, ZOO)}")
    return ZOO[name]


def head_spec(name: str, version: str, sizes: Sizes, max_batch_size: int) -> ModelSpec:
    """Spec of a model of the zoo. A head: INPUT FP32 [rows, width] to OUTPUT FP32 [rows, classes] (stacked:
    [rows, heads, classes]); an encoder: input_ids, attention_mask INT64 [rows, sequence] to OUTPUT FP32 [rows, hidden].
    """
    if name in ENCODERS:
        tokens, words = (sizes["sequence"],), (FIRST_TOKEN, sizes["vocabulary"] - 1)
        ids = TensorSpec("input_ids", "INT64", tokens, drawn=words)
        inputs: tuple[TensorSpec, ...] = (ids, TensorSpec("attention_mask", "INT64", tokens, drawn=(1, 1)))
        out: Dims = (sizes["hidden"],)
    else:
        inputs = (TensorSpec("INPUT", "FP32", (sizes["width"],)),)
        out = (sizes["heads"], sizes["classes"]) if "heads" in sizes else (sizes["classes"],)
    return ModelSpec(name, version, inputs, (TensorSpec("OUTPUT", "FP32", out),), max_batch_size)
