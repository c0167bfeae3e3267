"""What the models of a running server are, as far as a scenario needs to know: asked of the server, nothing is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

from squall.actors.net.access import Access
from squall.actors.net.stream import CLOSED
from squall.actors.net.triton_control import Control, ControlError
from squall.actors.net.triton_models import (
    INSPECTION_S,
    MOST_64,
    describe_model,
    object_of,
    path_of,
    ready_models,
    whole_of,
)
from squall.cluster.node.endpoint import HEADERS_MEND, why_not_there
from squall.models.spec import ModelSpec, is_decoupled, is_stateful
from squall.scenarios.errors import TargetError
from squall.scenarios.records import Frozen

_CUT = ("does not speak HTTP", "reset by peer", "WRONG_VERSION_NUMBER", CLOSED)
"""What a request in the clear meets at a port that speaks TLS, and one over TLS at a port that does not."""


class ServedModel(Frozen):
    """A model that is ready, in one version; `config` as the server has it.

    `n_answered`: requests that its statistics count, of which each took `infer_ns` in the model on average (0: none).
    """

    name: str
    version: str
    versions: tuple[str, ...]
    config: Mapping[str, Any]
    n_answered: int = 0
    infer_ns: float = 0.0

    @cached_property
    def spec(self) -> ModelSpec:
        """Raises TargetError for an input of a datatype that squall does not make."""
        return ModelSpec.from_config(self.config, self.version)

    @property
    def kind(self) -> str:
        """In one word; the first that holds."""
        if is_decoupled(self.config):
            return "decoupled"
        if is_stateful(self.config):
            return "stateful"
        if "ensemble_scheduling" in self.config:
            return "ensemble"
        return "batched" if int(self.config.get("max_batch_size", 0)) > 0 else "unbatched"

    @property
    def inputs(self) -> str:
        """In words, whatever datatypes they have: `INPUT FP32 [4], IDS INT64 [-1]`."""
        return ", ".join(
            f"{one.get('name')} {str(one.get('data_type')).removeprefix('TYPE_')} {_dims(one.get('dims') or ())}"
            for one in self.config.get("input") or ()
        )

    def obstacle(self) -> str | None:
        """Why squall cannot load it, None where it can."""
        shapes = [one["name"] for one in self.config.get("input") or () if one.get("is_shape_tensor") is True]
        if shapes:
            return f"its input {shapes[0]} is a shape tensor (is_shape_tensor), whose values squall does not make"
        try:
            return None if self.spec.inputs else "its configuration on the server names no inputs"
        except TargetError as error:
            return str(error).removeprefix(f"model {self.name}: ")


def _dims(dims: Sequence[object]) -> str:
    return f"[{', '.join(map(str, dims))}]"


def served_models(url: str, access: Access, name: str | None, version: str | None) -> list[ServedModel]:
    """Models that are ready at `url`, by name; only `name` where it is given, in `version` or the latest that is ready.

    One that was unloaded meanwhile is left out. Raises TargetError where the server is not ready, does not list its
    models, or does not answer like a Triton.
    """
    try:
        control = Control(url, access, None, INSPECTION_S)
    except OSError as error:
        raise TargetError(f"no Triton is ready at {url}: {error}") from error
    with closing(control):
        refused: dict[str, str] = {}
        not_there = why_not_there(control, refused)
        if not_there is not None:
            raise TargetError(f"no Triton is ready at {url}: {not_there}{_hint(url, not_there)}")
        _refuse_no_triton(control, url, is_named=name is not None)
        names = sorted(ready_models(control)) if name is None else [name]
        if not names:
            raise TargetError(f"{url} lists no model that is ready; if it has one, name it with --model")
        try:
            found = [_described(control, one, version) for one in names]
        except (ControlError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TargetError(f"{url} does not answer like a Triton server: {error}") from error
        return [one for one in found if one is not None]


def _refuse_no_triton(control: Control, url: str, is_named: bool) -> None:
    """Raises TargetError where /v2 is not a server's own, as at the port of its metrics, which says yes to all;
    where it is refused, unless the model is named, which may be told all the same."""
    try:
        object_of(control, "/v2")
    except (ControlError, ValueError) as error:
        if isinstance(error, ControlError) and error.is_refused:
            if is_named:
                return
            raise TargetError(f"{url} refuses who asks: {error}; {HEADERS_MEND}") from error
        raise TargetError(
            f"{url} does not answer like a Triton server: {error}; is it its HTTP port (Triton's default: 8000)?"
        ) from error


def _hint(url: str, why: str) -> str:
    """What a first look at a server cannot do, where that may be the reason."""
    is_cut = any(word in why for word in _CUT)
    if url.startswith("https:"):
        plain = "; a server that speaks no TLS has an http:// URL" if is_cut else ""
        return (
            f"{plain}; init trusts the system's authorities and has no certificate of its own: for others write the"
            " scenario by hand with clients.tls"
        )
    return "; a server that speaks TLS has an https:// URL" if is_cut else ""


def _described(control: Control, name: str, version: str | None) -> ServedModel | None:
    """None where it is not ready. Raises ControlError where the server no longer answers, and what else reading of its
    answers raises where they are none of Triton's."""
    try:
        found = describe_model(control, name, version, most_rows=1)
    except ControlError as error:
        if not error.status:
            raise
        return None
    path = f"{path_of(name)}/versions/{found.version}/stats"
    model = ServedModel(name, found.version, found.versions, found.config, *_statistics(control, path))
    model.obstacle()  # reads the whole configuration
    return model


def _statistics(control: Control, path: str) -> tuple[int, float]:
    """Requests that were answered, and the mean time in ns of their executions; zeros where it does not say."""
    try:
        (found,) = control.ask_json(path)["model_stats"]
        counted = found["inference_stats"]
        n_answered, infer = whole_of(counted["success"]["count"], MOST_64), counted["compute_infer"]
        n_inferred = whole_of(infer["count"], MOST_64)
        return n_answered, whole_of(infer["ns"], MOST_64) / n_inferred if n_inferred else 0.0
    except (ControlError, ValueError, KeyError, TypeError):
        return 0, 0.0
