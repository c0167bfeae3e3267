"""The servers and models that the users of a process call, and which user has which server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from squall.actors.triton_user.handed import Handed, UserModel, UserTarget
from squall.models.payload import largest_reply_bytes
from squall.models.spec import ModelSpec
from squall.scenarios.errors import way_out

Ask = Callable[[str | None], tuple[UserModel, ModelSpec]]
"""What the one server says of a model, None of its only one; raises TargetError."""
Shapes = Mapping[str, tuple[int, ...]]


class Servers:
    """Models by number, the same at each target. With `ask` there is one target, which is asked for each model that is
    not known yet. `largest_reply_bytes`: as in `Handed`."""

    def __init__(
        self,
        targets: tuple[UserTarget, ...],
        models: tuple[UserModel, ...] = (),
        ask: Ask | None = None,
        largest_reply_bytes: int | None = None,
    ) -> None:
        assert len(targets) == 1 or (targets and ask is None)
        self.targets = targets
        self.models = list(models)
        self._specs = [list(target.specs) for target in targets]
        self._ask = ask
        self._largest_reply_bytes = largest_reply_bytes
        self._numbers = {model.name: number for number, model in enumerate(models)}
        self._only: int | None = None
        self._next: dict[int, Iterator[int]] = {}

    @classmethod
    def handed(cls, handed: Handed, shapes: Shapes) -> Servers:
        """Those of a run; `shapes` hold for open sizes that the scenario does not state."""
        models = []
        for number, model in enumerate(handed.models):
            specs = (target.specs[number] for target in handed.targets)
            open_names = {
                one.name for spec in specs if spec is not None for one in spec.inputs if -1 in one.dims
            }
            drawn = {
                name
                for name, how in (model.made or {}).items()
                if how.sizes is not None or how.like is not None
            }
            stated = {name: tuple(shapes[name]) for name in open_names - drawn if name in shapes}
            models.append(replace(model, shapes={**stated, **model.shapes}))
        return cls(handed.targets, tuple(models), largest_reply_bytes=handed.largest_reply_bytes)

    def number_of(self, name: str | None) -> int:
        """That of the model of that name, None: of the only one.

        Raises ValueError where there is none or several, TargetError where a server that is asked does not say.
        """
        if name is None and self._only is not None:
            return self._only
        if name in self._numbers:
            return self._numbers[name]
        if self._ask is not None:
            model, spec = self._ask(name)
            number = self._numbers.setdefault(model.name, len(self.models))
            if number == len(self.models):
                self.models.append(model)
                self._specs[0].append(spec)
            if name is None:
                self._only = number
            return number
        names = [model.name for model in self.models]
        if name is None:
            if len(names) == 1:
                return 0
            raise ValueError(f"infer: which model? there are {', '.join(names)}")
        hint = way_out(name, names, f"there are {', '.join(names)}")
        raise ValueError(f"infer: no model {name!r} is under load, {hint}")

    def target_for(self, model: int, own: int) -> int:
        """`own`, or where that server does not serve the model one that does, each in turn. Raises ValueError where
        none does."""
        if self._specs[own][model] is not None:
            return own
        if model not in self._next:
            serving = [number for number, specs in enumerate(self._specs) if specs[model] is not None]
            if not serving:
                raise ValueError(f"infer: no server has model {self.models[model].name}")
            self._next[model] = itertools.cycle(serving)
        return next(self._next[model])

    def largest_reply_of(self, target: int, is_binary: bool) -> int:
        """Bytes of a reply of that target that are taken; as `Wire.largest_reply_of`, of the models known by now."""
        if self._largest_reply_bytes is not None:
            return self._largest_reply_bytes
        specs = [spec for spec in self._specs[target] if spec is not None]
        return max((largest_reply_bytes(spec, is_binary) for spec in specs), default=0)

    def spec_of(self, target: int, model: int) -> ModelSpec:
        """Of a model that the target serves."""
        spec = self._specs[target][model]
        assert spec is not None
        return spec
