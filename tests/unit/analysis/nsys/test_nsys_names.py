from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.analysis.nsys.allowed import OUR_TEXT
from squall.analysis.nsys.names import (
    Names,
    api_name,
    call_class,
    copy_kind,
    range_columns,
)

pieces = st.sampled_from(
    ["squall", "squall-clock", "|", "7", "12", "a_0", "cpu", "gpu", "gpu1", "-", " ", "", "\n", "é", "1" * 19]
)
texts = st.lists(pieces, max_size=8).map("".join)


Said = tuple[str, int, int | None, int | None]
NOT_OURS: Said = ("", -1, None, None)


def rows_of(texts: list[str]) -> list[Said]:
    """Instance, its device, batch and clock reading of each text."""
    columns = range_columns(pa.array(texts, pa.string()))
    names = ("instance", "instance_device", "batch_id", "clock_ns")
    return list(zip(*(columns[name].to_pylist() for name in names), strict=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("squall|a_0_0|gpu1|12|345", ("a_0_0", 1, 12, 345)),
        ("squall|a_0_0|gpu0|12", ("a_0_0", 0, 12, None)),
        ("squall|a_0_0|cpu|12|345", ("a_0_0", -1, 12, 345)),
        ("squall|a|gpu|12", ("a|gpu", -1, 12, None)),
        ("squall|gpu1|12", ("gpu1", -1, 12, None)),
        ("squall|a_0_0|12", ("a_0_0", -1, 12, None)),
        ("squall|a_0_0|12|345", ("a_0_0", -1, 12, 345)),
        ("squall|a|b|12", ("a|b", -1, 12, None)),
        ("squall|a|b|12|3", ("a|b", -1, 12, 3)),
        ("squall|a_0_0|", NOT_OURS),
        ("squall||3", NOT_OURS),
        ("squall|a_0_0|-1", NOT_OURS),
        ("squall-clock|3", ("", -1, None, 3)),
        ("execute", NOT_OURS),
        ("", NOT_OURS),
    ],
)
def test_only_a_whole_name_of_ours_is_taken_for_ours(text: str, said: Said) -> None:
    assert rows_of([text]) == [said]


@given(st.lists(texts, max_size=5))
def test_texts_read_all_at_once_say_what_they_say_one_by_one(found: list[str]) -> None:
    assert rows_of(found) == [row for text in found for row in rows_of([text])]


@given(texts)
def test_a_text_that_scrubbing_keeps_is_ours(text: str) -> None:
    if OUR_TEXT.fullmatch(text):
        assert rows_of([text]) != [NOT_OURS]


def test_a_clock_range_says_its_reading() -> None:
    columns = range_columns(pa.array(["squall-clock|77", None, "squall-clock|x"], pa.string()))
    assert columns["clock_ns"].to_pylist() == [77, None, None]
    assert columns["instance"].to_pylist() == ["", "", ""]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaMemcpy_ptds_v7000", "cudaMemcpy"),
        ("cuMemcpyHtoD_v2_ptds", "cuMemcpyHtoD"),
        ("cuStreamGetCaptureInfo_v2_ptsz", "cuStreamGetCaptureInfo"),
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch"),
        ("cuArray3DCreate_v2", "cuArray3DCreate"),
        ("cuMemcpy2D_v2", "cuMemcpy2D"),
    ],
)
def test_the_version_of_a_call_is_no_part_of_its_name(name: str, plain: str) -> None:
    assert api_name(name) == plain


CALLS = {
    "launch": "cudaLaunchKernel cudaLaunchKernelExC __cudaLaunchKernel cudaLaunchCooperativeKernel "
    "cudaLaunchCooperativeKernelMultiDevice cudaLaunch cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel "
    "cuLaunchGrid cuLaunchGridAsync",
    "graph launch": "cudaGraphLaunch cuGraphLaunch",
    "blocking sync": "cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cudaThreadSynchronize "
    "cuCtxSynchronize cuStreamSynchronize cuEventSynchronize",
    "poll": "cudaEventQuery cudaStreamQuery cuEventQuery cuStreamQuery",
    "blocking copy": "cudaMemcpy cudaMemcpy2D cudaMemcpy3D cudaMemcpyToSymbol cudaMemcpyFromSymbol cudaMemcpyToArray "
    "cudaMemcpy2DFromArray cuMemcpy cuMemcpyHtoD cuMemcpyDtoH cuMemcpyHtoA cuMemcpyAtoH cuMemcpy2D "
    "cuMemcpy2DUnaligned cuMemcpy3D",
    "async copy": "cudaMemcpyAsync cudaMemcpy2DAsync cudaMemcpy3DAsync cudaMemcpyToSymbolAsync cudaMemcpyPeerAsync "
    "cudaMemcpyBatchAsync cudaMemcpy3DBatchAsync cuMemcpyAsync cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync "
    "cuMemcpyBatchAsync cudaMemcpyPeer cudaMemcpy3DPeer cuMemcpyPeer cuMemcpyDtoD cuMemcpyAtoA cudaMemPrefetchAsync "
    "cuMemPrefetchAsync cudaMemPrefetchBatchAsync cudaMemDiscardAndPrefetchBatchAsync",
    "memset": "cudaMemset cudaMemsetAsync cudaMemset2DAsync cuMemsetD8 cuMemsetD32Async cuMemsetD2D16",
    "allocation": "cudaMalloc cudaMallocAsync cudaMallocHost cudaMallocManaged cudaMallocFromPoolAsync cudaMallocArray "
    "cudaMalloc3D cudaHostAlloc cudaHostRegister cudaHostUnregister cudaFree cudaFreeAsync cudaFreeHost cudaFreeArray "
    "cuMemAlloc cuMemAllocAsync cuMemAllocHost cuMemAllocManaged cuMemAllocPitch cuMemHostAlloc cuMemHostRegister "
    "cuMemFree cuMemFreeAsync cuMemFreeHost cuMemCreate cuMemRelease cuMemMap cuMemUnmap cuMemSetAccess "
    "cuMemAddressReserve cuMemAddressFree cuMemPoolCreate cudaMemPoolTrimTo cuArrayCreate cuArray3DCreate "
    "cuMipmappedArrayDestroy",
    "other": "cudaStreamWaitEvent cuStreamWaitEvent cuStreamWaitValue32 cudaEventRecord cudaEventRecordWithFlags "
    "cudaLaunchHostFunc cuLaunchHostFunc cudaGraphAddMemcpyNode cudaGraphAddMemsetNode cudaGraphAddMemAllocNode "
    "cuGraphAddMemFreeNode cudaGraphExecMemcpyNodeSetParams1D cudaGraphInstantiate cudaGraphUpload cudaMemGetInfo "
    "cuMemHostGetDevicePointer cudaMemPoolGetAttribute cudaDeviceGetDefaultMemPool cuDestroyExternalMemory "
    "cudaStreamIsCapturing cuKernelGetAttribute cuModuleLoadData cudaSetDevice cuGetProcAddress malloc",
}


@pytest.mark.parametrize(("kind", "names"), CALLS.items())
def test_a_call_is_of_the_class_of_what_it_does(kind: str, names: str) -> None:
    found = {name: call_class(name) for name in names.split()}
    assert found == dict.fromkeys(names.split(), kind)


@given(st.sampled_from([name for names in CALLS.values() for name in names.split()]), st.data())
def test_neither_version_nor_stream_of_a_call_changes_its_class(name: str, data: st.DataObject) -> None:
    tail = data.draw(
        st.sampled_from(["_v2", "_v3020", "_v13000", "_ptsz", "_ptds", "_v2_ptsz", "_ptds_v7000"])
    )
    assert call_class(name + tail) == call_class(name) == call_class(api_name(name + tail))


@pytest.mark.parametrize(
    ("symbol", "label", "kind"),
    [
        ("CUDA_MEMCPY_KIND_HTOD", "Host-to-Device", "HtoD"),
        ("CUDA_MEMCPY_KIND_UVM_DTOH", "Unified Device-to-Host", "UVM DtoH"),
        ("CUDA_MEMCPY_KIND_UNKNOWN", "Unknown", ""),
        ("CUDA_MEMCPY_KIND_NEW", "Brand-new", "Brand-new"),
    ],
)
def test_copies_are_called_as_nsys_calls_them(symbol: str, label: str, kind: str) -> None:
    assert copy_kind(symbol, label) == kind


def test_names_by_id_are_empty_where_unknown() -> None:
    names = Names({5: "b", 2: "a", 9: "b"})
    assert names.encode(pa.array([9, 2, None, 7, 5, -1])).to_pylist() == ["b", "a", "", "", "b", ""]
    assert Names({}).encode(pa.array([1, None])).to_pylist() == ["", ""]
