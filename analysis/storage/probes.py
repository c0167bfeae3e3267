"""Tables of a probe of the GPU alone: the calls of an operator, the stages of a pipeline. docs/probes.md."""

from __future__ import annotations

from squall.analysis.columns import OF_NODE, PhaseFrom, Table, columns

_PHASE = PhaseFrom("the run, which has the one phase `probe`")


TABLES = (
    Table(
        "probe_calls",
        "call of an operator probe",
        _PHASE,
        columns(
            *OF_NODE,
            """
            size       count    side of the square matrices
            under      text     what was recorded beside it: `nothing`, or `profiler`: torch.profiler
            part       text     `first` of that size in the process; else of the schedule: `wait`, `warmup`, `active`
            repeat     id       cycle of the schedule, from 0
            step       id       step of the cycle, from 0
            call       id       call of the step, from 0
            start_ns   instant  the host makes the call
            host_ns    ns       from there to its return on the host
            synced_ns  ns       from there until the host knows that the device is done
            event_ns   ns?      between CUDA events set before and behind the call: the longer of host and device; null:
                                no GPU
            op_cpu_ns  ns?      time of the host in aten operators, launches within them; null outside the profiler's
                                active steps
            kernel_ns  ns?      sum over the kernels that the call launched, as CUPTI has them; null where they were not
                                recorded
            n_kernels  count?   these kernels; null as before
            """,
        ),
    ),
    Table(
        "probe_stages",
        "stage of a call of a pipeline probe",
        _PHASE,
        columns(
            *OF_NODE,
            """
            variant   text     memory and kernels of the variant, as its row of figures is called
            repeat    id       round, from 0
            call      id       call of the variant in the round, from 0
            part      text     `warmup`, or `active`: of these the figures are made
            stage     text     `prep`, `h2d`, `preprocess`, `inference`, `fused` (these and the postprocessing in one),
                               `d2h`, `postprocess`; `total`: the whole call on the host
            start_ns  instant  the call begins on the host
            span_ns   ns       length: of `prep`, `postprocess` and `total` by the host's clock, of the others between
                               CUDA events (on the CPU by its clock too)
            """,
        ),
    ),
)
