"""From a user's data to encoded requests in a file: all that the plan can send, each once, before anything is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from squall.actors.load.targets import pack
from squall.actors.messages.packed import PackWriter
from squall.analysis.tables.manifest import DataFacts
from squall.cluster.driver.payloads.wires import asked_of, wire_of
from squall.models.entries import Fitting, Inputs, refuse_rows, requests
from squall.models.spec import ModelSpec
from squall.scenarios.config.clients.data import DataConfig
from squall.scenarios.config.scenario import Scenario
from squall.scenarios.data.opening import Data, open_data
from squall.scenarios.errors import ClusterError, ScenarioError
from squall.scenarios.plan.closed import ClosedPlan
from squall.scenarios.plan.plan import Plan, kinds_of

MOST_KINDS = 2**22
"""Of requests: a lane has 64 bytes for each, times the servers."""


class GivenRequests:
    """The requests of a scenario with data: those that its plan can send, to models of one spec."""

    def __init__(self, scenario: Scenario, plan: Plan | ClosedPlan, spec: ModelSpec) -> None:
        """Raises ScenarioError where the data lacks what the model takes, or the plan can send too much."""
        config = scenario.clients.data
        assert config is not None
        if isinstance(plan, ClosedPlan):
            _refuse_many(plan.n_variants, config)  # before they are counted out
        self.codes = plan.kind_codes()
        _refuse_many(self.codes.size, config)
        self._data = open_data(config)
        clients = scenario.clients
        self._fitting = Fitting(
            spec, self._data, config.columns, clients.inputs, scenario.seed, scenario.model.shapes
        )
        refuse_rows(spec, int(kinds_of(self.codes)[0].max(initial=0)))
        self._spec = asked_of(scenario, spec)
        self._wire = wire_of(scenario, spec)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Optional inputs of the model that no request has."""
        return self._fitting.left_out

    def read(self) -> Iterator[tuple[int, int, Inputs]]:
        """(rows, entry, inputs) of each. Raises ScenarioError, with file and row, for what the model does not take."""
        return requests(self._data, self._fitting, self.codes)

    def check(self) -> DataFacts:
        """Reads all of it. Raises as `read`."""
        for _ in self.read():
            pass
        return self._facts(0)

    def write(self, path: Path) -> DataFacts:
        """Encodes all of it into `path`. Raises as `read`, and ClusterError where it cannot be written."""
        try:
            writer = PackWriter(path)
            try:
                for rows, number, inputs in self.read():
                    self._pack(writer, rows, number, inputs)
                n_bytes = writer.close()
            except BaseException:
                with contextlib.suppress(OSError):
                    writer.abandon()
                raise
        except OSError as error:
            raise ClusterError(
                f"encoded requests cannot be written to {path.parent}: {error.strerror}"
            ) from error
        return self._facts(n_bytes)

    def _pack(self, writer: PackWriter, rows: int, number: int, inputs: Inputs) -> None:
        try:
            pack(writer, self._spec, self._wire, (rows, number), inputs)
        except ScenarioError as error:  # of what it travels as, which knows no row
            raise self._data.fault(number, str(error)) from error

    def _facts(self, n_bytes: int) -> DataFacts:
        return replace(facts_of(self._data), n_encoded=int(self.codes.size), encoded_bytes=n_bytes)


def facts_of(data: Data) -> DataFacts:
    """Without what is encoded of it."""
    return DataFacts(path=str(data.path), format=data.format, sha256=data.sha256(), n_entries=data.n_entries)


def one_spec(specs: Collection[ModelSpec]) -> ModelSpec:
    """That of all servers, whose model may differ in its version. Raises ScenarioError where it differs in more."""
    first, *others = specs
    if any(replace(other, version=first.version) != first for other in others):
        raise ScenarioError(
            "clients.data: the servers' models take different inputs, and the data is encoded once"
        )
    return first


def check_without_spec(scenario: Scenario, plan: Plan | ClosedPlan) -> DataFacts:
    """Reads what the plan can send where the model is not known yet. Raises ScenarioError for what cannot be read."""
    config = scenario.clients.data
    assert config is not None
    data = open_data(config)
    rows, firsts = kinds_of(plan.kind_codes())
    used = np.zeros(data.n_entries, np.bool_)
    for more in range(min(int(rows.max(initial=0)), data.n_entries)):
        used[(firsts[rows > more] + more) % data.n_entries] = True
    for _ in data.read(np.flatnonzero(used), data.names):
        pass
    return facts_of(data)


def _refuse_many(n_kinds: int, config: DataConfig) -> None:
    if n_kinds > MOST_KINDS:
        raise ScenarioError(
            f"clients.data: {n_kinds:,} different requests can be sent of {config.path}, at most {MOST_KINDS:,} are"
            " encoded; state limit, or fewer numbers of rows"
        )
