"""Rules of the window level: where the wall time of a model instance goes over a phase. Tried in this order."""

from __future__ import annotations

from squall.analysis.findings.rules.rule import BATCH_KEY, Detail, GiveBack, RowLink, Rule, at_least, below
from squall.analysis.limits import LIMITS

_REQUEST = ("request_id",)

_EXECUTIONS = RowLink("batch_costs", "end_ns - start_ns", (*BATCH_KEY, "start_ns", "end_ns", "rows"))
_TAKEN = at_least(
    "cpu_taken_ratio",
    LIMITS.taken_ratio,
    "beyond it the server computes a quarter slower than on a host of its own",
)
_CONSEQUENCE = at_least(
    "cpu_consequence_ratio",
    LIMITS.consequence_ratio,
    "beyond both the verdict calls the run INVALID: the response times are not the server's alone",
)

BY_OTHERS = Rule(
    "starved by others",
    "window",
    (
        (_TAKEN,),
        (_CONSEQUENCE,),
        (at_least("cpu_taken_by_others_ratio", 0.5, "most of it was taken by what is not of this run"),),
    ),
    "Others had {cpu_taken_ratio} of the CPU that the server could have used: its threads waited to run for "
    "{cpu_wait_ratio} of the time in which they could, which made {cpu_consequence_ratio} of the response times.",
    "Stop what else runs on the server's node, or give the server cores or a host of its own; then run again.",
    "It says nothing of the model: an execution lasts while its threads wait, too.",
    GiveBack(),
    _EXECUTIONS,
    evidence=("cpu_wait_ratio", "wall_exec_ratio"),
    asked_where="cpu_taken_ratio",
)

BY_CLIENT = Rule(
    "starved by the client",
    "window",
    (
        (_TAKEN,),
        (_CONSEQUENCE,),
        (below("cpu_taken_by_others_ratio", 0.5, "most of it was taken by load workers and other parts of this run"),),
    ),
    "The load generator had {cpu_taken_ratio} of the CPU that the server could have used, on the node that they share: "
    "the server's threads waited to run for {cpu_wait_ratio} of the time in which they could, which made "
    "{cpu_consequence_ratio} of the response times.",
    "Put the load workers on another node; then run again.",
    "It says nothing of the model: an execution lasts while its threads wait, too.",
    GiveBack(),
    _EXECUTIONS,
    evidence=("cpu_wait_ratio", "wall_exec_ratio"),
    asked_where="cpu_taken_ratio",
)  # fmt: skip

BY_QUOTA = Rule(
    "throttled by a CPU quota",
    "window",
    (
        (
            at_least(
                "cpu_throttled_ratio",
                LIMITS.throttled_ratio,
                "a tenth of the periods ends with the server held back until the next one",
            ),
        ),
    ),
    "The CPU quota of the server's control group was used up in {cpu_throttled_ratio} of its periods: the server stood "
    "still until the next one.",
    "Raise the quota, or spread the work: fewer threads, smaller batches; these latencies are the deployment's.",
    "It does not tell which threads used the quota up: see thread_samples.",
    GiveBack(),
    _EXECUTIONS,
    evidence=("cpu_wait_ratio", "wall_exec_ratio"),
    asked_where="cpu_taken_ratio",
)

SHARED_GPU = Rule(
    "shared GPU",
    "window",
    (
        (
            at_least(
                "gpu_foreign_ratio",
                LIMITS.taken_ratio,
                "as of the CPU: a fifth of the time in which the server's kernels may have waited for others",
            ),
        ),
        (
            at_least(
                "gpu_consequence_ratio",
                LIMITS.consequence_ratio,
                "beyond both the verdict calls the run INVALID: the response times are not the server's alone",
            ),
        ),
    ),
    "Others had {gpu_foreign_ratio} of the time of its GPU, which explains up to {gpu_consequence_ratio} of the "
    "response times.",
    "Stop what else runs on the GPU, or give the server a GPU of its own; then run again.",
    "It says nothing of the model: kernels wait for those of others, and clocks fall by their heat and power, too.",
    GiveBack(),
    _EXECUTIONS,
    evidence=("gpu_server_ratio", "throttled_ratio", "wall_exec_ratio"),
    asked_where="gpu_foreign_ratio",
)

CLIENT_LAG_RATIO = 0.20
"""Share of the mean latency that makes the client the limit by itself."""

CLIENT_TRACE_RATIO = 0.02
"""Share of the mean latency below which a phase was not held up by its client, whatever the run's verdict says."""

CLIENT = Rule(
    "client-bound",
    "window",
    (
        (
            at_least("client_is_bottleneck", 0.5, "the checks of the run's verdict found it so"),
            at_least(
                "client_lag_share_ratio",
                CLIENT_LAG_RATIO,
                "twice the tenth of a latency that a valid run allows its client: a fifth is no longer an edge effect",
            ),
        ),
        (
            at_least(
                "client_lag_share_ratio",
                CLIENT_TRACE_RATIO,
                "the verdict is of the whole run: this phase too lost something before the send, more than timers cost",
            ),
            at_least("load_is_closed", 0.5, "or its users wait for replies, so that no send can be late"),
        ),
    ),
    "The load generator was the limit: {client_lag_share_ratio} of the mean latency passed before it had sent.",
    "Add client workers or nodes as the verdict says, and run again: what the run says of the server is a lower bound.",
    "It says nothing of the server; its regime behind the client's is the runner-up.",
    GiveBack(response=("client_lag_share_ratio",)),
    RowLink("joined", "lag_ns", (*_REQUEST, "lag_ns", "response_ns")),
)

UNSERVED_RATIO = 0.05
"""Share of the requests that no batch takes which is more than a few strays."""

_NOT_FULL = (
    below(
        "wall_exec_ratio",
        0.75,
        "an instance that executes for three quarters of the wall leaves requests behind because it is full",
    ),
)

REFUSED = Rule(
    "refused",
    "window",
    (
        (
            at_least(
                "refused_ratio",
                UNSERVED_RATIO,
                "one request in twenty that the server answers without serving it is no stray",
            ),
        ),
        _NOT_FULL,
    ),
    "The server answers without serving: {refused_ratio} of the {n_requests} requests that were sent to it were taken "
    "by no batch, but answered, with an error or not as the model promises, while the instance executed for "
    "{wall_exec_ratio} of the wall.",
    "Look at outcome and detail of these requests in table requests: they hold the server's own words; mend that "
    "before anything else.",
    "It does not tell a request that the server cannot take from a server that takes none.",
    GiveBack(),
    RowLink("joined", "done_ns - sent_ns", (*_REQUEST, "outcome", "sent_ns", "done_ns")),
    evidence=("wall_between_waiting_ratio", "n_batches"),
    counted="n_requests",
)

UNSERVED = Rule(
    "unserved",
    "window",
    (
        (
            at_least(
                "unreplied_ratio",
                UNSERVED_RATIO,
                "one request in twenty that is sent, taken by no batch and not answered is no stray",
            ),
        ),
        _NOT_FULL,
    ),
    "Requests go unserved: {unreplied_ratio} of the {n_requests} that were sent to the server were taken by no batch "
    "and never answered, while the instance executed for {wall_exec_ratio} of the wall.",
    "Look at the server's log and its health, at outcome and detail of these requests in table requests, and at the "
    "client's timeout; mend that before anything else.",
    "It does not tell a server that hangs or died from a network that loses requests.",
    GiveBack(),
    RowLink("joined", "done_ns - sent_ns", (*_REQUEST, "outcome", "sent_ns", "done_ns")),
    evidence=("wall_between_waiting_ratio", "n_batches"),
    counted="n_requests",
)

QUEUE_DELAY_RATIO = 0.10
"""Share of the time in the server from which on the batcher's delay is told: no other tenth is had by one setting."""

_QUEUE_DELAY = Detail(
    "queue delay",
    (
        (
            at_least(
                "queue_delay_share_ratio",
                QUEUE_DELAY_RATIO,
                "no other tenth of a latency is had by one setting",
            ),
        ),
    ),
    "the dynamic batcher holds a request back for up to {queue_delay_ns} to fill its batch, which explains "
    "{queue_delay_share_ratio} of the median time in the server",
    "Lower the model's max_queue_delay (server.control says it of a server that runs).",
)

UNDER_OFFERED = Rule(
    "under-offered",
    "window",
    (
        (
            at_least(
                "wall_unoffered_ratio",
                0.50,
                "idle with nobody waiting for half of the wall: the load could double before the instance is full",
            ),
        ),
        (
            below(
                "queue_to_exec_ratio",
                1.0,
                "the median request waits less than one batch: a burst that fills the queue is another regime",
            ),
        ),
        (
            below(
                "unserved_ratio",
                UNSERVED_RATIO,
                "requests that nobody serves are load, however idle the instance is",
            ),
        ),
    ),
    "The load leaves the instance idle for {wall_unoffered_ratio} of the wall, with no request waiting; the median "
    "request queues {queue_to_exec_ratio} as long as a batch lasts.",
    "Raise the rate, or lower the number of instances: latencies here are those of an empty server.",
    "It does not tell how much more load the instance carries: batches grow with load.",
    GiveBack(),
    RowLink("batch_costs", "gap_before_ns", (*BATCH_KEY, "gap_before_ns")),
    evidence=("wall_exec_ratio", "batch_rows_mean"),
    details=(_QUEUE_DELAY,),
)

QUEUE = Rule(
    "queue-bound",
    "window",
    (
        (
            at_least(
                "queue_share_ratio",
                0.50,
                "the median request spends most of its time in the server waiting for its turn",
            ),
        ),
        (
            at_least(
                "work_served_ratio",
                0.90,
                "while requests wait, the instance executes: less than a tenth of that time is lost between batches",
            ),
            at_least(
                "load_of_ceiling_ratio",
                0.90,
                "or nine tenths of what full batches one after another carry is asked for: then what lies between them "
                "is part of what an instance can do, not lost",
            ),
        ),
    ),
    "Requests wait for their turn: {queue_share_ratio} of the median time in the server is queue, and the instance "
    "executes for {work_served_ratio} of the time in which it has work.",
    "Add an instance or a GPU where there is room for one, allow larger batches, or shorten a batch by what saturates "
    "the instance.",
    "A queue does not say why the instance is slow: what saturates it is named beside it.",
    GiveBack(response=("response_queue_ratio",)),
    RowLink("joined", "queue_ns", (*_REQUEST, "queue_ns", "compute_ns")),
    evidence=("wall_exec_ratio", "queue_p50_ns", "exec_mean_ns", "batch_rows_mean", "ceiling_hz"),
)

CPU_OF_EXEC_RATIO = 0.50

CPU = Rule(
    "computes on the CPU",
    "window",
    (
        (at_least("instance_is_cpu", 0.5, "no GPU on its node, or none that it used"),),
        (
            at_least(
                "wall_exec_ratio",
                0.50,
                "it executes for half of the wall or more: no other part is larger, and its own code is what a faster "
                "model would save",
            ),
        ),
        (
            at_least(
                "cpu_of_exec_ratio",
                CPU_OF_EXEC_RATIO,
                "all CPU that the servers of its node had, over the length of their batches: below half, most of a "
                "batch passes without one",
            ),
            at_least("is_cpu_time_unknown", 0.5, "or it was not sampled"),
        ),
    ),
    "The model computes on the CPU and executes for {wall_exec_ratio} of the wall; no GPU is involved.",
    "Profile the model's own code on its host, give it more cores, or serve it on a GPU.",
    "Nothing of what its code does on the CPU is recorded here beyond its OS-runtime waits.",
    GiveBack(("wall_exec_ratio",), ("response_compute_ratio",), feeds_queue=True),
    _EXECUTIONS,
    evidence=("exec_mean_ns", "batch_rows_mean"),
)

OFF_CPU = Rule(
    "waits off the CPU",
    "window",
    (
        (at_least("instance_is_cpu", 0.5, "no GPU on its node, or none that it used"),),
        (
            at_least(
                "wall_exec_ratio",
                0.50,
                "it executes for half of the wall or more, as for computes on the CPU",
            ),
        ),
        (
            below(
                "cpu_or_wait_of_exec_ratio",
                CPU_OF_EXEC_RATIO,
                "even if all that the servers of its node ran were this model's, most of a batch is spent waiting",
            ),
        ),
    ),
    "The model executes for {wall_exec_ratio} of the wall and waits meanwhile: all that the servers of its node ran on "
    "a CPU, or waited for one, is {cpu_or_wait_of_exec_ratio} the length of their batches.",
    "Look at what its execute() waits for (another service, a lock, a disk, a sleep); one more instance costs little "
    "CPU.",
    "It does not tell what it waits for.",
    GiveBack(("wall_exec_ratio",), ("response_compute_ratio",), feeds_queue=True),
    _EXECUTIONS,
    evidence=("exec_mean_ns", "batch_rows_mean"),
)

SCHEDULER = Rule(
    "scheduler/IPC-bound",
    "window",
    (
        (
            at_least(
                "wall_between_waiting_ratio",
                0.20,
                "a fifth of the wall idle although requests wait: more than the hand-over of a batch costs by itself",
            ),
        ),
        (
            below(
                "unserved_ratio", UNSERVED_RATIO, "what keeps requests from ever being served is no hand-over"
            ),
        ),
    ),
    "The instance stood idle for {wall_between_waiting_ratio} of the wall although requests were at the server.",
    "Lower the queue delay of the dynamic batcher and the preferred batch sizes; then look at the hand-over between "
    "the server's core and the model's process (its OS-runtime waits, CPU of the node).",
    "It does not tell the batcher's delay, which is a choice, from the cost of the hand-over between processes.",
    GiveBack(
        ("wall_between_waiting_ratio",),
        ("response_idle_wait_ratio",),
        feeds_queue=True,
        beside_queue=("response_idle_beside_queue_ratio",),
    ),
    RowLink("joined", "idle_wait_ns", (*_REQUEST, "idle_wait_ns", "wait_ns")),
    evidence=("wall_exec_ratio", "wall_unoffered_ratio"),
    details=(_QUEUE_DELAY,),
)

HOST = Rule(
    "host-bound",
    "window",
    (
        (
            at_least(
                "head_tail_of_exec_ratio",
                0.40,
                "of a batch, as much passes before its first and after its last operation on the GPU as a body of two "
                "thirds could hide if the two overlapped",
            ),
        ),
        (below("instance_is_cpu", 0.5, "a model without a GPU has no head and tail"),),
    ),
    "Before the first and after the last operation on the GPU passes {head_tail_of_exec_ratio} of a batch "
    "({wall_head_ratio} and {wall_tail_ratio} of the wall), of {exec_mean_ns} on average.",
    "Look at what execute() does before its first copy (assembling inputs, conversions) and after its last (building "
    "responses); move it off the serving thread, or overlap it with the batch before through a second instance.",
    "It does not tell which function of the host's code takes the time: the head is pure host time.",
    GiveBack(
        ("wall_head_ratio", "wall_tail_ratio"),
        ("response_head_ratio", "response_tail_ratio"),
        feeds_queue=True,
    ),
    RowLink("batch_costs", "head_ns + tail_ns", (*BATCH_KEY, "head_ns", "tail_ns", "rows")),
    evidence=("wall_gpu_busy_ratio", "wall_body_idle_ratio", "wall_between_ratio"),
    needs_report=True,
)

THROTTLED = Rule(
    "throttled",
    "window",
    (
        (
            at_least(
                "throttled_ratio",
                0.10,
                "a tenth of the phase with clocks held down by heat or power: more than a single sample of a phase",
            ),
        ),
        (at_least("n_throttle_samples", 10.0, "of fewer samples one alone makes a tenth"),),
        (
            at_least(
                "wall_kernel_busy_ratio",
                0.10,
                "clocks slow kernels down: where these take less than a tenth of the wall, little is lost",
            ),
        ),
    ),
    "Clocks of its GPU were held down by heat or power in {throttled_ratio} of the samples.",
    "Look at temperature, power and power limit in gpu_samples; cool the host or raise the limit, then run again.",
    "It does not tell how much slower the kernels were: compare their medians with those of a cool run.",
    GiveBack(("wall_kernel_busy_ratio",), ("response_kernel_busy_ratio",), feeds_queue=True),
    RowLink("batch_costs", "kernel_busy_ns", (*BATCH_KEY, "kernel_busy_ns", "start_ns")),
    evidence=("gpu_activity_ratio", "gpu_util_ratio"),
)

BODY = Rule(
    "body-bound",
    "window",
    (
        (
            at_least(
                "wall_body_ratio",
                0.50,
                "most of the wall passes between the first and the last operation of the batches",
            ),
        ),
        (below("instance_is_cpu", 0.5, "a model without a GPU has no body on it"),),
    ),
    "Between the first and the last operation of its batches passes {wall_body_ratio} of the wall, "
    "{wall_gpu_busy_ratio} with the GPU busy: the level of the body says what limits it.",
    "Go by the finding of the body level.",
    "It does not tell whether the GPU or the host sets the pace within the body: the body level does.",
    GiveBack(
        ("wall_body_ratio",),
        (
            "response_kernel_busy_ratio",
            "response_copy_exposed_ratio",
            "response_sync_wait_ratio",
            "response_launch_idle_ratio",
        ),
        feeds_queue=True,
    ),
    RowLink(
        "batch_costs",
        "kernel_busy_ns + copy_exposed_ns + sync_wait_ns + launch_idle_ns",
        (*BATCH_KEY, "kernel_busy_ns", "sync_wait_ns", "launch_idle_ns"),
    ),
    evidence=("body_busy_ratio",),
    needs_report=True,
)

STARVED = (BY_OTHERS, BY_CLIENT)
WINDOW_RULES = (
    *STARVED,  # an instance that does not get the CPU says nothing of itself
    SHARED_GPU,
    CLIENT,
    REFUSED,
    UNSERVED,
    BY_QUOTA,
    UNDER_OFFERED,
    QUEUE,
    CPU,
    OFF_CPU,
    SCHEDULER,
    HOST,
    THROTTLED,
    BODY,
)
"""In the order in which they are tried."""
