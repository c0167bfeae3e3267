"""A batch whose time is planted: segments of chosen length, from which its CUDA calls and operations are made.

    thread  ·[launch launch]···[sync────────────────]····[launch]··[copy of pageable memory]·[sync ]··
    GPU     ·     idle     │ kernel │ kernel │ idle │  idle  │     │        copy       │      idle
            quiet   free      free    blocked blocked  free       blocked

A segment has one state of the GPU, and lies in one call that blocks or in none: sums over segments are the truth.
Operations on other streams lie inside segments of a kernel, so that they add to counts and durations alone. What the
batch does not wait for lies in segments after its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby, pairwise
from random import Random

IDLE, KERNEL, COPY = "idle", "kernel", "copy"

KERNELS: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...], float | None], ...] = (
    ("gemm", "void gemm<float>(float*, int)", (64, 2, 1), (128, 1, 1), 0.25),
    ("softmax", "void softmax<float>(float*)", (8, 1, 1), (256, 1, 1), 0.5),
    ("sm90_xmma_gemm_f16f16", "sm90_xmma_gemm_f16f16_f16f32", (132, 4, 2), (384, 1, 1), 0.1875),
    ("softmax", "void softmax<float>(float*)", (16, 1, 1), (256, 1, 1), 1.0),
)
"""Short name, full name, grid, block, theoretical occupancy."""

_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cuLaunchKernelEx")
_SYNCS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
_OTHERS = (("cudaEventRecord", "other"), ("cudaEventQuery", "poll"), ("cudaMalloc", "allocation"))
_OS_WAITS = ("futex", "sem_wait", "epoll_wait")


@dataclass
class Segment:
    """[start_ns, end_ns) in one state; `block` numbers the blocking call that covers it, None for none."""

    start_ns: int
    end_ns: int
    gpu: str
    block: int | None
    is_quiet: bool = False


@dataclass
class Call:
    """CUDA call of the batch's thread."""

    name: str
    call_class: str
    start_ns: int
    end_ns: int
    blocks: bool = False
    correlation_id: int = 0


@dataclass
class Op:
    """Kernel, copy or set; `call` launched it. `is_orphan`: the report has no row of that call."""

    kind: str
    start_ns: int
    end_ns: int
    stream: int
    call: Call
    kernel: int = 0
    copy_kind: str = ""
    memory: tuple[str, str] = ("", "")
    n_bytes: int = 0
    graph: tuple[int | None, int | None] = (None, None)
    is_orphan: bool = False


@dataclass
class Work:
    """What a batch does, by design, from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int
    segments: list[Segment]
    calls: list[Call]
    ops: list[Op]
    os_waits: list[tuple[str, int, int]] = field(default_factory=list)

    @property
    def range_ns(self) -> tuple[int, int]:
        """Its NVTX range: the execution but for its quiet edges."""
        first, last = self.segments[0], self._within()[-1]
        return (
            first.end_ns if first.is_quiet else self.start_ns,
            last.start_ns if last.is_quiet else self.end_ns,
        )

    def _within(self) -> list[Segment]:
        return [one for one in self.segments if one.end_ns <= self.end_ns]

    def costs(self) -> dict[str, int]:
        """The planted truth of `batch_costs`, by sums over the segments and counts over what was made of them."""
        busy = [one for one in self.segments if one.gpu != IDLE]
        first = min([self.end_ns, *(one.start_ns for one in busy)])
        last = min(self.end_ns, busy[-1].end_ns) if busy else first
        body = [one for one in self._within() if first <= one.start_ns and one.end_ns <= last]
        known = [one for one in self.ops if not one.is_orphan]
        copies = [one for one in known if one.kind == "copy"]
        to_device, to_host = ([c for c in copies if c.copy_kind == kind] for kind in ("HtoD", "DtoH"))
        return {
            "n_kernels": sum(one.kind == "kernel" for one in known),
            "n_copies": sum(one.kind != "kernel" for one in known),
            "n_launches": sum(one.call_class in ("launch", "graph launch") for one in self.known_calls()),
            "kernel_ns": _total(one for one in known if one.kind == "kernel"),
            "kernel_busy_ns": _total(one for one in body if one.gpu == KERNEL),
            "copy_exposed_ns": _total(one for one in body if one.gpu == COPY),
            "sync_wait_ns": _total(one for one in body if one.gpu == IDLE and one.block is not None),
            "launch_idle_ns": _total(one for one in body if one.gpu == IDLE and one.block is None),
            "head_ns": first - self.start_ns,
            "tail_ns": self.end_ns - last,
            "launch_ns": _total(c for c in self.known_calls() if c.call_class in ("launch", "graph launch")),
            "blocked_ns": _total(one for one in self.segments if one.block is not None),
            "blocked_busy_ns": _total(s for s in self.segments if s.block is not None and s.gpu != IDLE),
            "n_mid_blocks": sum(
                any(op.call.start_ns > call.end_ns for op in known) for call in self.calls if call.blocks
            ),
            "n_blocks": sum(call.blocks for call in self.calls),
            "h2d_ns": _total(to_device),
            "d2h_ns": _total(to_host),
            "h2d_bytes": sum(one.n_bytes for one in to_device),
            "d2h_bytes": sum(one.n_bytes for one in to_host),
            "copy_ns": _total(one for one in known if one.kind != "kernel"),
            "pageable_bytes": sum(one.n_bytes for one in copies if "pageable" in one.memory),
            "sync_ns": _total(c for c in self.calls if c.call_class == "blocking sync"),
            "alloc_ns": _total(c for c in self.calls if c.call_class == "allocation"),
            "api_ns": _total(self.known_calls()),
            "os_wait_ns": sum(min(end, self.range_ns[1]) - start for _, start, end in self.os_waits),
            "overrun_ns": _total(s for s in self.segments if s.start_ns >= self.end_ns and s.gpu != IDLE),
        }

    def known_calls(self) -> list[Call]:
        """The calls that the report has."""
        lost = [one.call for one in self.ops if one.is_orphan]
        return [call for call in self.calls if not any(call is one for one in lost)]


def _total(spans: object) -> int:
    return sum(one.end_ns - one.start_ns for one in spans)  # type: ignore[attr-defined]


def draw_work(rng: Random, features: frozenset[str], start_ns: int, most_runs: int) -> Work:
    """A batch from `start_ns`; `features` of planted_runs.FEATURES switch on what it may hold."""
    segments, end_ns = _draw_segments(rng, features, start_ns, most_runs)
    blocks = {
        number: Call(rng.choice(_SYNCS), "blocking sync", own[0].start_ns, own[-1].end_ns, blocks=True)
        for number, own in (
            (n, list(g)) for n, g in groupby(segments, lambda one: one.block) if n is not None
        )
    }
    ops = _draw_ops(rng, features, segments, blocks)
    _place_launches(rng, [one for one in segments if one.end_ns <= end_ns], ops)
    launches = list({id(one.call): one.call for one in ops}.values())
    calls = [*blocks.values(), *(one for one in launches if not one.blocks)]
    work = Work(start_ns, end_ns, segments, calls, ops)
    _place_others(rng, work)
    work.calls.sort(key=lambda one: one.start_ns)
    if "os_waits" in features:
        work.os_waits = _draw_os_waits(rng, work)
    return work


def _draw_segments(
    rng: Random, features: frozenset[str], start_ns: int, most_runs: int
) -> tuple[list[Segment], int]:
    """Segments one after another, and the end of the batch: those after it are not awaited."""
    segments: list[Segment] = []
    clock = start_ns
    next_block = 0

    def add(gpu: str, least_ns: int = 1, may_block: bool = True, is_quiet: bool = False) -> None:
        nonlocal clock, next_block
        block = None
        if may_block and "blocks" in features and rng.random() < 0.4:
            before = segments[-1].block
            block = before if before is not None and rng.random() < 0.6 else next_block
            next_block += block == next_block
        length = least_ns + rng.choice((0, rng.randrange(50), rng.randrange(20_000), rng.randrange(200_000)))
        segments.append(Segment(clock, clock + length, gpu, block, is_quiet))
        clock += length

    add(IDLE, may_block=False, is_quiet=True)
    add(IDLE, least_ns=400 + 60 * most_runs, may_block=False)
    for _ in range(rng.randrange(3)):
        add(IDLE)
    n_runs = rng.randint(0, most_runs)
    for run in range(n_runs):
        gpu = KERNEL if rng.random() < 0.7 else COPY
        for _ in range(rng.randint(1, 2)):
            add(gpu)
        for _ in range(rng.randrange(3) if run < n_runs - 1 else 0):
            add(IDLE)
    is_overrun = "overrun" in features and rng.random() < 0.3
    if not is_overrun:
        for _ in range(rng.randrange(3)):
            add(IDLE)
        add(IDLE, may_block=False, is_quiet=True)
    end_ns = clock
    if is_overrun:
        if rng.random() < 0.3:
            add(IDLE, may_block=False)
        add(rng.choice((KERNEL, COPY)), may_block=False)
    return segments, end_ns


def _draw_ops(
    rng: Random, features: frozenset[str], segments: list[Segment], blocks: dict[int, Call]
) -> list[Op]:
    """What covers every run of segments of one state: operations end to end, and within a kernel's more of them."""
    ops: list[Op] = []
    taken: set[int] = set()
    for gpu, own in ((gpu, list(group)) for gpu, group in groupby(segments, lambda one: one.gpu)):
        if gpu == IDLE:
            continue
        first, last = own[0].start_ns, own[-1].end_ns
        waiting = own[0].block
        if gpu == COPY and waiting is not None and {one.block for one in own} == {waiting} - taken:
            taken.add(waiting)
            ops.append(_awaited_copy(rng, first, last, blocks[waiting]))
            continue
        cuts = sorted({first, last, *(rng.randint(first, last) for _ in range(rng.randrange(3)))})
        pieces = [_op(rng, gpu, *piece, 7) for piece in pairwise(cuts)]
        if "graphs" in features and gpu == KERNEL and rng.random() < 0.4:
            _as_graph(rng, pieces)
        ops += pieces
        if "streams" in features and gpu == KERNEL:
            for _ in range(rng.randrange(3)):
                ops.append(_within_kernel(rng, features, first, last))
    return ops


def _op(rng: Random, gpu: str, start_ns: int, end_ns: int, stream: int) -> Op:
    if gpu == KERNEL:
        call = Call(rng.choice(_LAUNCHES), "launch", 0, 0)
        return Op("kernel", start_ns, end_ns, stream, call, kernel=rng.randrange(len(KERNELS)))
    if rng.random() < 0.3:
        memset = Call("cudaMemsetAsync", "memset", 0, 0)
        return Op("set", start_ns, end_ns, stream, memset, n_bytes=rng.randrange(4096))
    kinds = (("HtoD", "pinned", "device"), ("DtoH", "device", "pinned"), ("DtoD", "device", "device"))
    kind, source, destination = rng.choice(kinds)
    call = Call("cudaMemcpyAsync", "async copy", 0, 0)
    n_bytes = rng.choice((0, rng.randrange(1, 1 << 20)))
    return Op("copy", start_ns, end_ns, stream, call, 0, kind, (source, destination), n_bytes)


def _awaited_copy(rng: Random, start_ns: int, end_ns: int, call: Call) -> Op:
    """The copy that the blocking `call` makes: blocking by name, or an async one of pageable memory."""
    kinds = [("HtoD", "pageable", "device"), ("DtoH", "device", "pageable")]
    call.name, call.call_class = "cudaMemcpyAsync", "async copy"
    if rng.random() < 0.5:
        call.name, call.call_class = "cudaMemcpy", "blocking copy"
        kinds.append(("DtoH", "device", "pinned"))
    kind, source, destination = rng.choice(kinds)
    return Op("copy", start_ns, end_ns, 7, call, 0, kind, (source, destination), rng.randrange(1 << 16))


def _as_graph(rng: Random, kernels: list[Op]) -> None:
    """Makes one graph launch of `kernels`: its nodes, or one row for the whole graph."""
    call = Call("cudaGraphLaunch", "graph launch", 0, 0)
    is_whole = len(kernels) == 1 and rng.random() < 0.5
    for node, one in enumerate(kernels):
        one.call = call
        one.graph = (3, None) if is_whole else (None, 100 + node)


def _within_kernel(rng: Random, features: frozenset[str], first: int, last: int) -> Op:
    """An operation of another stream, while a kernel of the batch runs all the time."""
    start_ns = rng.randrange(first, last)
    op = _op(rng, rng.choice((KERNEL, COPY)), start_ns, rng.randint(start_ns + 1, last), rng.choice((13, 14)))
    op.is_orphan = "lost_launches" in features and rng.random() < 0.4
    return op


def _place_launches(rng: Random, segments: list[Segment], ops: list[Op]) -> None:
    """Puts every call that launches into a free segment before the first operation that it launched."""
    due: dict[int, tuple[Call, int]] = {}
    for one in ops:
        if not one.call.blocks:
            call, before = due.get(id(one.call), (one.call, one.start_ns))
            due[id(one.call)] = (call, min(before, one.start_ns))
    free = [one for one in segments if one.block is None and not one.is_quiet]
    placed: dict[int, list[tuple[int, Call]]] = {number: [] for number in range(len(free))}
    for call, before in due.values():
        roomy = [
            number
            for number, slot in enumerate(free)
            if slot.end_ns <= before and 8 * (len(placed[number]) + 1) <= slot.end_ns - slot.start_ns
        ]
        placed[rng.choice(roomy)].append((before, call))
    for number, calls in placed.items():
        _spread(rng, free[number], [call for _, call in sorted(calls, key=lambda one: one[0])])


def _spread(rng: Random, slot: Segment, calls: list[Call]) -> None:
    """Lays `calls` into `slot`, one after another, with time between them."""
    for place, call in enumerate(calls):
        pitch = (slot.end_ns - slot.start_ns) // len(calls)
        call.start_ns = slot.start_ns + place * pitch + rng.randrange(pitch // 4 + 1)
        call.end_ns = call.start_ns + 1 + rng.randrange(pitch // 2)


def _place_others(rng: Random, work: Work) -> None:
    """Calls that neither launch nor block, in the largest free time of a segment before the end."""
    for _ in range(rng.randrange(3)):
        slot = rng.choice(work.segments)
        if slot.block is not None or slot.is_quiet or slot.end_ns > work.end_ns:
            continue
        inside = [c for c in work.calls if c.start_ns < slot.end_ns and c.end_ns > slot.start_ns]
        first = max([slot.start_ns, *(call.end_ns for call in inside)])
        if slot.end_ns - first > 2:
            name, class_ = rng.choice(_OTHERS)
            start_ns = rng.randrange(first, slot.end_ns - 1)
            work.calls.append(Call(name, class_, start_ns, rng.randint(start_ns + 1, slot.end_ns)))


def _draw_os_waits(rng: Random, work: Work) -> list[tuple[str, int, int]]:
    """Waits of the thread that do not overlap; the last may go on beyond the end of the batch."""
    first, last = work.range_ns
    cuts = sorted(rng.randint(first, last) for _ in range(2 * rng.randrange(3)))
    waits = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True) if a < b]
    if waits and last == work.end_ns and rng.random() < 0.5:
        waits[-1] = (waits[-1][0], last + rng.randrange(10_000))
    return [(rng.choice(_OS_WAITS), start, end) for start, end in waits]
