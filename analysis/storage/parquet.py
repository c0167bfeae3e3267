"""Parquet files, of this run or of somebody else's: opened, read whole, named for DuckDB."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from squall.analysis.storage.object_folder import ObjectFile, Part


def opened(part: Part) -> pa.NativeFile:
    """The file to be read. Raises OSError."""
    return part.open() if isinstance(part, ObjectFile) else pa.OSFile(str(part))


def sha256_of(part: Part) -> str:
    """Of its content. Raises OSError."""
    with opened(part) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parquet_file(part: Part) -> pq.ParquetFile:
    """The file, its footer read. Text is read by dictionary, also where it stands plain: a long one of many rows is
    held once. Raises OSError, pa.ArrowException."""
    file = opened(part)
    metadata = pq.read_metadata(file)
    return pq.ParquetFile(file, metadata=metadata, read_dictionary=_plain_texts(metadata))


def rows_of(part: Part, columns: list[str] | None = None, keeps: pc.Expression | None = None) -> pa.Table:
    """Its rows, those that `keeps` is true of. Raises OSError, pa.ArrowException."""
    if keeps is None:
        with parquet_file(part) as file:
            return file.read(columns=columns)
    with opened(part) as file:
        texts = _plain_texts(pq.read_metadata(file))
        return pq.read_table(file, columns=columns, filters=keeps, partitioning=None, read_dictionary=texts)


def _plain_texts(metadata: pq.FileMetaData) -> list[str]:
    """Columns of plain text that can be read by dictionary: not differences, as DuckDB writes some of ours."""
    texts = [field.name for field in metadata.schema.to_arrow_schema() if field.type == pa.string()]
    return [
        name
        for name in texts
        if not any("DELTA" in str(chunk.encodings) for chunk in column_chunks(metadata, name))
    ]


def column_chunks(metadata: pq.FileMetaData, name: str) -> list[pq.ColumnChunkMetaData]:
    """What the footer says of the column `name`, of no nested type, in each row group. Raises ValueError without it."""
    place = [metadata.schema.column(i).path for i in range(metadata.num_columns)].index(name)
    return [metadata.row_group(number).column(place) for number in range(metadata.num_row_groups)]


def read_parquet(paths: Iterable[Path]) -> str:
    """SQL that reads the files as one table, and no others: a folder above them may bear a name that DuckDB would take
    for a pattern, or for a column, as `model=x`."""
    quoted = ", ".join(literal(pattern_of(path)) for path in paths)
    return f"read_parquet([{quoted}], hive_partitioning = false)"


def pattern_of(path: Path) -> str:
    """The pattern of DuckDB that this path alone matches."""
    return re.sub(r"[*?[]", r"[\g<0>]", str(path))


def literal(text: str) -> str:
    """`text` as an SQL string."""
    return "'" + text.replace("'", "''") + "'"
