"""What a node did: CPU, network, GPUs, clock."""

from __future__ import annotations

from squall.analysis.tables.columns import (
    INGEST,
    INTERVAL,
    NODE,
    PHASE,
    RUN,
    PhaseAt,
    T,
    Table,
    at,
    bytes_,
    count,
    flag,
    id_,
    made_in,
    ns,
    ratio,
    real,
    text,
)

OBSERVER = "actors/sampling/observer_process.py"
"""Labels the rows of its samplers."""
_LABELS = made_in(OBSERVER, RUN, PHASE, NODE)
_SAMPLED = PhaseAt("t_ns", INGEST)
_DEVICE = "actors/sampling/gpu/device.py"
_READINGS = "actors/sampling/gpu/readings.py"
_GPM = "actors/sampling/gpu/gpm.py"
_PROCESSES = "actors/sampling/gpu/processes.py"
_SOURCE = "actors/sampling/gpu/source.py"

TABLES = (
    Table(
        "host_samples",
        "sample of a node",
        _SAMPLED,
        ("actors/sampling/host.py",),
        (
            *_LABELS,
            T,
            INTERVAL,
            ratio("cpu_user", "CPU time in user mode over all cores' time"),
            ratio("cpu_system", "CPU time in the kernel, interrupts included"),
            ratio("cpu_iowait", "idle while waiting for a disk"),
            ratio("cpu_steal", "taken by the hypervisor for other guests"),
            ratio("cpu_idle", "idle"),
            count("n_cores", "logical CPUs"),
            count("run_queue", "runnable processes at t_ns"),
            count("context_switches", "context switches in the interval"),
            count("network_drops", "packets dropped on any interface in the interval", nullable=True),
            bytes_("memory_available_bytes", "memory available at t_ns", nullable=True),
            ns("server_cpu_ns", "CPU time of the server's processes in the interval", nullable=True),
            ns("psi_cpu_some_ns", "time in which some task waited for a CPU (PSI)", nullable=True),
            ns("psi_memory_some_ns", "time in which some task waited for memory (PSI)", nullable=True),
            ns("psi_memory_full_ns", "time in which all tasks waited for memory (PSI)", nullable=True),
            ns("psi_io_some_ns", "time in which some task waited for a disk (PSI)", nullable=True),
            ns("psi_io_full_ns", "time in which all tasks waited for a disk (PSI)", nullable=True),
            bytes_("network_rx_bytes", "bytes received on any interface but loopback", nullable=True),
            bytes_("network_tx_bytes", "bytes sent on any interface but loopback", nullable=True),
            count(
                "softirq_drops",
                "packets dropped by the network softirq, its backlog full",
                nullable=True,
            ),
            count(
                "softirq_squeezes",
                "times the network softirq ran out of budget (softnet_stat)",
                nullable=True,
            ),
            count("tcp_retransmits", "TCP segments sent again", nullable=True),
            count("tcp_listen_drops", "connections dropped at a listening socket", nullable=True),
        ),
    ),
    Table(
        "gpu_samples",
        "NVML sample of a GPU",
        _SAMPLED,
        (_READINGS,),
        (
            *_LABELS,
            *made_in(
                _DEVICE,
                text("gpu_uuid", "UUID of the GPU"),
                T,
                INTERVAL,
                text("mig_instance", "MIG instance, gi/ci; empty for a whole GPU"),
                ns(
                    "read_ns",
                    "how long the reads of this sample took: their values are of some instant within it",
                ),
            ),
            ratio("util", "nvidia-smi's utilisation: share of time in which any kernel ran", nullable=True),
            ratio(
                "memory_util",
                "nvidia-smi's: share of time in which memory was read or written",
                nullable=True,
            ),
            *made_in(
                _GPM,
                ns(
                    "gpm_interval_ns",
                    "what the columns of GPM cover, up to t_ns; null where they have no new value: they take 100 ms",
                    nullable=True,
                ),
                ratio("sm_util", "GPM: share of time in which an SM was busy, mean over SMs", nullable=True),
                ratio("sm_occupancy", "GPM: resident warps over the most possible", nullable=True),
                ratio("tensor_util", "GPM: share of time in which a tensor pipe was busy", nullable=True),
                ratio("fp16_util", "GPM: share of time in which an FP16 pipe was busy", nullable=True),
                ratio("fp32_util", "GPM: share of time in which an FP32 pipe was busy", nullable=True),
                ratio("fp64_util", "GPM: share of time in which an FP64 pipe was busy", nullable=True),
                ratio("dram_util", "GPM: share of peak DRAM bandwidth", nullable=True),
            ),
            bytes_("memory_used_bytes", "GPU memory in use; read once a second", nullable=True),
            real(
                "power_w",
                "W",
                "power draw as nvidia-smi has it, mean of a second on most GPUs; read once a second",
                nullable=True,
            ),
            real("power_instant_w", "W", "power draw at t_ns", nullable=True),
            real(
                "energy_j",
                "J",
                "energy drawn since the row before that has it; read every 10 s",
                nullable=True,
            ),
            real("power_limit_w", "W", "power limit in force; read once a second", nullable=True),
            real("temperature_c", "°C", "temperature of the GPU; read once a second", nullable=True),
            real("sm_clock_hz", "Hz", "SM clock", nullable=True),
            real("memory_clock_hz", "Hz", "memory clock; read once a second", nullable=True),
            id_("throttle_reasons", "NVML bit mask of reasons why clocks are held down", nullable=True),
            *made_in(
                (_GPM, _READINGS),
                real(
                    "pcie_rx_bytes_per_s",
                    "bytes/s",
                    "PCIe traffic to the GPU: by GPM, else by its counters",
                    nullable=True,
                ),
                real("pcie_tx_bytes_per_s", "bytes/s", "PCIe traffic from the GPU, likewise", nullable=True),
                real(
                    "nvlink_rx_bytes_per_s", "bytes/s", "NVLink traffic to the GPU, all links", nullable=True
                ),
                real(
                    "nvlink_tx_bytes_per_s",
                    "bytes/s",
                    "NVLink traffic from the GPU, all links",
                    nullable=True,
                ),
            ),
            count(
                "ecc_corrected_count",
                "ECC errors corrected since the row before that has a value; read once a second",
                nullable=True,
            ),
            count("ecc_uncorrected_count", "ECC errors not corrected, likewise", nullable=True),
            count("n_processes", "processes with a context on the GPU; read once a second", nullable=True),
        ),
    ),
    Table(
        "gpu_processes",
        "process with a context on a GPU, or that used it, every second",
        _SAMPLED,
        (_PROCESSES,),
        (
            *_LABELS,
            *made_in(_SOURCE, text("gpu_uuid", "UUID of the GPU"), T, INTERVAL),
            id_("process", "process id on its node"),
            *made_in(
                _SOURCE,
                flag("is_server", "it is one of the server's processes"),
                flag(
                    "uses_driver",
                    "a process of that id on this node has the NVIDIA driver open; null: it may not be looked at",
                    nullable=True,
                ),
            ),
            bytes_("memory_used_bytes", "GPU memory of the process", nullable=True),
            ratio(
                "sm_util",
                "share of time in which a kernel of it ran, as nvidia-smi pmon has it",
                nullable=True,
            ),
            ratio("memory_util", "share of time in which it read or wrote GPU memory", nullable=True),
        ),
    ),
    Table(
        "core_samples",
        "second of a logical CPU",
        _SAMPLED,
        ("actors/sampling/host.py",),
        (
            *_LABELS,
            id_("core", "logical CPU"),
            T,
            INTERVAL,
            ratio("cpu_user", "share of the interval in user mode"),
            ratio("cpu_system", "share in the kernel, without interrupts"),
            ratio("cpu_irq", "share in interrupts and softirqs: network work lands here"),
            ratio("cpu_steal", "share taken by the hypervisor for other guests"),
            ratio("cpu_idle", "share idle, waiting for a disk included"),
            real("frequency_hz", "Hz", "clock of the core at t_ns", nullable=True),
        ),
    ),
    Table(
        "cpu_samples",
        "second of a node's CPU: who had it, and who waited for it",
        _SAMPLED,
        ("actors/sampling/cpu_source.py",),
        (
            *_LABELS,
            T,
            INTERVAL,
            count("n_cores", "logical CPUs"),
            ns(
                "server_ns",
                "CPU time of the server's processes; null where none is known here",
                nullable=True,
            ),
            ns("clients_ns", "CPU time of the load workers"),
            ns(
                "squall_ns",
                "CPU time of the run's other parts: driver, agent, observer, nsys, the Ray it started",
            ),
            ns("others_ns", "CPU time of all else, the kernel's own threads and interrupts included"),
            ns(
                "steal_ns",
                "CPU time that the hypervisor calls stolen; idle as well where virtual cores wake slowly",
            ),
            ns("idle_ns", "CPU time idle, waiting for a disk included"),
            ns(
                "server_wait_ns",
                "time in which threads of the server could run and had no CPU, summed over them (schedstat)",
                nullable=True,
            ),
            ns("clients_wait_ns", "the same of the load workers' threads", nullable=True),
            count("server_runs", "times a thread of the server got a CPU (schedstat)", nullable=True),
            count("clients_runs", "the same of the load workers' threads", nullable=True),
            count("server_cores", "logical CPUs that the server may run on (its affinity)", nullable=True),
            ns("server_cores_busy_ns", "CPU time that anybody had of these", nullable=True),
            ns("server_cores_free_ns", "idle time of the one of these that was idle longest", nullable=True),
            flag("is_quota_shared", "load workers use up the server's CPU quota too", nullable=True),
            ns(
                "psi_cpu_some_ns", "time in which some task of the node waited for a CPU (PSI)", nullable=True
            ),
            ns(
                "psi_cpu_full_ns", "time in which all tasks of the node did; Linux has it as 0", nullable=True
            ),
            ns(
                "server_psi_some_ns",
                "time in which some task of the server's cgroup waited (v2)",
                nullable=True,
            ),
            ns(
                "server_psi_full_ns",
                "time in which all tasks of the server's cgroup waited (v2)",
                nullable=True,
            ),
            *(
                column
                for group, whose in (("server", "the server"), ("clients", "the load workers"))
                for column in (
                    real(
                        f"{group}_quota_cores",
                        "cores",
                        f"tightest CPU quota of {whose}: cpu.max",
                        nullable=True,
                    ),
                    count(f"{group}_periods", "periods of that quota with something to run", nullable=True),
                    count(f"{group}_throttled_periods", "those in which it was used up", nullable=True),
                    ns(f"{group}_throttled_ns", "time held back by it, summed over CPUs", nullable=True),
                )
            ),
        ),
    ),
    Table(
        "clock_probes",
        "exchange of four time stamps between driver and a node",
        PhaseAt("sent_ns", "cluster/driver/gather.py"),
        ("cluster/driver/clocksync.py",),
        (
            RUN,
            PHASE,
            NODE,
            at("sent_ns", "the driver sent the probe"),
            ns("node_received_ns", "the node got it, on the node's own monotonic clock"),
            ns("node_sent_ns", "the node answered, on the node's own monotonic clock"),
            at("received_ns", "the driver had the answer"),
        ),
    ),
)
