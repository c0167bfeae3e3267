"""What a run changes of the models that a server has, and how that is undone.

    before ── apply ──► as the scenario wants it ── the run ── restore ──► before

Only what was changed is put back: whatever others load or unload meanwhile stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import partial
from typing import Any

from squall.analysis.storage.deployed import ControlFacts
from squall.analysis.wording import names_text
from squall.cluster.control.repository import Config, Repository
from squall.scenarios.config.servers import ControlConfig, LoadSettings
from squall.scenarios.errors import TargetError, way_out
from squall.scenarios.records import Frozen
from squall.scenarios.units import NS_PER_S

_MOST_NAMES, _MOST_TOLD = 1_000, 20
"""Of models, among which one like it is looked for, and which a message lists."""


class Undo(Frozen):
    """How a server was: `ready` has the versions of each model, `configs` those of models that are loaded otherwise or
    unloaded now. `touched`: models that are to be put back."""

    ready: Mapping[str, Sequence[str]] = field(default_factory=dict)
    configs: Mapping[str, Config] = field(default_factory=dict)
    touched: Sequence[str] = ()

    def to_mapping(self) -> dict[str, Any]:
        """In plain types: `Undo(**mapping)` is an equal one."""
        return asdict(self)


def names_wanted(control: ControlConfig, models: Sequence[str]) -> dict[str, LoadSettings]:
    """What is to be ready and how: the models under load first."""
    return {name: control.load.get(name, LoadSettings()) for name in (*models, *control.load)}


def refuse_unknown(repository: Repository, names: Sequence[str]) -> None:
    """Raises TargetError for a model that the server's repository has not."""
    known = sorted({one["name"] for one in repository.index()})
    for name in names:
        if name not in known:
            all_known = f"it has {names_text(known, _MOST_TOLD) or 'none'}"
            hint = way_out(name, known[:_MOST_NAMES], all_known)
            raise TargetError(
                f"server.control: {repository.where} has no model {name!r} in its repository, {hint}"
            )


def apply(
    repository: Repository,
    control: ControlConfig,
    models: Sequence[str],
    tell: Callable[[Undo], None],
    say: Callable[[str], None],
) -> ControlFacts:
    """Loads and unloads as `control` says. `models`: under load; `tell` hears how to undo it, before anything is
    changed and again as more is known; `say`: a line for people.

    Raises TargetError where the server refuses; what was changed until then stands in what `tell` heard last.
    """
    wanted = names_wanted(control, models)
    repository.refuse_other_mode()
    refuse_unknown(repository, [*wanted, *control.unload])
    before = repository.ready()
    changing = [name for name, how in wanted.items() if how.has_changes or name not in before]
    unloading = [name for name in control.unload if name in before]
    configs = {name: repository.config(name) for name in (*changing, *unloading) if name in before}
    undo = Undo(before, configs, (*unloading, *changing))
    tell(undo)
    for name in unloading:
        repository.unload(name)
        say(f"unloaded {name}")
    repository.settle(unloading)
    loading_ns: dict[str, int] = {}
    for name in changing:
        taken_ns = _load(repository, name, wanted[name], is_ready=name in before)
        if taken_ns is not None:
            loading_ns[name] = taken_ns
            say(told_loaded(name, taken_ns))
        undo = _with_steps(undo, repository, name)
        tell(undo)
    return ControlFacts(
        loading_ns=loading_ns,
        configured=tuple(name for name in loading_ns if wanted[name].has_changes),
        beside=tuple(undo.touched[len(unloading) + len(changing) :]),
        unloaded=tuple(unloading),
    )


def _with_steps(undo: Undo, repository: Repository, name: str) -> Undo:
    """Steps of an ensemble that became ready with it are to be put back too."""
    steps = repository.steps(name)
    beside = [one for one in steps if one not in undo.ready and one not in undo.touched]
    return replace(undo, touched=(*undo.touched, *beside))


def told_loaded(name: str, taken_ns: int) -> str:
    """For people."""
    return f"loaded {name} in {taken_ns / NS_PER_S:.2f} s"


def _load(repository: Repository, name: str, how: LoadSettings, is_ready: bool) -> int | None:
    """ns that loading took; None where it is ready as it is wanted. A configuration of one's own stands on the one that
    the server has of it, which it tells of models that are ready alone: so one that is not is loaded twice."""
    taken_ns = None if is_ready else repository.load(name)
    if not how.has_changes:
        return taken_ns
    found = repository.config(name)
    changed = changed_config(found, how)
    return taken_ns if changed == found else (taken_ns or 0) + repository.load(name, changed)


def changed_config(config: Config, how: LoadSettings) -> Config:
    """`config` as `how` wants it. Raises TargetError where the server says its instances oddly."""
    changed = {**config, **how.config}
    if how.instances is not None:
        groups = config.get("instance_group") or [{}]
        if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
            raise TargetError(
                f"the server's configuration of {config.get('name')} has no list of instance groups"
            )
        changed["instance_group"] = [{**group, "count": how.instances} for group in groups]
    return changed


def restore(repository: Repository, undo: Undo) -> list[str]:
    """Puts the touched models back; sentences on what is otherwise than before. Raises nothing."""
    left: list[str] = []
    _try(left, partial(repository.settle, undo.touched))  # a load that was broken off goes on in the server
    try:
        ready = repository.ready()
        gone = [name for name in undo.touched if name not in undo.ready and name in ready]
        for name in gone:
            _try(left, partial(repository.unload, name))
        _try(left, partial(repository.settle, gone))
        for name in undo.touched:
            if name in undo.ready:
                _try(left, partial(_put_back, repository, name, undo.configs.get(name)))
        left += _differences(undo, repository.ready())
    except TargetError as error:
        left.append(str(error))
    return left


def _try(left: list[str], step: Callable[[], None]) -> None:
    """The other models are put back all the same."""
    try:
        step()
    except TargetError as error:
        left.append(str(error))


def _put_back(repository: Repository, name: str, config: Config | None) -> None:
    """A model that was ready. It is unloaded first where it is otherwise now: Triton keeps a configuration that a load
    brought until then."""
    if name in repository.ready():
        if config is None or repository.config(name) == config:
            return
        repository.unload(name)
        repository.settle([name])
    repository.load(name)
    if config is not None and repository.config(name) != config:
        repository.load(name, config)


def _differences(undo: Undo, ready: Mapping[str, Sequence[str]]) -> list[str]:
    found = []
    for name in undo.touched:
        was, now = sorted(undo.ready.get(name, ())), sorted(ready.get(name, ()))
        if was != now:
            found.append(f"model {name} had {_versions(was)} before and has {_versions(now)} now")
    return found


def _versions(versions: Sequence[str]) -> str:
    return f"version {', '.join(versions)} ready" if versions else "no version ready"
