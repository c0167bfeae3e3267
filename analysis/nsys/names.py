"""Names in an nsys report: ids to text, kinds by number, and the texts of our own ranges."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from squall.analysis.columns import NO_DEVICE

BATCH_RANGE = (
    r"^squall\|(?P<instance>.+?)(?:\|(?:cpu|gpu(?P<device>[0-9]{1,4})))?"
    r"\|(?P<batch_id>[0-9]{1,18})(?:\|(?P<clock_ns>[0-9]{1,18}))?$"
)
CLOCK_RANGE = r"^squall-clock\|(?P<clock_ns>[0-9]{1,18})$"
API_VERSION = r"(_v[0-9]+|_ptds|_ptsz)+$"
"""What CUPTI puts behind the name of a call: version, and per-thread default stream (cupti_runtime_cbid.h)."""

COPY_KINDS = dict(
    enumerate(
        ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "UVM HtoD", "UVM DtoH",
         "UVM DtoD")
    )
)  # fmt: skip
"""ENUM_CUDA_MEMCPY_OPER of 2022.4 and 2025.3; CUPTI numbers the first eleven alike."""
MEMORY_KINDS = dict(
    enumerate(("pageable", "pinned", "device", "array", "managed", "device static", "managed static", ""))
)
"""ENUM_CUDA_MEM_KIND of 2022.4 and 2025.3: nsys counts from pageable = 0 where CUPTI counts from unknown = 0."""
SYNC_KINDS = dict(enumerate(("", "event sync", "stream wait sync", "stream sync", "context sync")))
"""ENUM_CUPTI_SYNC_TYPE, as CUPTI."""


def range_columns(texts: pa.Array) -> dict[str, pa.Array]:
    """`instance` (empty if the range is not ours), `instance_device`, `batch_id` and `clock_ns` (null) of each text."""
    batch = pc.extract_regex(texts, BATCH_RANGE)
    instance, device, batch_id, clock_ns = (
        pc.struct_field(batch, name) for name in ("instance", "device", "batch_id", "clock_ns")
    )
    mark = pc.struct_field(pc.extract_regex(texts, CLOCK_RANGE), "clock_ns")
    clock_ns = pc.coalesce(_nonempty(clock_ns), mark)
    return {
        "instance": pc.fill_null(instance, ""),
        "instance_device": pc.fill_null(pc.cast(_nonempty(device), pa.int64()), NO_DEVICE),
        "batch_id": pc.cast(batch_id, pa.int64()),
        "clock_ns": pc.cast(clock_ns, pa.int64()),
    }


def _nonempty(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def api_name(name: str) -> str:
    """A CUDA function without the suffixes of its version: `cudaLaunchKernel_ptsz_v7000` -> `cudaLaunchKernel`."""
    return re.sub(API_VERSION, "", name)


_CALL_CLASSES = (
    (r"GraphLaunch", "graph launch"),
    (r"Launch(?!HostFunc)", "launch"),
    (r"\w*Synchronize", "blocking sync"),
    (r"(Stream|Event)Query", "poll"),
    (r"Memcpy(\w*Async|(3D)?Peer|[DA]to[DA])|Mem(DiscardAnd)?Prefetch", "async copy"),
    (r"Memcpy", "blocking copy"),
    (r"Memset", "memset"),
    (
        r"Malloc|Mem(Alloc|Free)|Free|(Mem)?Host(Alloc|Register|Unregister)|MemPool(Create|Destroy|TrimTo)"
        r"|Mem(Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree)|(Mipmapped)?Array(3D)?(Create|Destroy)"
        r"|DeviceGraphMemTrim",
        "allocation",
    ),
)
"""By the first pattern that what follows `cu`, `cuda`, `cu64` or `__cuda` begins with.

So calls that only build a graph (`cudaGraphAddMemcpyNode`) are other. Copies between devices, and within one, return
before they are done (CUDA Runtime API, "API synchronization behavior", and at cudaMemcpyPeer).
"""


def call_class(name: str) -> str:
    """What a CUDA call does: launch, graph launch, blocking sync, poll, blocking copy, async copy, memset, …, other.

    By name alone: an async copy from or to pageable memory blocks as well, and a `cudaMemcpy` within a device does not,
    which only its row of `memcpys` tells. `name` may have the suffixes that `api_name` takes off.
    """
    plain = re.sub(r"^_*cu(da|64)?", "", name)
    return next((found for pattern, found in _CALL_CLASSES if re.match(pattern, plain)), "other")


def copy_kind(symbol: str, label: str) -> str:
    """`CUDA_MEMCPY_KIND_HTOD` -> `HtoD`; empty for unknown; nsys's own label where it is none of these."""
    found = re.fullmatch(r"CUDA_MEMCPY_KIND_(UVM_)?([HDAP])TO([HDAP])", symbol)
    if found is None:
        return "" if label == "Unknown" else label
    return f"{'UVM ' if found[1] else ''}{found[2]}to{found[3]}"


def plain_kind(_symbol: str, label: str) -> str:
    """`Device Static` -> `device static`; empty for unknown."""
    return "" if label == "Unknown" else label.lower()


class Names:
    """Texts by id, as dictionary arrays: the text is never copied per row."""

    def __init__(self, texts: Mapping[int, str], unknown: str = "") -> None:
        """`unknown`: the text of null and of an id that is not known."""
        unique = sorted({unknown, *texts.values()})
        place = {text: i for i, text in enumerate(unique)}
        self._ids = np.array(sorted(texts), dtype=np.int64)
        self._places = np.array([place[texts[i]] for i in sorted(texts)], dtype=np.int32)
        self._nameless = place[unknown]
        self._texts = pa.array(unique, pa.string())

    def encode(self, ids: pa.Array) -> pa.DictionaryArray:
        """The text of each id."""
        places = np.full(len(ids), self._nameless, dtype=np.int32)
        if len(self._ids):
            values, is_known = numbers(ids)
            at = np.minimum(np.searchsorted(self._ids, values), len(self._ids) - 1)
            places = np.where(is_known & (self._ids[at] == values), self._places[at], places)
        return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), self._texts)


def same_text(text: str, n_rows: int) -> pa.DictionaryArray:
    """`text` in each of the rows."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n_rows, np.int32)), pa.array([text], pa.string()))


def numbers(values: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """`values` as int64, 0 for null, and which are not null."""
    filled = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return filled.astype(np.int64, copy=False), pc.is_valid(values).to_numpy(zero_copy_only=False)
