"""What a locustfile holds, loaded as Locust's own command does. Under gevent, in a process of Locust's."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import locust
import locust.log
from locust.argument_parser import get_empty_argument_parser, get_parser, setup_parser_arguments
from locust.env import Environment
from locust.util.load_locustfile import load_locustfile

from squall.actors.locust.settings import LocustSettings
from squall.scenarios.units import NS_PER_S

_SAID_CHARACTERS = 2_000


class BadLocustfile(Exception):
    """It does not load, or holds nothing to run; the text is Python's or Locust's own."""


@dataclass(frozen=True)
class Loaded:
    """An environment with its user classes, shape and options, without a runner."""

    environment: Environment
    user_classes: tuple[str, ...]
    shape: str


def load(settings: LocustSettings, path: Path) -> Loaded:
    """Loads it, with its folder as the working folder. Raises BadLocustfile."""
    os.chdir(path.parent)
    config = settings.config
    with _told(path.name):
        user_classes, shapes = load_locustfile(path.name)
    if not user_classes:
        raise BadLocustfile(f"{path.name}: No User class found!")
    unknown = sorted(set(config.user_classes) - set(user_classes))
    if unknown:
        raise BadLocustfile(
            f"{path.name}: Unknown User(s): {', '.join(unknown)}; it has {', '.join(sorted(user_classes))}"
        )
    chosen = [
        one for name, one in user_classes.items() if not config.user_classes or name in config.user_classes
    ]
    shape = shapes[0] if shapes else None
    options = _parsed(settings, path.name)
    with _told(path.name):
        environment = Environment(
            user_classes=chosen,
            shape_class=shape,
            tags=list(config.tags) or None,
            exclude_tags=list(config.exclude_tags) or None,
            locustfile=path.name,
            events=locust.events,
            host=config.host,
            stop_timeout=settings.stop_timeout_ns / NS_PER_S,
            parsed_options=options,
            parsed_locustfiles=[path.name],
            available_user_classes=dict(user_classes),
            available_shape_classes={type(one).__name__: one for one in shapes},
            available_user_tasks={name: one.tasks for name, one in user_classes.items()},
        )
    if config.host is None:
        for one in chosen:  # what names no host of its own talks to the server under load
            one.host = one.host or settings.host
    names = tuple(sorted(one.__name__ for one in environment.user_classes))
    return Loaded(environment, names, type(shape).__name__ if shape is not None else "")


@contextlib.contextmanager
def _told(name: str) -> Any:
    """Whatever a file of the user's raises, as one line: the last of its traceback, and where in the file it was."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.endswith(name)]
        where = f", line {frames[-1].lineno}" if frames else ""
        said = " ".join(traceback.format_exception_only(error)[-1][:_SAID_CHARACTERS].split())
        raise BadLocustfile(f"{name}{where}: {said}") from error


def _parsed(settings: LocustSettings, name: str) -> Any:
    """The options of Locust's command line, those that the file adds among them. Raises BadLocustfile."""
    config = settings.config
    _forget_environment()
    arguments: list[str] = [
        "--locustfile", name, "--users", str(config.users), "--spawn-rate", f"{config.spawn_rate!r}",
        "--run-time", f"{max(1, settings.load_end_ns // NS_PER_S)}s", *config.options,
    ]  # fmt: skip
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            options = get_parser(default_config_files=[]).parse_args(arguments)
    except SystemExit as error:
        last = said.getvalue().strip().splitlines()[-1:] or ["it ends the program"]
        raise BadLocustfile(f"load.locust.options: {last[0].partition('error: ')[2] or last[0]}") from error
    if options.user_classes:
        raise BadLocustfile(
            "load.locust.options: user classes have a key of their own, load.locust.user_classes"
        )
    if config.host is not None:
        options.host = config.host
    options.tags, options.exclude_tags = list(config.tags) or None, list(config.exclude_tags) or None
    return options


def _forget_environment() -> None:
    """Variables of the node's that would be options of Locust's: the scenario says these."""
    parser = get_empty_argument_parser(default_config_files=[])
    setup_parser_arguments(parser)
    for action in parser._actions:
        os.environ.pop(getattr(action, "env_var", None) or "", None)


def fire_init(settings: LocustSettings, environment: Environment, web_ui: Any) -> None:
    """The file's listeners of `events.init`, as Locust's own command calls them. Raises BadLocustfile where one fails,
    which ends that command too."""
    environment.events.init.fire(environment=environment, runner=environment.runner, web_ui=web_ui)
    if locust.log.unhandled_greenlet_exception:
        last = " ".join((locust.log.get_logs() or [""])[-1].strip().split("\n")[-1].split())
        raise BadLocustfile(
            f"{environment.locustfile}: a listener of events.init failed: {last or settings.name}"
        )
