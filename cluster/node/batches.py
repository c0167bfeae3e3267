"""The models' own batch records, which `models/backend/model.py` writes, from their files to table `batches`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.analysis.schema import NO_DEVICE, arrow_schema
from squall.models.payload import ID_DIGITS

_ROWS_A_TABLE = 20_000


def read_batches(folder: Path, labels: Mapping[str, str], losses: list[str]) -> Iterator[pa.Table]:
    """Tables of at most 20,000 rows, instants on the node's monotonic clock.

    `labels`: run, node, server, model and version of every row. A line cut off by the server's end, and
    records the model could not write, are told in `losses`.
    """
    for path in sorted(folder.glob("*.jsonl")):
        (instance, device), rows, n_lost, n_cut = _of_name(path.stem), [], 0, 0
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = _parse(line)
                if record is None:
                    n_cut += 1
                elif "instance" in record:
                    instance, device = record["instance"], record.get("device", device)
                else:
                    n_lost = max(n_lost, record.get("lost", 0))
                    rows.append(_row(record, labels, instance, device))
                if len(rows) == _ROWS_A_TABLE:
                    yield _table(rows)
                    rows = []
        if rows:
            yield _table(rows)
        if n_lost or n_cut:
            losses.append(
                f"batches: instance {path.stem}: {n_lost} records were not written, {n_cut} lines are cut off"
            )


def _of_name(stem: str) -> tuple[str, int]:
    """Instance and device that the name of a record says; the line before the records says it again."""
    found = re.fullmatch(r"(.+)\.gpu([0-9]+)", stem)
    return (stem, NO_DEVICE) if found is None else (found[1], int(found[2]))


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _row(record: Mapping[str, Any], labels: Mapping[str, str], instance: str, device: int) -> dict[str, Any]:
    ids = record["i"]
    ours = [int(text) for text in ids if len(text) == ID_DIGITS and text.isascii() and text.isdigit()]
    return {
        **labels, "phase": "", "instance": instance, "instance_device": device, "batch_id": record["b"],
        "recorded_by": "model", "exec_start_ns": None, "exec_end_ns": None, "n_failed": None,
        "start_ns": record["s"], "end_ns": record["e"], "rows": record["r"], "n_requests": len(ids),
        "request_ids": ours, "n_foreign": len(ids) - len(ours),
    }  # fmt: skip


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=arrow_schema("batches"))
