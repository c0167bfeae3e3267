"""Records of batches, from their files to table `batches`: the models' own, which `models/backend/model.py` writes, and
those of the batch library or of the hook in Python models (`squall.cluster.node.injected`)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from squall.actors.inject.batch_ring import CutOff, RecordedBatch, recorded_batches
from squall.actors.spill import bounded
from squall.analysis.storage.schema import NO_DEVICE, arrow_schema
from squall.models.payload import ID_DIGITS, LEAST_TRIAL_ID
from squall.scenarios.foreign_file import plain_opener
from squall.scenarios.foreign_text import json_of, printable

_ROWS_A_TABLE = 20_000
_MOST_ROWS = 2**31
_MOST_LINE_BYTES = 2**20
"""Of a batch of 60,000 requests."""


def read_batches(folder: Path, labels: Mapping[str, str], losses: list[str]) -> Iterator[pa.Table]:
    """Tables of at most 20,000 rows, instants on the node's monotonic clock.

    `labels`: run, node, server, model and version of every row; of a file in MODEL/VERSION/ these two are its own,
    where a server has several models that record. A line cut off by the server's end, and records the model could
    not write, are told in `losses`. Batches of requests that were tried before the load are left out; the others keep
    their ids, which the ranges of nsys bear, too.
    """
    for path in sorted([*folder.glob("*.jsonl"), *folder.glob("*/*/*.jsonl")]):
        if path.parent != folder:
            labels = {**labels, "model": bounded(path.parts[-3]), "version": bounded(path.parts[-2])}
        (instance, device), rows, n_lost, n_cut = _of_name(path.stem), [], 0, 0
        try:
            for line in _lines(path):
                record = _parse(line)
                if record is None:
                    n_cut += 1
                elif "instance" in record:
                    instance, device = bounded(record["instance"]), record.get("device", device)
                else:
                    n_lost = max(n_lost, record.get("lost", 0))
                    row = _row(record, labels, instance, device)
                    if not row["request_ids"] or min(row["request_ids"]) < LEAST_TRIAL_ID:
                        rows.append(row)
                if len(rows) == _ROWS_A_TABLE:
                    yield _table(rows)
                    rows = []
        except OSError as error:
            losses.append(f"batches: {printable(path.name)} cannot be read: {error.strerror}")
        if rows:
            yield _table(rows)
        if n_lost or n_cut:
            told = f"{n_lost} records were not written, {n_cut} lines are cut off"
            losses.append(f"batches: instance {printable(path.stem)}: {told}")


def read_recorded(
    files: Iterable[Path], labels: Mapping[str, str], from_ns: int, losses: list[str], notes: list[str]
) -> Iterator[pa.Table]:
    """As `read_batches`, of files of what library or hook recorded; batches before `from_ns` are left out.

    `labels`: run, node and server of every row; `from_ns`: begin of the load on the node's clock, before which a server
    executes its models' warm-up. Ids count the batches of a name of an instance and its device, whatever its model:
    instances of two models, or of two versions of one, may bear one name.
    """
    rows: list[dict[str, Any]] = []
    n_of: Counter[tuple[str, int]] = Counter()
    n_before, n_untimed, n_strange = 0, 0, 0
    for batch in (one for path in files for one in recorded_batches(path)):
        if isinstance(batch, CutOff):
            losses.append(f"batches: {batch.n_bytes} bytes of what was recorded are no record")
            continue
        start_ns, end_ns = batch.compute_start_ns or batch.start_ns, batch.compute_end_ns or batch.end_ns
        if not (start_ns and end_ns):
            n_untimed += 1
        elif start_ns < from_ns:
            n_before += 1
        elif batch.rows > _MOST_ROWS:
            n_strange += 1
        else:
            key = batch.instance, batch.device
            rows.append(_recorded_row(batch, labels, (start_ns, end_ns), n_of[key]))
            n_of[key] += 1
            if len(rows) == _ROWS_A_TABLE:
                yield _table(rows)
                rows = []
    if rows:
        yield _table(rows)
    if n_strange:
        losses.append(f"batches: {n_strange} of more rows than a batch can have")
    if n_before:
        notes.append(f"batches: {n_before} before the load, such as warm-ups of the model, are left out")
    if n_untimed:
        notes.append(f"batches: {n_untimed} for which the backend gave no instants, as it does of failures")


def _recorded_row(
    batch: RecordedBatch, labels: Mapping[str, str], span: tuple[int, int], batch_id: int
) -> dict[str, Any]:
    ours = [int(one) for one in batch.request_ids if len(one) == ID_DIGITS and one.isdigit()]
    edges = (
        (batch.start_ns or span[0], batch.end_ns or span[1]) if batch.writer == "library" else (None, None)
    )
    return {
        **labels, "phase": "", "model": batch.model, "version": str(batch.version), "recorded_by": batch.writer,
        "instance": batch.instance, "instance_device": batch.device, "batch_id": batch_id, "start_ns": span[0],
        "end_ns": span[1], "exec_start_ns": edges[0], "exec_end_ns": edges[1],
        "rows": batch.rows, "n_requests": batch.n_requests, "request_ids": ours,
        "n_foreign": batch.n_requests - len(ours), "n_failed": batch.n_failed,
    }  # fmt: skip


def _of_name(stem: str) -> tuple[str, int]:
    """Instance and device that the name of a record says; the line before the records says it again."""
    found = re.fullmatch(r"(.+)\.gpu([0-9]{1,4})", stem)
    return (bounded(stem), NO_DEVICE) if found is None else (bounded(found[1]), int(found[2]))


def _lines(path: Path) -> Iterator[bytes]:
    """Of a file of a model's, whose code may have put anything there; a longer one than any of ours is cut. Raises
    OSError."""
    with open(path, "rb", opener=plain_opener) as file:
        while line := file.readline(_MOST_LINE_BYTES):
            yield line
            while len(line) == _MOST_LINE_BYTES and not line.endswith(b"\n"):
                line = file.readline(_MOST_LINE_BYTES)


def _parse(line: bytes) -> dict[str, Any] | None:
    """A line as the model writes it; None for any other."""
    try:
        record = json_of(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    if "instance" in record:
        is_sound = isinstance(record["instance"], str) and is_int64(record.get("device", NO_DEVICE))
    else:
        ids = record.get("i")
        numbers = (*(record.get(name) for name in "bser"), record.get("lost", 0))
        is_sound = isinstance(ids, list) and all(isinstance(one, str) for one in ids)
        is_sound = is_sound and all(map(is_int64, numbers))
    return record if is_sound else None


def is_int64(value: object) -> bool:
    """Whether a value from JSON is a whole number that a table takes."""
    return type(value) is int and -(2**63) <= value < 2**63


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
