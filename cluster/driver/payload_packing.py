"""From a user's data to encoded requests in files: all that the plan can send, each once, before anything is sent.

Where the inputs of one model are the user's, the requests to all are encoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from squall.actors.load.streams import StreamRule
from squall.actors.load.targets import Wire, pack
from squall.actors.messages.packed import PackWriter
from squall.analysis.storage.manifest import DataFacts
from squall.cluster.driver.payload_wires import asked_of, stream_rule, wire_of
from squall.cluster.node.endpoint import Endpoint, specs_of
from squall.models.entries import Fitting, carried_entries
from squall.models.reference import Request, made_requests
from squall.models.spec import ModelSpec
from squall.scenarios.config.models import ModelScenario
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.data.opening import Data, faults_at, open_data
from squall.scenarios.errors import ClusterError, ScenarioError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan, codes_by_model, kinds_of

MOST_KINDS = 2**22
"""Of requests: a lane has 64 bytes for each, times the servers."""
Codes = NDArray[np.int64]
"""The kinds of requests to one model, sorted, its payload variants or entries counted from 0: see
`squall.scenarios.plan.plan.kind_code`."""


class GivenRequests:
    """The requests to a model with data: those of `codes`, to models of one spec."""

    def __init__(
        self, one: ModelScenario, codes: Codes, spec: ModelSpec, streams: StreamRule | None = None
    ) -> None:
        """`streams`: they are answered response by response. Raises ScenarioError where the data lacks what the model
        takes."""
        config = one.clients.data
        assert config is not None
        self.codes = codes
        self._one = one
        with faults_at(one):
            self._data = open_data(config)
        self._fitting = Fitting(
            spec, self._data, config.columns, one.clients.inputs, one.seed, one.model.shapes,
            one.place_of("data"), one.place_of("inputs"),
        )  # fmt: skip
        spec.validate_rows(int(kinds_of(codes)[0].max(initial=0)))
        self._asked, self._wire = asked_of(one, spec), wire_of(one, streams)

    @property
    def told(self) -> str:
        """What they are, for the screen."""
        left_out = self._fitting.left_out
        without = f", without the optional {', '.join(left_out)}" if left_out else ""
        return f"of {self._data.path} to {self._one.model.name}{without}"

    def read(self) -> Iterator[Request]:
        """(rows, entry, inputs) of each. Raises ScenarioError, with file and row, for what the model does not take."""
        with faults_at(self._one):
            yield from self._fitting.requests(self.codes)

    def check(self) -> DataFacts:
        """Reads all of it. Raises as `read`."""
        for _ in self.read():
            pass
        return self._facts(0)

    def write(self, path: Path) -> DataFacts:
        """Encodes all of it into `path`. Raises as `read`, and ClusterError where it cannot be written."""
        with faults_at(self._one):
            found = self._fitting.requests(self.codes)
            return self._facts(_write(path, self._asked, self._wire, found, self._data.fault))

    def _facts(self, n_bytes: int) -> DataFacts:
        return replace(facts_of(self._data), n_encoded=int(self.codes.size), encoded_bytes=n_bytes)


class MadeRequests:
    """Those to a model whose inputs squall makes."""

    def __init__(
        self, one: ModelScenario, codes: Codes, spec: ModelSpec, streams: StreamRule | None = None
    ) -> None:
        self.codes = codes
        self._one, self._spec = one, spec
        self._asked, self._wire = asked_of(one, spec), wire_of(one, streams)

    @property
    def told(self) -> str:
        """What they are, for the screen."""
        return f"to {self._one.model.name}"

    def read(self) -> Iterator[Request]:
        """(rows, payload variant, inputs) of each. Raises ScenarioError for what the model does not take."""
        one = self._one
        kinds = zip(*(column.tolist() for column in kinds_of(self.codes)), strict=True)
        return made_requests(self._spec, kinds, one.seed, one.model.shapes, one.clients.inputs)

    def write(self, path: Path) -> None:
        """Encodes all of them into `path`. Raises as `read`, and ClusterError where it cannot be written."""
        _write(path, self._asked, self._wire, self.read())


Requests = GivenRequests | MadeRequests


def _write(
    path: Path,
    asked: ModelSpec,
    wire: Wire,
    found: Iterable[Request],
    fault: Callable[[int, str], ScenarioError] | None = None,
) -> int:
    """Bytes of the file. `fault`: what is raised for an entry that does not travel, by its number and why."""
    try:
        writer = PackWriter(path)
        try:
            for rows, number, inputs in found:
                try:
                    pack(writer, asked, wire, (rows, number), inputs)
                except ScenarioError as error:
                    if fault is None:
                        raise
                    raise fault(number, str(error)) from error
            return writer.close()
        except BaseException:
            with contextlib.suppress(OSError):
                writer.abandon()
            raise
    except OSError as error:
        raise ClusterError(
            f"encoded requests cannot be written to {path.parent}: {error.strerror}"
        ) from error


def encoded_by_model(
    scenario: Scenario, plan: Plan | ClosedPlan, endpoints: Sequence[Endpoint]
) -> tuple[Requests, ...]:
    """The requests to each model of a scenario with data, as the servers have it. Raises ScenarioError where the data
    lacks what its model takes, where servers differ in a model, where the plan can send too much, and as
    `stream_rule`."""
    found: list[Requests] = []
    streams = stream_rule(scenario, specs_of(endpoints))
    for one, codes in zip(scenario.models, sendable(scenario, plan), strict=True):
        spec = one_spec(one, [spec for at in endpoints if (spec := at.spec_of(one.model.name)) is not None])
        kind = MadeRequests if one.clients.data is None else GivenRequests
        found.append(kind(one, codes, spec, streams))
    return tuple(found)


def sendable(scenario: Scenario, plan: Plan | ClosedPlan) -> tuple[Codes, ...]:
    """What the plan can send to each model. Raises ScenarioError where that is too much to be encoded."""
    if scenario.has_data and isinstance(plan, ClosedPlan):
        _refuse_many(plan.models[-1].stop, scenario)  # before they are counted out
    codes = plan.kind_codes()
    if scenario.has_data:
        _refuse_many(codes.size, scenario)
    return codes_by_model(codes, plan.models)


def told_in_manifest(scenario: Scenario, facts: Sequence[DataFacts | None]) -> dict[str, Any]:
    """Fields of the manifest: what is told of the data of each model."""
    if len(facts) == 1:
        return {"data": facts[0]}
    names = scenario.model_names
    return {"data_by_model": {name: one for name, one in zip(names, facts, strict=True) if one is not None}}


def facts_of(data: Data) -> DataFacts:
    """Without what is encoded of it."""
    return DataFacts(path=str(data.path), format=data.format, sha256=data.sha256(), n_entries=data.n_entries)


def one_spec(one: ModelScenario, specs: Collection[ModelSpec]) -> ModelSpec:
    """Of a model: that of all servers, whose model may differ in its version. Raises ScenarioError where it differs in
    more."""
    first, *others = specs
    if any(replace(other, version=first.version) != first for other in others):
        of = one.place_of("data") if one.clients.data is not None else f"models.{first.name}"
        raise ScenarioError(f"{of}: the servers' models take different inputs, and requests are encoded once")
    return first


def check_without_spec(one: ModelScenario, codes: Codes) -> DataFacts:
    """Reads what can be sent to a model that is not known yet. Raises ScenarioError for what cannot be read."""
    config = one.clients.data
    assert config is not None
    with faults_at(one):
        data = open_data(config)
        for _ in data.read(carried_entries(*kinds_of(codes), data.n_entries), data.names):
            pass
        return facts_of(data)


def _refuse_many(n_kinds: int, scenario: Scenario) -> None:
    if n_kinds <= MOST_KINDS:
        return
    data = scenario.clients.data
    where, what = ("clients.data", f" of {data.path}") if data is not None else ("models", "")
    raise ScenarioError(
        f"{where}: {n_kinds:,} different requests can be sent{what}, at most {MOST_KINDS:,} are encoded; state limit"
        f"{' of the data' if data is None else ''}, or fewer numbers of rows"
    )
