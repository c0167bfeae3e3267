"""The requests of a `PackFile` as templates for each server, made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from squall.actors.messages.packed import PackFile
from squall.actors.messages.template import Layout, Template, TemplateKey
from squall.actors.messages.value_check import Check
from squall.models.spec import ModelSpec
from squall.scenarios.plan.plan import kinds_of


@dataclass(frozen=True)
class Form:
    """How a tail becomes a request for one server: `head` of the bytes of the tail and of its JSON."""

    template: Callable[..., Template]
    spec: ModelSpec
    head: Callable[[int, int], bytes]


class Places(NamedTuple):
    """The requests for one server, for a lane: each head once, and of each request head, begin and length of its tail,
    rows and layout, (n, 5) int64."""

    heads: list[bytes]
    table: NDArray[np.int64]


class PackedTemplates(Sequence[Template]):
    """By number: all for the first server in the order of the file, then those for the next."""

    def __init__(
        self, file: PackFile, forms: Sequence[Form], check: Callable[[TemplateKey], Check] | None = None
    ) -> None:
        """`forms`: of each server; `check`: compares values of replies to that request."""
        self.file = file
        self.n_targets = len(forms)
        self._forms = forms
        self._check = check
        self.known: list[list[Layout]] = [[] for _ in range(file.n_layouts * self.n_targets)]
        """What is known of replies, by server and layout."""

    def __len__(self) -> int:
        return len(self.file) * self.n_targets

    @overload
    def __getitem__(self, number: int) -> Template: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Template]: ...

    def __getitem__(self, number: int | slice) -> Template | Sequence[Template]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        target, place = divmod(range(len(self))[number], len(self.file))
        tail, form = self.file.tail(place), self._forms[target]
        rows, variant = (int(one) for one in kinds_of(self.file.kinds[place]))
        check = None if self._check is None else self._check((target, rows, variant))
        return form.template(
            form.head(tail.n_bytes, tail.n_json),
            bytes(self.file.view[tail.start : tail.start + tail.n_bytes]),
            rows,
            form.spec,
            check_every=check.rule.every if check is not None else 0,
            check=check,
            target=target,
            known=self.known[target * self.file.n_layouts + tail.layout],
            number=target * len(self.file) + place,
        )

    def numbers(self, targets: Any, rows: Any, variants: Any) -> NDArray[np.int32]:
        """Those of the requests with these keys, (n,). Raises KeyError for one that is not there."""
        found: NDArray[np.int64] = targets * len(self.file) + self.file.places(rows, variants)
        return found.astype(np.int32)

    def for_target(self, template: Template, target: int) -> Template:
        """The same request for another server."""
        assert template.number is not None
        return self[target * len(self.file) + template.number % len(self.file)]

    def places(self, target: int) -> Places:
        """All requests for one server."""
        file, form = self.file, self._forms[target]
        sizes, which = np.unique(np.stack([file.n_tails, file.n_jsons]), axis=1, return_inverse=True)
        heads = [form.head(n_tail, n_json) for n_tail, n_json in sizes.T.tolist()]
        rows, _ = kinds_of(file.kinds)
        columns = (which.ravel(), file.starts, file.n_tails, rows, file.layouts)
        return Places(heads, np.ascontiguousarray(np.stack(columns, axis=1), np.int64))


class ByKey(Mapping[TemplateKey, Template]):
    """The same by target, rows and variant."""

    def __init__(self, templates: PackedTemplates) -> None:
        self._templates = templates

    def __getitem__(self, key: TemplateKey) -> Template:
        target, rows, variant = (np.array([one]) for one in key)
        return self._templates[int(self._templates.numbers(target, rows, variant)[0])]

    def __iter__(self) -> Iterator[TemplateKey]:
        kinds = zip(*(column.tolist() for column in kinds_of(self._templates.file.kinds)), strict=True)
        return ((target, *kind) for kind in list(kinds) for target in range(self._templates.n_targets))

    def __len__(self) -> int:
        return len(self._templates)
