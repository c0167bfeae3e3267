"""What a scenario cannot have beside Locust's load: it would change nothing, and say that it did."""

from __future__ import annotations

from squall.scenarios.config.clients.client import ClientConfig

_OF_LOCUST = {
    "workers_per_node", "on_client_loss", "inputs", "payload_variants", "request", "headers", "timeout_ns",
}  # fmt: skip
"""Keys of `clients` that mean something there: of its workers, and of what a TritonUser sends."""


def refuse_clients(clients: ClientConfig) -> None:
    """Raises ValueError for keys of squall's own client."""
    for name, field in ClientConfig.model_fields.items():
        if name not in _OF_LOCUST and getattr(clients, name) != field.get_default(call_default_factory=True):
            raise ValueError(
                f"clients.{field.alias or name}: is of squall's own client, and load.locust has Locust's; leave it out"
            )
    if clients.on_client_loss == "redeal":
        raise ValueError(
            "clients.on_client_loss: redeal is for arrivals of a schedule; users of Locust move to other workers with"
            " load.locust.options: [--enable-rebalancing]"
        )
    if clients.request is not None and clients.request.compression is not None:
        raise ValueError("clients.request.compression: a TritonUser compresses nothing; leave it out")
