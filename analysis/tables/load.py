"""What was sent, what came back, and how the client kept up."""

from __future__ import annotations

from squall.analysis.tables.columns import (
    INTERVAL,
    NODE,
    PHASE,
    RUN,
    PhaseAt,
    PhaseFrom,
    T,
    Table,
    at,
    bytes_,
    count,
    flag,
    id_,
    ns,
    text,
)

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

REQUEST = (
    RUN,
    text("phase", "phase in which the arrival was scheduled; closed loop: in which its user issued it"),
    text("node", "node of the client worker"),
    id_(
        "request_id",
        "also the request id that Triton sees. Position in the global schedule, 0..n-1; closed loop:"
        " user + users of the run * count of the user's requests before it; Locust: worker + workers of the run *"
        " count of the worker's requests before it",
    ),
    id_("worker", "client worker that was dealt the arrival; closed loop: its user"),
    text(
        "target",
        "server that the request was for; empty where one was to be chosen at a send that never was",
    ),
    text(
        "request_kind",
        "kind of request: the name of the model that it asks; Locust: empty where it asks none",
    ),
    at(
        "scheduled_ns",
        "when the schedule says the request leaves; null in a closed-loop run and in one of Locust, which have none",
        nullable=True,
    ),
    at(
        "sent_ns",
        "just before the first byte was written; null if never sent, or lost; Locust: done_ns less the response time",
        nullable=True,
    ),
    at("first_byte_ns", "first byte of the reply arrived; null if none did", nullable=True),
    at(
        "done_ns",
        "last byte of the reply arrived, or the request was given up; null if unsent or lost",
        nullable=True,
    ),
    count("rows", "rows of the batch dimension in the request"),
    bytes_("request_bytes", "bytes written: head and body; 0 if unsent or lost"),
    bytes_("response_bytes", "body bytes received"),
    text("outcome", "how it ended: " + ", ".join(OUTCOMES)),
    text("method", "Locust: method, or type, of the request; null otherwise", nullable=True),
    text("name", "Locust: name that it counts the request under; null otherwise", nullable=True),
    text(
        "detail",
        "why it failed, in the server's or the transport's words; or that max_in_flight or its sequence held it back",
    ),
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
        (
            RUN,
            text("phase", "phase of its request"),
            text("node", "node of the client worker"),
            id_("worker", "client worker that received it"),
            text("target", "server that sent it"),
            id_("request_id", "the request that it answers, as in `requests`"),
            count("index", "responses to that request before it"),
            at("t_ns", "all of it had arrived"),
            bytes_("response_bytes", "its length: gRPC the message, HTTP the event"),
            count(
                "tokens",
                "elements of the output that `clients.stream.tokens` names; null where none is named",
                nullable=True,
            ),
            flag(
                "is_final", "the last one of a request that ended ok, and that the client did not cut short"
            ),
        ),
    ),
    Table(
        "worker_samples",
        "second of a client worker",
        PhaseAt("t_ns"),
        (
            RUN,
            PHASE,
            NODE,
            id_("worker", "client worker"),
            T,
            INTERVAL,
            count(
                "n_due", "arrivals scheduled in the interval; closed loop: requests that users were ready for"
            ),
            count("n_sent", "requests sent in the interval"),
            count("n_done", "requests that ended in the interval"),
            count("n_backlog", "arrivals due but not yet sent at t_ns, those held back included"),
            count("n_held", "arrivals held back at t_ns, by max_in_flight or the order of their sequence"),
            count("n_in_flight", "requests in flight at t_ns"),
            count("n_connections", "open connections at t_ns"),
            count("n_socket_errors", "connections that failed or broke in the interval"),
            count("n_write_pauses", "sends in the interval that found the socket full"),
            ns(
                "lag_max_ns", "largest send lag of the interval; closed loop: time beyond a user's think time"
            ),
            ns("loop_lag_ns", "how late the event loop ran this sample's own timer"),
            ns("cpu_ns", "CPU time of the worker process in the interval, spin_ns included"),
            ns("spin_ns", "CPU time spent waiting busily for the next instant: not counted as load"),
            count("gc_count", "garbage collections in the interval"),
            ns("gc_pause_ns", "time in garbage collections in the interval"),
        ),
    ),
)
