"""Rules of the body level: what sets the pace between a batch's first and last operation on the GPU. In this order."""

from __future__ import annotations

from squall.analysis.findings.rules.rule import (
    BATCH_KEY,
    Detail,
    GiveBack,
    RowLink,
    Rule,
    at_least,
    at_most,
    below,
)

SYNC = Rule(
    "sync-bound",
    "body",
    (
        (
            at_least(
                "blocked_of_exec_ratio", 0.20, "below a fifth of a batch, waiting is not what to mend first"
            ),
        ),
        (
            at_least(
                "mid_blocks_per_batch",
                1.0,
                "every batch waits before its work is all launched: the GPU runs dry while the host wakes up",
            ),
            below(
                "blocked_gpu_busy_ratio",
                0.50,
                "the GPU idles for most of the waiting: the host waits for something else than the GPU's work. A wait "
                "at the end of a batch with a busy GPU is a symptom of GPU time, not its cause",
            ),
        ),
        (
            below(
                "body_busy_ratio",
                0.75,
                "a GPU that works for three quarters of the body sets the pace itself, however often the host waits",
            ),
        ),
        (
            at_least(
                "host_wait_of_idle_ratio",
                0.50,
                "most idle time ends with a launch that had not begun when the GPU ran dry",
            ),
            below(
                "foreign_busy_ratio",
                0.20,
                "or no other process has the GPU meanwhile: idle behind one is contention, whoever waits for it",
            ),
        ),
    ),
    "The serving thread is blocked for {blocked_of_exec_ratio} of a batch, {mid_blocks_per_batch} times a batch before "
    "its last launch, and the GPU works for {blocked_gpu_busy_ratio} of that.",
    "Take waits and copies of pageable memory out of the middle of the batch: pinned buffers, one wait at the end, "
    "no .item() or .cpu() between kernels.",
    "It does not name the line of code: the CUDA calls of the worst batches do.",
    GiveBack(  # idle time that follows a wait, until the next launch, is the wait's too
        ("wall_sync_wait_ratio", "wall_launch_idle_ratio"),
        ("response_sync_wait_ratio", "response_launch_idle_ratio"),
        feeds_queue=True,
    ),
    RowLink("batch_costs", "blocked_ns", (*BATCH_KEY, "blocked_ns", "blocked_busy_ns", "n_mid_blocks")),
    evidence=("pageable_bytes_ratio", "body_busy_ratio"),
    needs_report=True,
)

LAUNCH = Rule(
    "launch-bound",
    "body",
    (
        (below("body_busy_ratio", 0.50, "the GPU idles for more of the body than it works"),),
        (
            at_least(
                "issue_to_op_ratio", 2.0, "operations are issued half as fast as the GPU does them, or slower"
            ),
        ),
        (
            at_least(
                "host_wait_of_idle_ratio",
                0.70,
                "most idle time ends with a launch that had not begun when the GPU ran dry",
            ),
        ),
        (
            at_most(
                "launch_depth_nonempty_mean",
                1.5,
                "the launch queue holds hardly more than the operation that starts next: the host never gets ahead",
            ),
        ),
    ),
    "The GPU works for {body_busy_ratio} of the body: an operation is issued every {issue_interval_ns} and takes "
    "{op_median_ns} (the interval is {issue_to_op_ratio} as long); {host_wait_of_idle_ratio} of the idle time waits for"
    " the host, and the launch queue holds {launch_depth_nonempty_mean} while it holds any.",
    "Launch less often: CUDA graphs, fused kernels, larger batches, or a compiled model.",
    "The interval includes the framework's own work between launches: it does not tell that from the call's cost.",
    GiveBack(("wall_launch_idle_ratio",), ("response_launch_idle_ratio",), feeds_queue=True),
    RowLink("batch_costs", "launch_idle_ns", (*BATCH_KEY, "launch_idle_ns", "n_launches", "kernel_busy_ns")),
    evidence=("launches_per_batch",),
    needs_report=True,
)

IDLE = Rule(
    "host-paced",
    "body",
    (
        (
            at_least(
                "is_without_launches",
                0.5,
                "launches and calls tell waits from slow launches; where they were recorded, those rules name it",
            ),
        ),
        (
            below(
                "body_busy_ratio",
                0.75,
                "a GPU that works for three quarters of the body sets the pace itself, as for sync-bound",
            ),
        ),
        (below("foreign_busy_ratio", 0.20, "idle behind another process is contention"),),
    ),
    "Between the first and the last operation of a batch the GPU works for {body_busy_ratio} of the time and idles for "
    "the rest; a kernel takes {kernel_mean_ns}. The host sets the pace, by waits or by slow launches.",
    "Record CUDA calls too, as nsys does, to tell waits from launches; then fewer waits in the middle of the batch, "
    "CUDA graphs, fused kernels or larger batches.",
    "CUDA calls were not recorded: it does not tell a host that waits from one that launches slowly.",
    GiveBack(("wall_body_idle_ratio",), feeds_queue=True),
    RowLink(
        "batch_costs",
        "end_ns - start_ns - head_ns - kernel_busy_ns - copy_exposed_ns - tail_ns",
        (*BATCH_KEY, "n_kernels", "kernel_busy_ns", "head_ns", "tail_ns"),
    ),
    evidence=("kernel_mean_ns", "body_idle_of_exec_ratio"),
    details=(
        Detail(
            "small kernels",
            (
                (
                    below(
                        "kernel_mean_ns",
                        10_000.0,
                        "a launch takes the host 2 to 5 µs and the framework around it as long again",
                    ),
                ),
            ),
            "a kernel takes {kernel_mean_ns} on average, about what it costs to launch one",
            "Fuse kernels, use CUDA graphs or larger batches: fewer launches for the same work.",
        ),
    ),
    needs_report=True,
)

TRANSFER = Rule(
    "transfer-bound",
    "body",
    (
        (
            at_least(
                "copy_exposed_of_body_ratio",
                0.10,
                "copies that no kernel hides are a tenth of the body: less, and removing them saves less than that",
            ),
        ),
        (
            at_least(
                "copy_exposed_of_body_ratio", 0.25, "a quarter of the body moves data while nothing computes"
            ),
            at_least("copy_to_kernel_ratio", 1.0, "the GPU spends as long on copies as on kernels"),
        ),
    ),
    "Copies that no kernel hides take {copy_exposed_of_body_ratio} of the body, and all copies {copy_to_kernel_ratio} "
    "as long as all kernels; a copy moves {copy_mean_bytes} on average.",
    "Move less: smaller types, inputs that stay on the device, one copy for a batch; or overlap copies with the batch "
    "before on a stream of their own.",
    "It does not tell whether the link or the size of the copies holds them back, unless a closer name does.",
    GiveBack(("wall_copy_exposed_ratio",), ("response_copy_exposed_ratio",), feeds_queue=True),
    RowLink("batch_costs", "copy_exposed_ns", (*BATCH_KEY, "copy_exposed_ns", "h2d_bytes", "d2h_bytes")),
    evidence=("copy_bytes_per_s", "pageable_bytes_ratio"),
    details=(
        Detail(
            "small copies",
            (
                (
                    below(
                        "copy_mean_bytes",
                        65_536.0,
                        "at 25 GB/s 64 KiB take 2.6 µs, as long as a copy costs by itself",
                    ),
                ),
            ),
            "a copy moves {copy_mean_bytes} on average, so that its fixed cost rules",
            "Pack inputs into one buffer and copy once.",
        ),
        Detail(
            "pageable memory",
            ((at_least("pageable_bytes_ratio", 0.50, "most bytes go through a staging buffer"),),),
            "{pageable_bytes_ratio} of the bytes come from or go to pageable memory",
            "Pin the host's buffers.",
        ),
        Detail(
            "slow link",
            (
                (
                    below(
                        "copy_bytes_per_s",
                        6e9,
                        "half of what 16 lanes of PCIe 3.0, the slowest link of a data-centre GPU in use, carry",
                    ),
                ),
                (
                    at_least(
                        "copy_mean_bytes",
                        1_048_576.0,
                        "1 MiB takes 175 µs at that rate: the fixed cost of a copy no longer explains it",
                    ),
                ),
            ),
            "large copies move {copy_bytes_per_s} bytes a second only",
            "Look at the PCIe link (lanes, generation) and at what else uses it.",
        ),
    ),
    needs_report=True,
)

GPU = Rule(
    "GPU-bound",
    "body",
    (
        (
            at_least("body_busy_ratio", 0.75, "the GPU works for three quarters of the body or more"),
            at_least(
                "gpu_activity_ratio",
                0.80,
                "or the device is busy for four fifths of the phase, by all its instances together",
            ),
        ),
        (
            at_least(
                "launch_depth_nonempty_mean",
                2.0,
                "the host is ahead: work waits in the launch queue for the GPU",
            ),
            at_most("issue_to_op_ratio", 1.2, "operations are issued about as fast as the GPU does them"),
            at_least(
                "body_busy_ratio",
                0.90,
                "or the GPU idles for less than a tenth of the body: no host could keep it busier, whatever the calls",
            ),
        ),
        (
            at_least("body_busy_ratio", 0.75, "the GPU's work is the instance's own"),
            below(
                "foreign_busy_ratio",
                0.20,
                "or at least not that of another process: what that computes is contention",
            ),
        ),
    ),
    "The GPU works for {body_busy_ratio} of the body: its kernels set the pace (launches that wait for it while any "
    "do: {launch_depth_nonempty_mean}).",
    "Make the kernels cheaper: lower precision, fused or compiled model, larger batches if it is under-filled, or a "
    "faster GPU.",
    "Busy counts a kernel of one block like one that fills the GPU: the closer names tell how full it was.",
    GiveBack(("wall_kernel_busy_ratio",), ("response_kernel_busy_ratio",), feeds_queue=True),
    RowLink("batch_costs", "kernel_busy_ns", (*BATCH_KEY, "kernel_busy_ns", "n_kernels", "rows")),
    evidence=(
        "op_median_ns",
        "gpu_sm_util_ratio",
        "busy_dram_ratio",
        "busy_tensor_ratio",
        "sub_wave_time_ratio",
        "sm_cover_ratio",
        "occupancy_ratio",
    ),
    details=(
        Detail(
            "memory",
            (
                (
                    at_least(
                        "busy_dram_ratio",
                        0.60,
                        "of peak DRAM bandwidth while busy: real kernels reach 80 to 90 % of the peak at best",
                    ),
                ),
            ),
            "DRAM moves {busy_dram_ratio} of its peak while the GPU is busy",
            "Fuse kernels and lower the precision: fewer bytes, not fewer operations.",
        ),
        Detail(
            "tensor",
            (
                (
                    at_least(
                        "busy_tensor_ratio",
                        0.50,
                        "tensor pipes are busy for half of the GPU's busy time: matrix products rule",
                    ),
                ),
            ),
            "tensor pipes are busy for {busy_tensor_ratio} of the GPU's busy time",
            "Lower precision or sparsity; a GPU with more tensor throughput.",
        ),
        Detail(
            "under-filled",
            (
                (
                    at_least(
                        "sub_wave_time_ratio",
                        0.50,
                        "most kernel time is in grids that do not fill the device once",
                    ),
                    below("sm_cover_ratio", 0.80, "a fifth of the SMs have no block, weighed by time"),
                ),
            ),
            "{sub_wave_time_ratio} of the kernel time is in grids below one wave, with blocks for {sm_cover_ratio} of "
            "the SMs",
            "Larger batches, or several instances on the GPU.",
        ),
    ),
    needs_report=True,
)

CONTENTION = Rule(
    "contention",
    "body",
    (
        (
            at_least(
                "foreign_busy_ratio",
                0.20,
                "another process has the GPU busy for a fifth of this instance's batches",
            ),
        ),
    ),
    "Another process has the GPU busy for {foreign_busy_ratio} of the time of this instance's batches.",
    "Give the instances GPUs or MIG slices of their own, or serve them one after another.",
    "Two kernels at once may share the GPU without loss: it bounds what they could take from one another.",
    GiveBack(("wall_foreign_ratio",), ("response_foreign_ratio",), feeds_queue=True),
    RowLink("batch_costs", "end_ns - start_ns", (*BATCH_KEY, "start_ns", "end_ns", "kernel_busy_ns")),
    evidence=("body_busy_ratio", "gpu_activity_ratio"),
    needs_report=True,
)

BODY_RULES = (SYNC, LAUNCH, TRANSFER, GPU, IDLE, CONTENTION)
