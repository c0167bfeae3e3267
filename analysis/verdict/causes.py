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
from squall.analysis.verdict.server_checks import OTHERS as STARVED_BY_OTHERS
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
    found = [Cause(kind=DRIVER, sentence=driver_ended)] if driver_ended else []
    if failures.is_beyond:
        found.append(Cause(kind=failures.kind, sentence=failures.sentence))
    if starvation is not None and makes_invalid(starvation):
        kind = OTHERS if starvation.starved_by == STARVED_BY_OTHERS else CLIENT
        found.append(Cause(kind=kind, sentence=starvation.sentence))
    elif starved_clients:
        found.append(Cause(kind=OTHERS, sentence=starved_clients))
    if shared_gpu:
        found.append(Cause(kind=OTHERS_GPU, sentence=shared_gpu))
    if bottleneck is not None:
        found.append(Cause(kind=CLIENT, sentence=bottleneck.sentence))
    order = {kind: place for place, kind in enumerate(ORDER)}
    if failures.groups and all(one.outcome in SILENT for one in failures.groups):
        order[ABSENT] = order[SLOW]
    return tuple(sorted(found, key=lambda one: order[one.kind]))
