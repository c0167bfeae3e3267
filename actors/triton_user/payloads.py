"""Requests of the users of a process as bytes: made once, sent many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from squall.actors.messages.template import Layout, Template
from squall.actors.triton_user.caller_inputs import Arrays, held_to
from squall.actors.triton_user.handed import UserModel
from squall.actors.triton_user.servers import Servers
from squall.models.made import make_inputs
from squall.models.payload import RequestOptions
from squall.models.spec import ModelSpec

AnyTemplate = TypeVar("AnyTemplate", bound=Template)
Encode = Callable[[str, ModelSpec, Arrays, int, RequestOptions], AnyTemplate]
"""(server's URL, spec, inputs, rows, options) -> the request."""


class Payloads(Generic[AnyTemplate]):
    """The requests to the models of `servers`, over one protocol. For one process: its users share what is made."""

    def __init__(self, servers: Servers, encode: Encode[AnyTemplate], seed: int) -> None:
        self.made: dict[tuple[int, int, int, int], AnyTemplate] = {}
        """By (target, model, rows, variant)."""
        self._servers = servers
        self._encode = encode
        self._seed = seed
        self._known: dict[tuple[object, ...], list[Layout]] = {}

    def make(self, target: int, model: int, rows: int, variant: int) -> AnyTemplate:
        """The request with the inputs that squall makes for that payload variant; kept in `made`.

        Raises ValueError for rows that the model does not take and for a size that nothing states, ScenarioError where
        its inputs cannot be made as the scenario says.
        """
        key = (target, model, rows, variant)
        template = self.made.get(key)
        if template is None:
            spec, how = self._servers.spec_of(target, model), self._servers.models[model]
            most = spec.max_batch_size if spec.is_batched else 1
            if not 1 <= rows <= most:
                raise ValueError(f"rows={rows}, model {spec.name} takes 1 to {most} a request")
            if variant < 0:
                raise ValueError(f"variant={variant} is below 0")
            _refuse_open(spec, how)
            inputs = make_inputs(spec, rows, variant, self._seed, how.shapes, how.made)
            template = self.made[key] = self._encoded(target, model, inputs, rows)
        return template

    def own(self, target: int, model: int, inputs: Arrays, rows: int) -> AnyTemplate:
        """The request with inputs of the caller's, encoded anew. Raises ValueError as `held_to` does."""
        held, n_rows = held_to(self._servers.spec_of(target, model), inputs, rows)
        return self._encoded(target, model, held, n_rows)

    def _encoded(self, target: int, model: int, inputs: Arrays, rows: int) -> AnyTemplate:
        servers = self._servers
        spec, options = servers.spec_of(target, model), servers.models[model].options
        template = self._encode(servers.targets[target].url, spec, inputs, rows, options)
        shapes = ((name, array.shape) for name, array in inputs.items())  # they say the answer's shapes
        known = self._known.setdefault((target, model, rows, *shapes), [])
        return template.alike(known).sent_to(target).of_kind(model)


def _refuse_open(spec: ModelSpec, how: UserModel) -> None:
    """Raises ValueError for an input with a size that neither the class, the model nor the scenario states."""
    for tensor in spec.inputs:
        dims = how.shapes.get(tensor.name, tensor.dims)
        if -1 in dims and tensor.name not in (how.made or {}):
            raise ValueError(
                f"model {spec.name} leaves the size of its input {tensor.name} open ({list(tensor.dims)}): state it in"
                f" the user class, shapes = {{{tensor.name!r}: (…)}}, or in the scenario, model.shapes.{tensor.name}"
            )
