"""The C lane under the sanitizers of addresses, leaks and undefined behaviour, with the tests that lead it everywhere.

    python -m tests.sanitize [PYTEST ARGUMENTS]

builds it into build/asan and runs the lane's and the fuzz tests with it; ends with 1 where a test fails or a
sanitizer reports. A leak counts where a frame of the lane is on the stack that made it: Python, numpy and Arrow keep
much until the process ends. Without compiler or sanitizer it says so in one line and ends with 0.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "actors" / "native"
FOLDER = ROOT / "build" / "asan"
LIBRARY = FOLDER / "_lane.abi3.so"
TESTS = (
    "tests/unit/actors/load/test_lane_refusals.py", "tests/unit/actors/load/test_lane_rests.py",
    "tests/unit/actors/load/test_lane_writes.py", "tests/unit/actors/load/test_lane_floods.py",
    "tests/golden/test_lane.py", "tests/golden/test_closed_loop.py",
    "tests/golden/test_fuzz.py", "tests/golden/test_several_servers.py", "tests/unit/actors/load/test_choice.py",
    "tests/unit/actors/messages/test_packed.py", "tests/golden/test_long_requests.py",
    "tests/unit/actors/load/test_lane_turns.py", "tests/unit/actors/load/test_pins.py",
    "tests/unit/actors/load/test_turns.py", "tests/golden/test_sequence_turns.py",
)  # fmt: skip
FLAGS = (
    "-shared", "-fPIC", "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type",
    "-D_GNU_SOURCE=1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
)  # fmt: skip
OPTIONS = {
    "PYTHONMALLOC": "malloc",  # else objects stand in arenas, and a byte beyond one is no fault
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "LSAN_OPTIONS": "exitcode=0",  # which leaks count is told from the reports
    "SQUALL_SANITIZED_LANE": str(LIBRARY),
}


@pytest.hookimpl(tryfirst=True)  # a conftest may import the lane
def pytest_load_initial_conftests() -> None:
    """As a plugin of pytest: this process takes the lane that was built here."""
    import squall.actors

    name = "squall.actors._lane"
    spec = importlib.util.spec_from_file_location(name, os.environ["SQUALL_SANITIZED_LANE"])
    assert spec is not None
    assert spec.loader is not None
    assert name not in sys.modules, "the plain lane was there first"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[name] = module
    squall.actors._lane = module  # type: ignore[attr-defined,unused-ignore]


def compiler() -> str:
    """The compiler that made this Python, or any; empty where there is none."""
    known = (
        os.environ.get("CC", ""),
        (sysconfig.get_config_var("CC") or "").split(" ")[0],
        "cc",
        "gcc",
        "clang",
    )
    return next((found for name in known if name and (found := shutil.which(name))), "")


def runtime(cc: str) -> str:
    """The sanitizer's library, which must be there before Python's own; empty where it is not installed."""
    for name in ("libasan.so", "libclang_rt.asan-x86_64.so"):
        path = subprocess.run([cc, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
        if path.stdout.startswith("/"):
            return str(Path(path.stdout.strip()).resolve())
    return ""


def built(cc: str) -> str:
    """Why the lane cannot be built with sanitizers; empty where it was."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    include = sysconfig.get_paths()["include"]
    sources = sorted(map(str, SOURCES.glob("*.c")))
    done = subprocess.run(
        [cc, *FLAGS, f"-I{include}", *sources, "-o", str(LIBRARY)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


def faults(report: str) -> list[str]:
    """The parts of a sanitizer's report that tell of the lane: any fault, and leaks with a frame of it."""
    parts = report.split("\n\n")
    return [
        part for part in parts
        if "ERROR: AddressSanitizer" in part or "runtime error:" in part
        or ("leak of" in part and ("actors/native/" in part or str(LIBRARY) in part))
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    cc = compiler()
    library = runtime(cc) if cc else ""
    if not library:
        print("sanitizers: not run, no C compiler with libasan is here (Debian: gcc, python3-dev)")
        return 0
    if why := built(cc):
        print(f"sanitizers: the lane cannot be built with them\n{why}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        logged = f"log_path={folder}/report"
        environment = os.environ | OPTIONS | {
            "LD_PRELOAD": library, "ASAN_OPTIONS": f"detect_leaks=1:abort_on_error=1:{logged}",
        }  # fmt: skip
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.sanitize",
            *(arguments or [*TESTS, "-m", "not slow"]),
        ]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        reports = [path.read_text(errors="replace") for path in sorted(Path(folder).iterdir())]
    told = [fault for report in reports for fault in faults(report)]
    print("\n\n".join(told))
    is_blind = any("has encountered a fatal error" in report for report in reports)
    leaks = "leaks cannot be looked for here, " if is_blind else ""
    print(f"sanitizers: {leaks}{len(told)} faults of the lane, pytest ended with {code}")
    return 1 if code or told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
