"""How a node's clock was read. What is sampled of a node stands beside its source: `squall.actors.sampling.sampled`."""

from __future__ import annotations

from squall.analysis.columns import OF_NODE, PhaseAt, Table, columns

TABLES = (
    Table(
        "clock_probes",
        "exchange of four time stamps between driver and a node",
        PhaseAt("sent_ns"),
        columns(
            *OF_NODE,
            """
            sent_ns           instant  the driver sent the probe
            node_received_ns  ns       the node got it, on the node's own monotonic clock
            node_sent_ns      ns       the node answered, on the node's own monotonic clock
            received_ns       instant  the driver had the answer
            """,
        ),
    ),
)
