"""What Locust ran and said, for the manifest: its instants on the run clock, its workers as they ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import TypeVar

import pyarrow as pa

from squall.actors.locust.locust_master import MasterAccount
from squall.actors.locust.locust_worker import LocustWorker
from squall.actors.locust.settings import LocustSettings
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.locust import LocustFacts, LocustWorkerFacts
from squall.analysis.storage.store import RunStore
from squall.cluster.driver.issued import Issued
from squall.cluster.remote.spawn import Handle
from squall.scenarios.errors import SquallError
from squall.scenarios.records import Frozen

_ANSWER_S = 10.0

Answer = TypeVar("Answer")


class Ended(Frozen):
    """What is known of a worker at its end: `counted`, requests, failures and exit code, None of one that did not end
    in order; `n_users` that it ran when it was lost, 0 of any other, None where nobody can say: the process that
    watched it is gone too."""

    counted: tuple[int, int, int] | None = None
    n_users: int | None = 0


def ended_workers(workers: Sequence[Handle[LocustWorker]], is_lost: Sequence[bool]) -> list[Ended]:
    """Of each worker, in order, all asked at once. The process of a worker that is lost may have died with its users,
    or have outlived them and know of them."""
    counted, n_users = _answers(workers, LocustWorker.counted), _answers(workers, LocustWorker.n_users)
    return [
        Ended(counted=None if lost else found, n_users=n if lost else 0)
        for found, n, lost in zip(counted, n_users, is_lost, strict=True)
    ]


def _answers(
    workers: Sequence[Handle[LocustWorker]], method: Callable[[LocustWorker], Answer]
) -> list[Answer | None]:
    asked: list[Future[Answer] | None] = []
    for worker in workers:
        reference = None
        with suppress(SquallError):
            reference = worker.begin(method)
        asked.append(reference)
    until, found = time.monotonic() + _ANSWER_S, list[Answer | None]()
    for worker, one in zip(workers, asked, strict=True):
        answer = None
        if one is not None:
            with suppress(SquallError):
                answer = worker.wait(one, max(0.0, until - time.monotonic()))
        found.append(answer)
    return found


def last_users(samples: pa.Table) -> dict[int, int]:
    """Users of each worker in the last row that it wrote of `locust_samples`; of those that wrote one."""
    rows = samples.sort_by("t_ns")
    return dict(zip(rows.column("worker").to_pylist(), rows.column("n_users").to_pylist(), strict=True))


def with_last_users(ended: Sequence[Ended], store: RunStore, issued: Issued) -> tuple[list[Ended], list[str]]:
    """Of workers that nobody can be asked about what they wrote last; and each as a loss, as what it had not written
    is."""
    has_samples = store.has("locust_samples")
    users = last_users(store.read("locust_samples", ["worker", "t_ns", "n_users"])) if has_samples else {}
    losses = [
        f"worker {number}: its {users.get(number, 0)} users are gone with what watched them, and what these had done in"
        f" the last second; {issued.rows_of(number)} of its requests are kept"
        for number, one in enumerate(ended)
        if one.n_users is None
    ]
    found = [
        replace(one, n_users=users.get(number, 0)) if one.n_users is None else one
        for number, one in enumerate(ended)
    ]
    return found, losses


def first_facts(settings: LocustSettings, account: MasterAccount) -> LocustFacts:
    """Before the load: of a run whose driver dies nothing more is known."""
    return LocustFacts(
        version=account.version or version("locust"),
        file=settings.files.locustfile,
        file_sha256=settings.files.sha256(),
        node=settings.node,
        user_classes=account.user_classes,
        shape=account.shape,
        host=settings.config.host or "",
        late_ns=settings.late_ns,
        is_whole=False,
    )


def last_facts(
    settings: LocustSettings, account: MasterAccount, clock: ClockTrack, workers: Sequence[Ended]
) -> LocustFacts:
    """After the load; `clock`: of the master's node. Without `files`, which are yet to be written."""
    asked = tuple(replace(one, t_ns=clock.target_ns(one.t_ns)) for one in account.asked)
    ended_ns = None if account.ended_ns is None else clock.target_ns(account.ended_ns)
    facts = tuple(
        LocustWorkerFacts(
            worker=number,
            n_requests=None if one.counted is None else one.counted[0],
            n_failures=None if one.counted is None else one.counted[1],
            has_reported=number in account.reported,
            n_users_lost=one.n_users or 0,
        )
        for number, one in enumerate(workers)
    )
    return replace(
        first_facts(settings, account),
        asked=asked,
        ended_ns=ended_ns,
        entries=account.entries,
        failures=account.failures,
        exceptions=account.exceptions,
        workers=facts,
        is_whole=account.is_whole,
        exit_code=next(
            filter(None, (account.exit_code, *(one.counted[2] for one in workers if one.counted))), 0
        ),
    )
