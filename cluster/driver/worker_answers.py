"""What the load workers say of themselves after the load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from squall.actors.client_worker import Account, ClientWorker
from squall.actors.process.priority import MOST_SHARE
from squall.analysis.storage.deployed import WorkerFacts
from squall.cluster.driver.client_workers import Worker, told_of_addresses
from squall.scenarios.errors import LostActor, SquallError
from squall.scenarios.units import NS_PER_S

_ANSWER_TIMEOUT_S = 10.0

Answer = TypeVar("Answer")


def answers_of(
    workers: Sequence[Worker], method: Callable[[ClientWorker], Answer], told: list[str]
) -> list[tuple[Worker, Answer]]:
    """What the workers that live answer, all asked at once. What goes wrong is added to `told`."""
    asked, found = [], []
    for worker in workers:
        if not worker.is_lost:
            with suppress(LostActor):  # what it had is on its disk
                asked.append((worker, worker.handle.begin(method)))
    until = time.monotonic() + _ANSWER_TIMEOUT_S
    for worker, reference in asked:
        try:
            answer = worker.handle.wait(reference, max(0.0, until - time.monotonic()))
        except SquallError as error:
            told.append(f"{method.__name__}: {error}")
        else:
            found.append((worker, answer))
    return found


def with_accounts(
    known: Sequence[WorkerFacts], workers: Sequence[Worker], answers: Sequence[tuple[Worker, Account]]
) -> tuple[tuple[WorkerFacts, ...], list[str]]:
    """`known`, by number of the worker, with what workers have answered; and what is to be told of that."""
    facts, told = list(known), list[str]()
    numbers = {id(worker): index for index, worker in enumerate(workers)}
    for worker, account in answers:
        at = numbers[id(worker)]
        facts[at] = replace(
            facts[at],
            scheduling=account.scheduling,
            n_demotions=account.n_demotions,
            demoted_ns=account.demoted_ns,
            ready_before_ns=account.ready_before_ns,
            addresses=account.addresses,
        )
        if account.n_demotions:
            told.append(
                f"{worker.handle.name} used more than {MOST_SHARE:g} of a core and went on without its priority for"
                f" {account.demoted_ns / NS_PER_S:.1f} s"
            )
        if account.ready_before_ns is not None and account.ready_before_ns < 0:
            late_s = -account.ready_before_ns / NS_PER_S
            told.append(f"{worker.handle.name} began {late_s:.3f} s after the agreed instant")
    return tuple(facts), told + told_of_addresses(facts)[1]
