"""What a scenario cannot have beside Locust's load: it would change nothing, and say that it did."""

from __future__ import annotations

from collections.abc import Sequence

from squall.scenarios.config.clients.client import ClientConfig
from squall.scenarios.config.clients.request import RequestConfig
from squall.scenarios.config.models.mix import ModelEntry

_OF_LOCUST = {
    "workers_per_node", "on_client_loss", "inputs", "payload_variants", "request", "headers", "timeout_ns",
    "largest_reply_bytes",
}  # fmt: skip
"""Keys of `clients` that mean something there: of its workers, and of what a TritonUser sends."""
_OF_OWN_CLIENT = ("rows", "data", "check")
"""Keys of an entry of `models` that mean nothing there."""


def refuse_clients(clients: ClientConfig) -> None:
    """Raises ValueError for keys of squall's own client."""
    for name, field in ClientConfig.model_fields.items():
        if name not in _OF_LOCUST and getattr(clients, name) != field.get_default(call_default_factory=True):
            raise ValueError(
                f"clients.{field.alias or name}: is of squall's own client, and load.locust has Locust's; leave it out"
            )
    _refuse_compression("clients.request", clients.request)


def refuse_models(models: Sequence[ModelEntry]) -> None:
    """Raises ValueError for what entries of `models` say of the requests of squall's own client."""
    for index, entry in enumerate(models):
        where = f"models[{index}]"
        if entry.share != 1.0:
            raise ValueError(f"{where}.share: the locustfile says which models its users ask; leave it out")
        for key in _OF_OWN_CLIENT:
            if getattr(entry, key) is not None:
                raise ValueError(
                    f"{where}.{key}: is of squall's own client, and load.locust has Locust's; leave it out"
                )
        _refuse_compression(f"{where}.request", entry.request)


def _refuse_compression(where: str, request: RequestConfig | None) -> None:
    if request is not None and request.compression is not None:
        raise ValueError(f"{where}.compression: a TritonUser compresses nothing; leave it out")
