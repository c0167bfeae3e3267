"""Checks of what squall uses on a node: GPU driver and NVML, nsys, NVTX, containers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from squall.actors.doctor.checkup import Finding, Host
from squall.actors.nsys.tools import NsysTools
from squall.scenarios.errors import ClusterError
from squall.scenarios.records import Frozen

GPU_MEND = "run the server on a node with an NVIDIA driver"
NSYS_MEND = (
    "apt-get install nsight-systems (Debian: `Components: main contrib non-free` in "
    "/etc/apt/sources.list.d/debian.sources, apt-get update), or SQUALL_NSYS=PATH of one"
)
_NVTX_MEND = "pip install nvidia-nvtx"


class GpuAnswers(Frozen):
    """`missing_reason`: why NVML gives nothing, None if it does.

    `facts`: as `squall.actors.sampling.gpu.source.GpuSource.facts`.
    """

    missing_reason: Callable[[], str | None]
    facts: Callable[[], Mapping[str, Any]]


class NsysAnswers(Frozen):
    """`find`: `squall.actors.nsys.tools.find_nsys` with the cache. `prove`: numbers of OS-runtime calls and of NVTX
    ranges in the export of a recording of 0.6 s; raises ClusterError where a step fails."""

    find: Callable[[], NsysTools | None]
    prove: Callable[[NsysTools], tuple[int, int]]


def gpu(host: Host, gpus: GpuAnswers) -> list[Finding]:
    """Driver and NVML, then MIG and GPM of every GPU."""
    reason = gpus.missing_reason()
    driver = host.read("/proc/driver/nvidia/version")
    if reason is not None:
        if driver is None:
            what = f"no NVIDIA driver ({reason}): no GPU samples, and models of the zoo on the CPU"
            return [Finding("GPU", "limited", what, GPU_MEND)]
        what = f"the driver is loaded, but NVML does not work: {reason}"
        mend = "nvidia-smi names the cause; often a driver that was upgraded under a running kernel: reboot"
        return [Finding("GPU", "limited", what, f"{mend} (container: docker run --gpus=all)")]
    facts = gpus.facts()
    found = []
    for one in facts["gpus"]:
        parts = one["parts"]
        mig = f", MIG with {len(parts) - 1} instances" if one["is_mig"] else ""
        if one["is_mig"] and len(parts) < 2:
            what = f"{one['name']}: MIG is on and there is no instance"
            found.append(Finding("GPU", "limited", what, "nvidia-smi mig -cgi PROFILE -C"))
            continue
        found.append(Finding("GPU", "ok", f"{one['name']}, driver {facts['driver']}{mig}"))
        found.append(_gpm(one["name"], parts[0]))
    return found or [Finding("GPU", "limited", "the driver sees no GPU that can be read", GPU_MEND)]


def _gpm(name: str, part: Mapping[str, Any]) -> Finding:
    if part.get("has_gpm"):
        return Finding("GPM", "ok", f"{name}: SM, tensor and DRAM activity")
    reason = part.get("gpm_reason") or "the driver does not offer it"
    what = f"{name}: {reason}; SM, tensor and DRAM activity stay null"
    return Finding("GPM", "limited", what, "use a GPU of the Hopper generation or later, driver 520 or later")


def nsys(host: Host, tools: NsysAnswers) -> list[Finding]:
    """Where it was found, what is wrong with it, and whether a recording really becomes an export, NVTX included."""
    try:
        found = tools.find()
    except ClusterError as error:
        return [Finding("nsys", "limited", str(error), "unset SQUALL_NSYS, or name the right file")]
    if found is None:
        return [Finding("nsys", "limited", "there is none: runs are not profiled", NSYS_MEND)]
    where = f"{found.version_text}, found by {found.found}"
    where += ", repaired in the cache" if found.is_repaired else ""
    findings = [Finding("nsys", "limited", one.what, one.mend) for one in found.problems]
    try:
        n_osrt, n_nvtx = tools.prove(found)
    except ClusterError as error:
        mend = findings[0].mend if findings else NSYS_MEND
        what = f"{where}: a recording of 0.6 s failed: {' '.join(str(error).split())}"
        return [*findings, Finding("nsys", "limited", what, mend)]
    if not n_osrt:
        what = f"{where}: a recording of 0.6 s holds no OS-runtime call"
        return [*findings, Finding("nsys", "limited", what, NSYS_MEND)]
    findings.append(Finding("nsys", "ok", f"{where}: 0.6 s recorded, {n_osrt} OS-runtime calls exported"))
    return [*findings, _nvtx(host, n_nvtx)]


def _nvtx(host: Host, n_ranges: int) -> Finding:
    """Whether ranges, by which kernels are tied to batches, come into a report; the library is that of a wheel."""
    version = host.package("nvidia-nvtx")
    library = f"nvidia-nvtx {version}" if version else "no package nvidia-nvtx"
    if n_ranges:
        return Finding("NVTX", "ok", f"{library}: {n_ranges} ranges recorded")
    what = (
        f"{library}: no range came into the recording: kernels are not tied to batches, clocks by fewer marks"
    )
    return Finding("NVTX", "limited", what, _NVTX_MEND)


def containers(host: Host) -> Finding:
    """Whether `server.image` can be used."""
    tried = []
    for name in ("docker", "podman"):
        answer = host.ask(name, "info", "--format", "{{.ServerVersion}}" if name == "docker" else "json")
        if answer is None:
            continue
        if answer.code == 0:
            return Finding("containers", "ok", f"{name}{f' {answer.text}' if name == 'docker' else ''}")
        last = answer.text.splitlines()[-1] if answer.text else "no answer"
        tried.append((name, "it did not answer in time" if answer.code is None else last))
    if not tried:
        what = "neither docker nor podman: server.image cannot be used"
        return Finding("containers", "limited", what, "apt-get install podman")
    name, why = tried[0]
    mend = "systemctl start docker; usermod -aG docker USER" if name == "docker" else "podman info"
    return Finding("containers", "limited", f"{name} does not work: {why}", mend)
