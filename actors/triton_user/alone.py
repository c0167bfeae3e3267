"""The server of a locustfile that runs without squall, under `locust -f`: asked what its models take and give."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from urllib.parse import urlsplit

from squall.actors.net.access import Access
from squall.actors.net.triton_control import Control, ControlError
from squall.actors.net.triton_models import latest, object_of, path_of, ready_models
from squall.actors.triton_user.handed import UserModel
from squall.actors.triton_user.servers import Shapes
from squall.models.spec import ModelSpec
from squall.scenarios.errors import TargetError


class OneServer:
    """The server at `url`, which is asked once for each model. `shapes`: sizes that models leave open, by input;
    `headers`: of every call."""

    def __init__(self, url: str, shapes: Shapes, headers: Mapping[str, str]) -> None:
        """Asks nothing yet. Raises TargetError for what is no URL of a server."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TargetError(
                f"host={url!r} is not the URL of a server's HTTP port, such as http://localhost:8000"
            )
        self._url = url.rstrip("/")
        self._shapes = shapes
        self._access = Access(headers=headers)
        self._known: dict[str | None, tuple[UserModel, ModelSpec]] = {}
        self._turn = (
            threading.Lock()
        )  # of greenlets, where gevent has patched it: all users ask at their start

    def ask(self, name: str | None) -> tuple[UserModel, ModelSpec]:
        """The model of that name, None: its only one. Raises TargetError where the server does not answer, has none or
        several, and for a model that `infer` cannot ask."""
        with self._turn:
            if name not in self._known:
                try:
                    with closing(Control(self._url, self._access)) as control:
                        self._known[name] = self._asked(control, name)
                except (ControlError, ValueError, KeyError, TypeError, AttributeError) as error:
                    reason = getattr(error, "reason", "") or str(error)
                    of = f"of model {name!r} " if name is not None else ""
                    raise TargetError(f"{self._url} says nothing {of}that squall reads: {reason}") from error
            return self._known[name]

    def _asked(self, control: Control, name: str | None) -> tuple[UserModel, ModelSpec]:
        if name is None:
            names = sorted(ready_models(control))
            if len(names) != 1:
                there = f"has {', '.join(names)}" if names else "lists no model that is ready"
                raise TargetError(f"infer: which model? {self._url} {there}")
            name = names[0]
        version = latest(object_of(control, path_of(name)))
        spec = ModelSpec.from_config(
            object_of(control, f"{path_of(name)}/versions/{version}/config"), version
        )
        if spec.is_decoupled:
            raise TargetError(
                f"model {name} answers response by response (decoupled), which infer does not read"
            )
        open_names = {one.name for one in spec.inputs if -1 in one.dims}
        shapes = {one: tuple(dims) for one, dims in self._shapes.items() if one in open_names}
        return UserModel(name, shapes), spec
