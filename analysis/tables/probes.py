"""Tables of a probe of the GPU alone: the calls of an operator, the stages of a pipeline. docs/probes.md."""

from __future__ import annotations

from squall.analysis.tables.columns import (
    NODE,
    PHASE,
    RUN,
    Column,
    PhaseFrom,
    Table,
    at,
    count,
    id_,
    ns,
    text,
)

_PHASE = PhaseFrom("the run, which has the one phase `probe`")
_LABELS = (RUN, PHASE, NODE)


def _start(meaning: str) -> Column:
    return at("start_ns", meaning)


TABLES = (
    Table(
        "probe_calls",
        "call of an operator probe",
        _PHASE,
        (
            *_LABELS,
            count("size", "side of the square matrices"),
            text("under", "what was recorded beside it: `nothing`, or `profiler`: torch.profiler"),
            text(
                "part",
                "`first` of that size in the process; else of the schedule: `wait`, `warmup`, `active`",
            ),
            id_("repeat", "cycle of the schedule, from 0"),
            id_("step", "step of the cycle, from 0"),
            id_("call", "call of the step, from 0"),
            _start("the host makes the call"),
            ns("host_ns", "from there to its return on the host"),
            ns("synced_ns", "from there until the host knows that the device is done"),
            ns(
                "event_ns",
                "between CUDA events set before and behind the call: the longer of host and device; null: no GPU",
                nullable=True,
            ),
            ns(
                "op_cpu_ns",
                "time of the host in aten operators, launches within them; null outside the profiler's active steps",
                nullable=True,
            ),
            ns(
                "kernel_ns",
                "sum over the kernels that the call launched, as CUPTI has them; null where they were not recorded",
                nullable=True,
            ),
            count("n_kernels", "these kernels; null as before", nullable=True),
        ),
    ),
    Table(
        "probe_stages",
        "stage of a call of a pipeline probe",
        _PHASE,
        (
            *_LABELS,
            text("variant", "memory and kernels of the variant, as its row of figures is called"),
            id_("repeat", "round, from 0"),
            id_("call", "call of the variant in the round, from 0"),
            text("part", "`warmup`, or `active`: of these the figures are made"),
            text(
                "stage",
                "`prep`, `h2d`, `preprocess`, `inference`, `fused` (these and the postprocessing in one), `d2h`, "
                "`postprocess`; `total`: the whole call on the host",
            ),
            _start("the call begins on the host"),
            ns(
                "span_ns",
                "length: of `prep`, `postprocess` and `total` by the host's clock, of the others between CUDA events "
                "(on the CPU by its clock too)",
            ),
        ),
    ),
)
