"""What the verdict says first: the causes of what is amiss, the one that explains the next before it.

    driver killed         the load ended with it, and the run was resumed
    server not there      no connection, or it broke, or nobody ever answered
    server refuses        an error status: the queue policy's, or any other
    server wrong          answers that are not those of the model's spec
    others took the CPU   of a node of the run: clients and server waited for it
    others took the GPU   of a server: its batches took longer beside their work
    server slow           no answer within the client's timeout, though others were answered
    client                it did not keep up, for reasons of its own

A server that fails is the cause of what follows from it, so that it comes before what the client may show; a host whose
CPU others have is the cause of timeouts and of a late client, and comes before both. It can be the cause of a server's
silence from begin to end as well, which without it is a server that is not there.
"""

from __future__ import annotations

from squall.analysis.requests.failures import ABSENT, CLIENT, REFUSES, SILENT, SLOW, WRONG
from squall.analysis.storage.sealed import Bottleneck, Cause, Failures, Starvation
from squall.analysis.verdict.server_checks import CLIENTS as STARVED_BY_CLIENTS
from squall.analysis.verdict.server_checks import makes_invalid

OTHERS = "others took the CPU"
DRIVER = "driver killed"
OTHERS_GPU = "others took the GPU"
ORDER = (DRIVER, ABSENT, REFUSES, WRONG, OTHERS, OTHERS_GPU, SLOW, CLIENT)
"""Kinds of causes, the first one first."""


def causes_of(
    failures: Failures,
    starvation: Starvation | None,
    starved_clients: str,
    bottleneck: Bottleneck | None,
    driver_ended: str = "",
    shared_gpu: str = "",
) -> tuple[Cause, ...]:
    """What there is, in order; None, an empty sentence, or failures within what is expected, are no cause.

    `driver_ended`: when the driver was killed, and what that did. `starvation`: of the server, by others or the
    clients; its quota is how it is deployed. `starved_clients`: that others took the CPU of a client that did not keep
    up; `shared_gpu`: that they took a GPU of a server.
    """
    starved = starvation.sentence if starvation is not None and makes_invalid(starvation) else ""
    is_own = starvation is not None and starvation.starved_by == STARVED_BY_CLIENTS
    told = (
        (DRIVER, driver_ended),
        (failures.kind, failures.sentence if failures.is_beyond else ""),
        (CLIENT if is_own else OTHERS, starved or starved_clients),
        (OTHERS_GPU, shared_gpu),
        (CLIENT, bottleneck.sentence if bottleneck is not None else ""),
    )
    found = [Cause(kind=kind, sentence=sentence) for kind, sentence in told if sentence]
    order = {kind: place for place, kind in enumerate(ORDER)}
    if failures.groups and all(one.outcome in SILENT for one in failures.groups):
        order[ABSENT] = order[SLOW]
    return tuple(sorted(found, key=lambda one: order[one.kind]))
