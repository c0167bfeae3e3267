"""What a node did: CPU, network, GPUs, clock."""

from __future__ import annotations

from squall.analysis.tables.columns import INTERVAL, OF_NODE, PhaseAt, T, Table, columns

_SAMPLED = PhaseAt("t_ns")

TABLES = (
    Table(
        "host_samples",
        "sample of a node",
        _SAMPLED,
        columns(
            *OF_NODE,
            T,
            INTERVAL,
            """
            cpu_user                ratio   CPU time in user mode over all cores' time
            cpu_system              ratio   CPU time in the kernel, interrupts included
            cpu_iowait              ratio   idle while waiting for a disk
            cpu_steal               ratio   taken by the hypervisor for other guests
            cpu_idle                ratio   idle
            n_cores                 count   logical CPUs
            run_queue               count   runnable processes at t_ns
            context_switches        count   context switches in the interval
            network_drops           count?  packets dropped on any interface in the interval
            memory_available_bytes  bytes?  memory available at t_ns
            server_cpu_ns           ns?     CPU time of the server's processes in the interval
            psi_cpu_some_ns         ns?     time in which some task waited for a CPU (PSI)
            psi_memory_some_ns      ns?     time in which some task waited for memory (PSI)
            psi_memory_full_ns      ns?     time in which all tasks waited for memory (PSI)
            psi_io_some_ns          ns?     time in which some task waited for a disk (PSI)
            psi_io_full_ns          ns?     time in which all tasks waited for a disk (PSI)
            network_rx_bytes        bytes?  bytes received on any interface but loopback
            network_tx_bytes        bytes?  bytes sent on any interface but loopback
            softirq_drops           count?  packets dropped by the network softirq, its backlog full
            softirq_squeezes        count?  times the network softirq ran out of budget (softnet_stat)
            tcp_retransmits         count?  TCP segments sent again
            tcp_listen_drops        count?  connections dropped at a listening socket
            """,
        ),
    ),
    Table(
        "gpu_samples",
        "NVML sample of a GPU",
        _SAMPLED,
        columns(
            *OF_NODE,
            "gpu_uuid  text  UUID of the GPU",
            T,
            INTERVAL,
            """
            mig_instance           text      MIG instance, gi/ci; empty for a whole GPU
            read_ns                ns        how long the reads of this sample took: their values are of some instant
                                             within it
            util                   ratio?    nvidia-smi's utilisation: share of time in which any kernel ran
            memory_util            ratio?    nvidia-smi's: share of time in which memory was read or written
            gpm_interval_ns        ns?       what the columns of GPM cover, up to t_ns; null where they have no new
                                             value: they take 100 ms
            sm_util                ratio?    GPM: share of time in which an SM was busy, mean over SMs
            sm_occupancy           ratio?    GPM: resident warps over the most possible
            tensor_util            ratio?    GPM: share of time in which a tensor pipe was busy
            fp16_util              ratio?    GPM: share of time in which an FP16 pipe was busy
            fp32_util              ratio?    GPM: share of time in which an FP32 pipe was busy
            fp64_util              ratio?    GPM: share of time in which an FP64 pipe was busy
            dram_util              ratio?    GPM: share of peak DRAM bandwidth
            memory_used_bytes      bytes?    GPU memory in use; read once a second
            power_w                W?        power draw as nvidia-smi has it, mean of a second on most GPUs; read once a
                                             second
            power_instant_w        W?        power draw at t_ns
            energy_j               J?        energy drawn since the row before that has it; read every 10 s
            power_limit_w          W?        power limit in force; read once a second
            temperature_c          °C?       temperature of the GPU; read once a second
            sm_clock_hz            Hz?       SM clock
            memory_clock_hz        Hz?       memory clock; read once a second
            throttle_reasons       id?       NVML bit mask of reasons why clocks are held down
            pcie_rx_bytes_per_s    bytes/s?  PCIe traffic to the GPU: by GPM, else by its counters
            pcie_tx_bytes_per_s    bytes/s?  PCIe traffic from the GPU, likewise
            nvlink_rx_bytes_per_s  bytes/s?  NVLink traffic to the GPU, all links
            nvlink_tx_bytes_per_s  bytes/s?  NVLink traffic from the GPU, all links
            ecc_corrected_count    count?    ECC errors corrected since the row before that has a value; read once a
                                             second
            ecc_uncorrected_count  count?    ECC errors not corrected, likewise
            n_processes            count?    processes with a context on the GPU; read once a second
            """,
        ),
    ),
    Table(
        "gpu_processes",
        "process with a context on a GPU, or that used it, every second",
        _SAMPLED,
        columns(
            *OF_NODE,
            "gpu_uuid  text  UUID of the GPU",
            T,
            INTERVAL,
            """
            process            id      process id on its node
            is_server          claim   it is one of the server's processes
            uses_driver        claim?  a process of that id on this node has the NVIDIA driver open; null: it may not be
                                       looked at
            memory_used_bytes  bytes?  GPU memory of the process
            sm_util            ratio?  share of time in which a kernel of it ran, as nvidia-smi pmon has it
            memory_util        ratio?  share of time in which it read or wrote GPU memory
            """,
        ),
    ),
    Table(
        "core_samples",
        "second of a logical CPU",
        _SAMPLED,
        columns(
            *OF_NODE,
            "core  id  logical CPU",
            T,
            INTERVAL,
            """
            cpu_user      ratio  share of the interval in user mode
            cpu_system    ratio  share in the kernel, without interrupts
            cpu_irq       ratio  share in interrupts and softirqs: network work lands here
            cpu_steal     ratio  share taken by the hypervisor for other guests
            cpu_idle      ratio  share idle, waiting for a disk included
            frequency_hz  Hz?    clock of the core at t_ns
            """,
        ),
    ),
    Table(
        "cpu_samples",
        "second of a node's CPU: who had it, and who waited for it",
        _SAMPLED,
        columns(
            *OF_NODE,
            T,
            INTERVAL,
            """
            n_cores                    count   logical CPUs
            server_ns                  ns?     CPU time of the server's processes; null where none is known here
            clients_ns                 ns      CPU time of the load workers
            squall_ns                  ns      CPU time of the run's other parts: driver, agent, observer, nsys, the Ray
                                               it started
            others_ns                  ns      CPU time of all else, the kernel's own threads and interrupts included
            steal_ns                   ns      CPU time that the hypervisor calls stolen; idle as well where virtual
                                               cores wake slowly
            idle_ns                    ns      CPU time idle, waiting for a disk included
            server_wait_ns             ns?     time in which threads of the server could run and had no CPU, summed over
                                               them (schedstat)
            clients_wait_ns            ns?     the same of the load workers' threads
            server_runs                count?  times a thread of the server got a CPU (schedstat)
            clients_runs               count?  the same of the load workers' threads
            server_cores               count?  logical CPUs that the server may run on (its affinity)
            server_cores_busy_ns       ns?     CPU time that anybody had of these
            server_cores_free_ns       ns?     idle time of the one of these that was idle longest
            is_quota_shared            claim?  load workers use up the server's CPU quota too
            psi_cpu_some_ns            ns?     time in which some task of the node waited for a CPU (PSI)
            psi_cpu_full_ns            ns?     time in which all tasks of the node did; Linux has it as 0
            server_psi_some_ns         ns?     time in which some task of the server's cgroup waited (v2)
            server_psi_full_ns         ns?     time in which all tasks of the server's cgroup waited (v2)
            server_quota_cores         cores?  tightest CPU quota of the server: cpu.max
            server_periods             count?  periods of that quota with something to run
            server_throttled_periods   count?  those in which it was used up
            server_throttled_ns        ns?     time held back by it, summed over CPUs
            clients_quota_cores        cores?  tightest CPU quota of the load workers: cpu.max
            clients_periods            count?  periods of that quota with something to run
            clients_throttled_periods  count?  those in which it was used up
            clients_throttled_ns       ns?     time held back by it, summed over CPUs
            """,
        ),
    ),
    Table(
        "clock_probes",
        "exchange of four time stamps between driver and a node",
        PhaseAt("sent_ns"),
        columns(
            *OF_NODE,
            """
            sent_ns           instant  the driver sent the probe
            node_received_ns  ns       the node got it, on the node's own monotonic clock
            node_sent_ns      ns       the node answered, on the node's own monotonic clock
            received_ns       instant  the driver had the answer
            """,
        ),
    ),
)
