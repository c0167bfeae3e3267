"""A request as it is sent, and whether its reply is what the model's spec promises.

The description of the tensors is judged once for each layout; then its bytes are known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from numpy.typing import NDArray

from squall.actors.messages.value_check import Check, ValueCheck
from squall.models.payload import ID_DIGITS, read_tensor
from squall.models.spec import ModelSpec
from squall.scenarios.foreign_text import printable

REJECTIONS = (b"Exceeds maximum queue size", b"Request timeout expired")
"""What Triton answers when its queue policy refuses a request: full queue, queue timeout."""
NO_ID = "the reply does not carry the request's id"
NOT_IN_SLOT = "the reply carries an output that was to be in shared memory"
_DETAIL_CHARACTERS = 200
TemplateKey = tuple[int, int, int]
"""Which request: (target, rows, payload variant)."""


class Output(NamedTuple):
    """One tensor of a reply; `n_bytes` None where its data is not in the binary part."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    n_bytes: int | None


class Response(NamedTuple):
    """What one of the responses to a request is; `n_tokens` -1 where nothing says which elements are tokens.
    `is_wrong`: its values are not those that it must give."""

    outcome: str
    detail: str
    n_tokens: int = -1
    is_wrong: bool = False


class Layout(NamedTuple):
    """A reply that was found right: another of the same bytes but for the id, and for its tensors' data, is so too."""

    prefix: bytes
    suffix: bytes
    n_bytes: int
    n_json_bytes: int = 0
    """Over HTTP, as the reply's head says it; 0 where it has no binary part."""


@dataclass(frozen=True)
class Template(ABC):
    """A request but for its id, pre-encoded: head + id + tail; and the spec that its reply must meet.

    `check_every`: of requests whose id is a multiple of it the values are compared too; 0: of none. `slots`: gives the
    bytes of an output by name where outputs lie in shared memory, None where replies carry them. `target`: number of
    the server that it is for, among those of the worker. `is_json`: over HTTP, its tensors and those of its reply
    are in the JSON. `known`: the layout of the last reply that was found right, if
    there was one; requests for one server, of so many rows, may share it. `n_between_bytes`: of what each request has
    of its own between id and tail. `number`: among those of a file of encoded requests, where it is of one. `kind`:
    number of the model's name among those of the worker.
    """

    head: bytes
    tail: bytes
    rows: int
    spec: ModelSpec
    check_every: int = 0
    check: Check | None = field(default=None, compare=False, repr=False)
    slots: Callable[[str], bytes] | None = field(default=None, compare=False, repr=False)
    target: int = 0
    is_json: bool = False
    known: list[Layout] = field(default_factory=list, compare=False, repr=False)
    n_between_bytes: int = 0
    number: int | None = field(default=None, compare=False, repr=False)
    kind: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of the request, without what each connection adds: over HTTP all of it, over gRPC the message with
        its length prefix."""
        return len(self.head) + ID_DIGITS + self.n_between_bytes + len(self.tail)

    @property
    def layout(self) -> Layout | None:
        """Of the replies that were found right, the last one's."""
        return self.known[0] if self.known else None

    @abstractmethod
    def judge(self, reply: Any, wire_id: bytes) -> tuple[str, str]:
        """(outcome, detail) of the reply to the request that carried `wire_id`."""

    def checked_by(self, check: Check) -> Self:
        """The same request, whose replies `check` compares as often as its rule says."""
        return replace(self, check_every=check.rule.every, check=check)

    def answered_in(self, slots: Callable[[str], bytes]) -> Self:
        """The same request, whose outputs the server writes where `slots` reads."""
        return replace(self, slots=slots)

    def alike(self, known: list[Layout]) -> Self:
        """The same request, which shares what is known of its replies with others whose replies have its layout."""
        return replace(self, known=known)

    def sent_to(self, target: int) -> Self:
        """The same request, for the server of that number."""
        return replace(self, target=target)

    def of_kind(self, kind: int) -> Self:
        """The same request, to the model of that number."""
        return replace(self, kind=kind)

    def _remember(self, layout: Layout) -> None:
        if self.layout != layout:
            self.known[:] = [layout]

    def compares(self, request_id: int) -> bool:
        """Whether the values of what that request is answered are compared."""
        return self.check_every > 0 and request_id % self.check_every == 0

    def _is_checked(self, wire_id: bytes) -> bool:
        return self.compares(int(wire_id))

    def _judge_values(self, outputs: Sequence[Output], data: Sequence[bytes | None]) -> tuple[str, str]:
        """(outcome, detail) of outputs that are as the spec says; `data` None where one came without its bytes."""
        assert isinstance(self.check, ValueCheck)
        if self.slots is not None:
            data = [self.slots(output.name) for output in outputs]
        try:
            why = self.check.fault_of(arrays_of(self.check, outputs, data))
        except ValueError as error:
            why = str(error)
        return ("bad_reply", one_line(why)) if why else ("ok", "")


def arrays_of(
    check: ValueCheck, outputs: Sequence[Output], data: Sequence[bytes | None]
) -> dict[str, NDArray[Any]]:
    """The outputs that the check covers; `data` None where one came without its bytes. Raises ValueError for what
    cannot be compared."""
    arrays = {}
    for output, part in zip(outputs, data, strict=True):
        if not check.covers(output.name):
            continue
        if part is None:
            raise ValueError(f"output {output.name} is not binary, its values cannot be compared")
        try:
            arrays[output.name] = read_tensor(output.datatype, output.shape, part)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"output {output.name} cannot be read: {error}") from error
    return arrays


def fault_of(spec: ModelSpec, rows: int, outputs: Sequence[Output]) -> str:
    """What is wrong with the outputs of a request of `rows` rows, in a few words; empty where nothing is.

    `rows` -1: any number of them.
    """
    names = sorted(output.name for output in outputs)
    if names != sorted(tensor.name for tensor in spec.outputs):
        return f"the reply has outputs {', '.join(names) or '(none)'}, not those of the model"
    for tensor in spec.outputs:
        output = next(output for output in outputs if output.name == tensor.name)
        dims = (rows, *tensor.dims) if spec.is_batched else tensor.dims
        fits = len(output.shape) == len(dims) and all(
            size >= 0 and dim in (-1, size) for dim, size in zip(dims, output.shape, strict=True)
        )
        if output.datatype != tensor.datatype or not fits:
            return (
                f"output {tensor.name} is {output.datatype} {list(output.shape)}, "
                f"the model's spec says {tensor.datatype} {list(dims)}"
            )
        n_bytes = None if rows < 0 else tensor.n_bytes(rows if spec.is_batched else 1)
        if n_bytes is not None and output.n_bytes is not None and output.n_bytes != n_bytes:
            return f"output {tensor.name} has {output.n_bytes} bytes, the model's spec says {n_bytes}"
    return ""


def one_line(text: str) -> str:
    """Any text as a detail: one line of at most 200 characters."""
    return printable(text)[:_DETAIL_CHARACTERS]
