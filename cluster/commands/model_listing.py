"""Models of a server as one table."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from squall.cluster.commands.draft_lines import scalar
from squall.cluster.commands.served_models import ServedModel


def listing(models: Iterable[ServedModel]) -> Table:
    """A row for each: its versions with the latest first, its inputs, the most rows of a request, its kind."""
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
    )
    table.add_column("Model", overflow="fold")
    table.add_column("Version", overflow="fold")
    table.add_column("Inputs", overflow="fold")
    table.add_column("Rows", justify="right", no_wrap=True)
    table.add_column("Kind", no_wrap=True)
    for model in models:
        others = [version for version in model.versions if version != model.version]
        rows = int(model.config.get("max_batch_size", 0)) or 1
        kind = model.kind if model.obstacle() is None else f"{model.kind} (not yet)"
        table.add_row(scalar(model.name), ", ".join([model.version, *others]), model.inputs, str(rows), kind)
    return table
