"""What was sent, what came back, and how the client kept up."""

from __future__ import annotations

from squall.analysis.columns import INTERVAL, OF_NODE, RUN, PhaseAt, PhaseFrom, T, Table, columns

OUTCOMES = (
    "ok",
    "rejected",
    "timeout",
    "cancelled",
    "server_error",
    "transport_error",
    "bad_reply",
    "unsent",
    "lost",
)
"""How a scheduled arrival can end; exactly one each. `rejected`: the server's queue policy refused it (full
queue or queue timeout). `timeout`: no whole reply within the client's timeout. `cancelled`: still in flight
when the drain or the run ended. `server_error`: any other error status. `transport_error`: the connection
failed. `bad_reply`: status 200, but not the reply that the model's spec promises, or wrong values. `unsent`: known
never to have been sent. `lost`: its record is gone; it may have been sent, and answered."""
OUTCOME_CODE = {name: code for code, name in enumerate(OUTCOMES)}
"""What stands for an outcome in the records of workers."""

HUNG_UP = "hung up after"
"""How `detail` begins of a request that ended ok, and that the client cut short as the scenario asks."""

REQUEST = columns(
    RUN,
    f"""
    phase           text      phase in which the arrival was scheduled; closed loop: in which its user issued it
    node            text      node of the client worker
    request_id      id        also the request id that Triton sees. Position in the global schedule, 0..n-1; closed
                              loop: user + users of the run * count of the user's requests before it; Locust: worker +
                              workers of the run * count of the worker's requests before it
    worker          id        client worker that was dealt the arrival; closed loop: its user
    target          text      server that the request was for; empty where one was to be chosen at a send that never was
    request_kind    text      kind of request: the name of the model that it asks; Locust: empty where it asks none
    scheduled_ns    instant?  when the schedule says the request leaves; null in a closed-loop run and in one of Locust,
                              which have none
    sent_ns         instant?  just before the first byte was written; null if never sent, or lost; Locust: done_ns less
                              the response time
    first_byte_ns   instant?  first byte of the reply arrived; null if none did
    done_ns         instant?  last byte of the reply arrived, or the request was given up; null if unsent or lost
    rows            count     rows of the batch dimension in the request
    request_bytes   bytes     bytes written: head and body; 0 if unsent or lost
    response_bytes  bytes     body bytes received
    outcome         text      how it ended: {", ".join(OUTCOMES)}
    method          text?     Locust: method, or type, of the request; null otherwise
    name            text?     Locust: name that it counts the request under; null otherwise
    detail          text      why it failed, in the server's or the transport's words; or that max_in_flight or its
                              sequence held it back
    """,
)


TABLES = (
    Table(
        "requests",
        "scheduled arrival; closed loop: request of a user",
        PhaseFrom("the plan: of `scheduled_ns`; closed loop: of the instant at which its user issued it"),
        REQUEST,
    ),
    Table(
        "responses",
        "response to a request that is answered response by response (`clients.stream`, decoupled models)",
        PhaseFrom("its request"),
        columns(
            RUN,
            """
            phase           text     phase of its request
            node            text     node of the client worker
            worker          id       client worker that received it
            target          text     server that sent it
            request_id      id       the request that it answers, as in `requests`
            index           count    responses to that request before it
            t_ns            instant  all of it had arrived
            response_bytes  bytes    its length: gRPC the message, HTTP the event
            tokens          count?   elements of the output that `clients.stream.tokens` names; null where none is named
            is_final        claim    the last one of a request that ended ok, and that the client did not cut short
            """,
        ),
    ),
    Table(
        "worker_samples",
        "second of a client worker",
        PhaseAt("t_ns"),
        columns(
            *OF_NODE,
            "worker  id  client worker",
            T,
            INTERVAL,
            """
            n_due            count  arrivals scheduled in the interval; closed loop: requests that users were ready for
            n_sent           count  requests sent in the interval
            n_done           count  requests that ended in the interval
            n_backlog        count  arrivals due but not yet sent at t_ns, those held back included
            n_held           count  arrivals held back at t_ns, by max_in_flight or the order of their sequence
            n_in_flight      count  requests in flight at t_ns
            n_connections    count  open connections at t_ns
            n_socket_errors  count  connections that failed or broke in the interval
            n_write_pauses   count  sends in the interval that found the socket full
            lag_max_ns       ns     largest send lag of the interval; closed loop: time beyond a user's think time
            loop_lag_ns      ns     how late the event loop ran this sample's own timer
            cpu_ns           ns     CPU time of the worker process in the interval, spin_ns included
            spin_ns          ns     CPU time spent waiting busily for the next instant: not counted as load
            gc_count         count  garbage collections in the interval
            gc_pause_ns      ns     time in garbage collections in the interval
            """,
        ),
    ),
)
