"""Takes out of an nsys export what may leave the node: a Parquet file for each table, by an allow list.

nsys reports hold the environment, arguments and output of every process they saw. `squall.analysis.nsys.allowed`
lists what is kept; all else is never written. A name that is not kept is absent: its event stays and reads as
unnamed.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from re import Pattern
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.analysis.nsys.allowed import ALLOWED, DIAGNOSTICS, META, NVTX, OSRT, STRINGS, AllowedTable
from squall.analysis.nsys.source import Export, open_export
from squall.analysis.storage.collected import ReportScrub
from squall.scenarios.errors import AnalysisError


def scrub(export: Path, folder: Path) -> ReportScrub:
    """Writes what is allowed of `export`, an SQLite file or a `parquetdir` folder, as zstd Parquet files to `folder`.

    `folder` appears only when all is written. Memory is bounded by a piece of rows and by the strings' ids. Raises
    AnalysisError, in one line, for an export that is broken or none, and where `folder` is there or cannot be written.
    """
    unfinished = folder.with_name(folder.name + ".open")
    if folder.exists():
        raise AnalysisError(f"{folder.name} is there already: a scrubbed report is written once")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with open_export(export) as source:
            report = _Scrubber(source, unfinished).run()
        unfinished.rename(folder)
    except OSError as error:
        raise AnalysisError(f"cannot write the scrubbed report {folder.name}: {error.strerror}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return report


def count_events(export: Path) -> tuple[int, int]:
    """OS-runtime calls and NVTX ranges of an export; 0 without the table, which nsys leaves out when it is empty.

    Raises AnalysisError as `scrub`.
    """
    with TemporaryDirectory(prefix="squall-count-") as folder:
        rows = scrub(export, Path(folder) / "scrubbed").rows
    return rows.get(OSRT, 0), rows.get(NVTX, 0)


class _Scrubber:
    def __init__(self, source: Export, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._rows: dict[str, int] = {}
        self._uses: defaultdict[Pattern[str], set[int]] = defaultdict(set)
        self._threads: set[int] = set()
        self._counts: Counter[str] = Counter()

    def run(self) -> ReportScrub:
        found = self._source.tables()
        for table in sorted(ALLOWED, key=lambda table: ALLOWED[table].of_event_threads):
            if table in found:
                self._copy(table, ALLOWED[table])
        if DIAGNOSTICS in found:
            self._count_diagnostics()
        if STRINGS in found:
            self._keep_strings()
        dropped = {t for t in found if t not in ALLOWED and t not in (DIAGNOSTICS, STRINGS)}
        names = sorted({t if t.isidentifier() and t.isascii() and len(t) <= 64 else "?" for t in dropped})
        counts = self._counts
        return ReportScrub(
            rows=self._rows,
            n_rows_dropped=counts["rows dropped"],
            dropped_tables=tuple(names),
            n_strings=counts["strings"],
            n_strings_dropped=counts["strings dropped"],
        )

    def _copy(self, table: str, allowed: AllowedTable) -> None:
        present = self._source.columns(table)
        numbers = [name for name in allowed.numbers if name in present]
        texts = [name for name in allowed.texts if name in present]
        if allowed.needs is not None and allowed.needs not in texts:
            return
        if numbers or texts:
            pieces = self._source.read(table, numbers, texts)
            self._write(table, _schema(numbers, texts), (self._kept(piece, allowed) for piece in pieces))

    def _kept(self, data: pa.Table, allowed: AllowedTable) -> pa.Table:
        """The rows of `data` that are allowed, with only allowed texts; notes the threads and strings they use."""
        n_rows = data.num_rows
        for name, values in allowed.only.items():
            if name in data.column_names:
                data = data.filter(pc.is_in(data[name], pa.array(sorted(values), pa.int64())))
        if allowed.of_event_threads and "globalTid" in data.column_names:
            data = data.filter(pc.is_in(data["globalTid"], pa.array(sorted(self._threads), pa.int64())))
        for name, pattern in allowed.texts.items():
            if name in data.column_names:
                texts = self._matching(data[name], pattern, is_counted=name != allowed.needs)
                data = data.set_column(data.schema.get_field_index(name), name, texts)
        if allowed.needs is not None:
            data = data.filter(pc.is_valid(data[allowed.needs]))
        for name, pattern in allowed.strings.items():
            if name in data.column_names:
                self._uses[pattern].update(pc.unique(data[name]).drop_null().to_pylist())
        if "globalTid" in data.column_names:
            self._threads.update(pc.unique(data["globalTid"]).drop_null().to_pylist())
        self._counts["rows dropped"] += n_rows - data.num_rows
        return data

    def _matching(self, texts: pa.ChunkedArray, pattern: Pattern[str], is_counted: bool = True) -> pa.Array:
        """`texts`, null where one does not match as a whole."""
        encoded = texts.combine_chunks().dictionary_encode()
        values = [v if pattern.fullmatch(v) else None for v in encoded.dictionary.to_pylist()]
        kept = pa.array(values, pa.string()).take(encoded.indices)
        if is_counted:
            n_kept = len(kept) - kept.null_count
            self._counts["strings"] += n_kept
            self._counts["strings dropped"] += len(texts) - texts.null_count - n_kept
        return kept

    def _count_diagnostics(self) -> None:
        """Their texts hold paths: how many there were of which severity and source must do."""
        names = [n for n in ("severity", "source") if n in self._source.columns(DIAGNOSTICS)]
        schema = _schema([*names, "count"], ())
        counted = schema.empty_table()
        for data in self._source.read(DIAGNOSTICS, names, ()) if names else ():
            one_each = data.append_column("count", [np.ones(data.num_rows, np.int64)])
            grouped = pa.concat_tables([counted, one_each]).group_by(names, use_threads=False)
            counted = grouped.aggregate([("count", "sum")]).rename_columns(schema.names)
        self._write(DIAGNOSTICS, schema, [counted])

    def _keep_strings(self) -> None:
        ids = {pattern: pa.array(sorted(used), pa.int64()) for pattern, used in self._uses.items()}
        pieces = self._source.read(STRINGS, ("id",), ("value",))
        self._write(STRINGS, _schema(("id",), ("value",)), (self._kept_strings(p, ids) for p in pieces))

    def _kept_strings(self, data: pa.Table, ids: dict[Pattern[str], pa.Array]) -> pa.Table:
        kept = np.zeros(data.num_rows, bool)
        for pattern, used in ids.items():
            is_used = pc.is_in(data["id"], used).to_numpy()
            for row in np.flatnonzero(is_used & ~kept).tolist():
                kept[row] = pattern.fullmatch(data["value"][row].as_py() or "") is not None
        self._counts["strings"] += int(kept.sum())
        self._counts["strings dropped"] += int((~kept).sum())
        return data.filter(pa.array(kept))

    def _write(self, table: str, schema: pa.Schema, pieces: Iterator[pa.Table] | list[pa.Table]) -> None:
        n_rows = 0
        options = parquet_options(schema)
        with pq.ParquetWriter(self._folder / f"{table}.parquet", schema, **options) as writer:
            for piece in pieces:
                if piece.num_rows:
                    writer.write_table(piece.cast(schema))
                    n_rows += piece.num_rows
        if table in META and not n_rows:
            (self._folder / f"{table}.parquet").unlink()
            return
        self._rows[table] = n_rows


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How a report's numbers and texts are written: numbers as differences, which cost half of what a dictionary does,
    in CPU time and in bytes."""
    differences = [field.name for field in schema if field.type == pa.int64()]
    return {
        "compression": "zstd",
        "use_dictionary": [field.name for field in schema if field.name not in differences],
        "column_encoding": dict.fromkeys(differences, "DELTA_BINARY_PACKED"),
    }


def _schema(numbers: Sequence[str], texts: Sequence[str]) -> pa.Schema:
    return pa.schema([*((name, pa.int64()) for name in numbers), *((name, pa.string()) for name in texts)])
