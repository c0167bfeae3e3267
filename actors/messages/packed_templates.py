"""The requests of `PackFile`s as templates for each server, made when they are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from squall.actors.messages.packed import PackFile
from squall.actors.messages.template import Layout, Template, TemplateKey
from squall.actors.messages.value_check import Check
from squall.models.spec import ModelSpec
from squall.scenarios.arrays import pieces
from squall.scenarios.plan.plan import kinds_of


@dataclass(frozen=True)
class Form:
    """How a tail becomes a request for one server: `head` of the bytes of the tail and of its JSON."""

    template: Callable[..., Template]
    spec: ModelSpec
    head: Callable[[int, int], bytes]


class Places(NamedTuple):
    """The requests to one model of a server, for a lane: each head once, and of each request head, begin and length of
    its tail, rows and layout, (n, 5) int64."""

    heads: list[bytes]
    table: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PackedModel:
    """The requests to one model. `forms`: of each server, None where that does not serve it; `check`: compares values
    of replies to that request; `first`: the plan's number of the payload variant that the file calls 0; `kind`: number
    of the model's name among those of the worker."""

    file: PackFile
    forms: tuple[Form | None, ...]
    check: Callable[[TemplateKey], Check] | None = None
    first: int = 0
    kind: int = 0


@dataclass(frozen=True, eq=False)
class Block:
    """The requests to one model of a server: numbered from `begin` on, their layouts from `first_layout` on."""

    target: int
    model: PackedModel
    begin: int
    first_layout: int

    @property
    def form(self) -> Form:
        form = self.model.forms[self.target]
        assert form is not None  # else there is no block
        return form

    def places(self) -> Places:
        """All of them."""
        file, form = self.model.file, self.form
        sizes, which = np.unique(np.stack([file.n_tails, file.n_jsons]), axis=1, return_inverse=True)
        heads = [form.head(n_tail, n_json) for n_tail, n_json in sizes.T.tolist()]
        rows, _ = kinds_of(file.kinds)
        columns = (which.ravel(), file.starts, file.n_tails, rows, file.layouts)
        return Places(heads, np.ascontiguousarray(np.stack(columns, axis=1), np.int64))


class PackedTemplates(Sequence[Template]):
    """By number: all for the first server, model by model and in the order of its file, then those for the next."""

    def __init__(self, models: Sequence[PackedModel]) -> None:
        """In the order of the plan's, each for the same servers."""
        self.n_targets = len(models[0].forms)
        self.blocks: list[Block] = []
        """Those with requests, in order."""
        self._models = models
        self._begins = np.full((self.n_targets, len(models)), -1, np.int64)
        self._n = n_layouts = 0
        for target in range(self.n_targets):
            for number, model in enumerate(models):
                if model.forms[target] is None or not len(model.file):
                    continue
                self.blocks.append(Block(target, model, self._n, n_layouts))
                self._begins[target, number] = self._n
                self._n += len(model.file)
                n_layouts += model.file.n_layouts
        self._firsts = np.array([model.first for model in models], np.int64)
        self.known: list[list[Layout]] = [[] for _ in range(n_layouts)]
        """What is known of replies, by server, model and layout."""

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, number: int) -> Template: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Template]: ...

    def __getitem__(self, number: int | slice) -> Template | Sequence[Template]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        block = self.blocks[bisect_right(self.blocks, number, key=lambda one: one.begin) - 1]
        model, form, place = block.model, block.form, number - block.begin
        tail = model.file.tail(place)
        rows, variant = (int(one) for one in kinds_of(model.file.kinds[place]))
        check = None if model.check is None else model.check((block.target, rows, model.first + variant))
        return form.template(
            form.head(tail.n_bytes, tail.n_json),
            bytes(model.file.view[tail.start : tail.start + tail.n_bytes]),
            rows,
            form.spec,
            check_every=check.rule.every if check is not None else 0,
            check=check,
            target=block.target,
            known=self.known[block.first_layout + tail.layout],
            number=number,
            kind=model.kind,
        )

    def samples(self) -> list[Template]:
        """One to each model of each server: of one all are checked alike."""
        return [self[block.begin] for block in self.blocks]

    def numbers(self, targets: Any, rows: Any, variants: Any) -> NDArray[np.int32]:
        """Those of the requests with these keys, (n,). Raises KeyError for one that is not there."""
        found = np.empty(np.shape(variants), np.int32)
        of_rows = np.broadcast_to(targets, found.shape)
        for piece in pieces(len(rows)):
            found[piece] = self._numbers(of_rows[piece], rows[piece], variants[piece])
        return found

    def _numbers(
        self, targets: NDArray[Any], rows: NDArray[Any], variants: NDArray[Any]
    ) -> NDArray[np.int64]:
        is_one = not self._firsts.any()  # whose numbers of variants are the file's
        models: Any = 0 if is_one else np.searchsorted(self._firsts, variants, side="right") - 1
        found: NDArray[np.int64] = self._begins[targets, models]
        if found.min(initial=0) < 0:
            raise KeyError("a request for a server that does not serve its model, or that was not encoded")
        if is_one:
            return found + self._models[0].file.places(rows, variants)
        for number, model in enumerate(self._models):
            its = np.flatnonzero(models == number)
            if its.size:
                found[its] += model.file.places(rows[its], variants[its].astype(np.int64) - model.first)
        return found

    def for_target(self, template: Template, target: int) -> Template:
        """The same request for another server; all serve all models."""
        assert template.number is not None
        n_each = len(self) // self.n_targets
        return self[target * n_each + template.number % n_each]

    def keys(self) -> Iterator[TemplateKey]:
        """Of all, by number."""
        for block in self.blocks:
            columns = (column.tolist() for column in kinds_of(block.model.file.kinds))
            for rows, variant in zip(*columns, strict=True):
                yield block.target, rows, block.model.first + variant


class ByKey(Mapping[TemplateKey, Template]):
    """The same by target, rows and variant."""

    def __init__(self, templates: PackedTemplates) -> None:
        self._templates = templates

    def __getitem__(self, key: TemplateKey) -> Template:
        target, rows, variant = (np.array([one]) for one in key)
        return self._templates[int(self._templates.numbers(target, rows, variant)[0])]

    def __iter__(self) -> Iterator[TemplateKey]:
        return self._templates.keys()

    def __len__(self) -> int:
        return len(self._templates)
