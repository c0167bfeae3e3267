"""The sha256 of the plan of every kind of load, here and in processes whose CPU seems to lack features.

    python -m tests.plan_digests            compares them with tests/plan_digests.json and says which differ
    python -m tests.plan_digests --sweep    also in a child process for each of `FEATURES`
    python -m tests.plan_digests --write    writes the file anew

Needs numpy, pydantic, PyYAML and pyarrow, no more: it is what to run on another kind of host.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

STORED = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parents[1]
_SECONDS = 300

_NO_AVX512 = "X86_V4 AVX512_ICL AVX512_SPR"
_NO_AVX2 = "X86_V3 " + _NO_AVX512
_OLD_NAMES = "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
_LIBM_WITHOUT = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ"
_LIBM_SSE = (
    f"{_LIBM_WITHOUT},-AVX2,-AVX2_Usable,-FMA,-FMA_Usable,-FMA4,-AVX,-AVX_Usable,-AVX_Fast_Unaligned_Load"
)

FEATURES: dict[str, dict[str, str]] = {
    "all": {},
    "numpy without AVX-512": {"NPY_DISABLE_CPU_FEATURES": _NO_AVX512},
    "numpy without AVX2": {"NPY_DISABLE_CPU_FEATURES": _NO_AVX2},
    "libm without FMA and AVX": {"GLIBC_TUNABLES": _LIBM_SSE},
    "libm without FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA_Usable,-FMA4"},
    "BLAS of Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "BLAS of Sandy Bridge": {"OPENBLAS_CORETYPE": "Sandybridge"},
    "BLAS of Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "BLAS of Skylake-X": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "Haswell": {
        "NPY_DISABLE_CPU_FEATURES": _NO_AVX512, "GLIBC_TUNABLES": _LIBM_WITHOUT, "OPENBLAS_CORETYPE": "Haswell",
    },
    "Nehalem": {
        "NPY_DISABLE_CPU_FEATURES": _NO_AVX2, "GLIBC_TUNABLES": _LIBM_SSE, "OPENBLAS_CORETYPE": "Nehalem",
    },
}  # fmt: skip
"""What is set in the environment of a child, by the name of the CPU that it then looks like."""
QUICK = ("Nehalem",)
"""It lacks the most."""


def digests() -> dict[str, str]:
    """sha256 of the plan of each case, by its name, as planned in this process."""
    from squall.scenarios.plan.drafting import plan_closed, plan_scenario
    from squall.scenarios.plan.route import route
    from tests.plan_catalogue import cases

    found = {}
    with tempfile.TemporaryDirectory(prefix="squall-plans-") as folder:
        for name, scenario in cases(Path(folder)).items():
            weights = [entry.weight for entry in scenario.servers or ()]
            how = (scenario.clients.routing, weights, scenario.seed)
            plan = plan_closed(scenario) if scenario.is_closed else plan_scenario(scenario)
            found[name] = route(plan, *how).sha256()
    return found


def digests_with(features: str) -> dict[str, str]:
    """`digests` of a child process with those of `FEATURES`. Raises AssertionError where it fails."""
    return json.loads(_child("--json", FEATURES[features]))  # type: ignore[no-any-return]


def numpy_features() -> list[str]:
    """The dispatched features of the CPU that numpy uses in this process."""
    import numpy as np

    core = np._core if hasattr(np, "_core") else np.core
    umath = core._multiarray_umath
    return [name for name in umath.__cpu_dispatch__ if umath.__cpu_features__[name]]


def features_with(features: str) -> list[str]:
    """`numpy_features` of a child process with those of `FEATURES`."""
    return json.loads(_child("--features", FEATURES[features]))  # type: ignore[no-any-return]


def library_digest() -> str:
    """sha256 of logarithms, exponentials and sines by numpy and by the C library, which are those of the CPU."""
    import numpy as np

    values = np.random.default_rng(1).random(100_000) * 30
    found = [np.exp(values), np.log(values), np.sin(values)]
    found += [np.array([function(x) for x in values.tolist()]) for function in (math.exp, math.log, math.sin)]
    return hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest()


def library_digest_with(features: str) -> str:
    """`library_digest` of a child process with those of `FEATURES`."""
    return str(json.loads(_child("--library", FEATURES[features])))


def stored() -> dict[str, str]:
    """What every machine must plan."""
    return json.loads(STORED.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def differing(found: dict[str, str]) -> list[str]:
    """Names whose digest is not the stored one, or that are only on one side."""
    right = stored()
    return sorted(name for name in right.keys() | found.keys() if right.get(name) != found.get(name))


def _child(option: str, environment: dict[str, str]) -> str:
    """What this module prints in a child with `environment` added; names that numpy here does not know are dropped."""
    known = {name: value for name, value in environment.items() if name != "NPY_DISABLE_CPU_FEATURES"}
    names = (
        os.environ.get("NPY_DISABLE_CPU_FEATURES"),
        _dispatched(environment.get("NPY_DISABLE_CPU_FEATURES")),
    )
    if disabled := " ".join(filter(None, names)):  # what this process lacks the child lacks too
        known["NPY_DISABLE_CPU_FEATURES"] = disabled
    done = subprocess.run(
        ["timeout", str(_SECONDS), sys.executable, "-m", "tests.plan_digests", option],
        cwd=ROOT, env={**os.environ, **known}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{option} with {environment}: {done.stderr}")
    return done.stdout


def _dispatched(names: str | None) -> str:
    """Those of the names (numpy 2.4's, and what they mean in older ones) that this numpy picks code by."""
    if names is None:
        return ""
    wanted = set(names.split()) | set(_OLD_NAMES.split() if "X86_V3" in names else _OLD_NAMES.split()[2:])
    return " ".join(name for name in numpy_features() if name in wanted)


def main(arguments: list[str]) -> int:
    """0 if all digests are the stored ones."""
    match arguments:
        case ["--json"]:
            print(json.dumps(digests()))
            return 0
        case ["--features"]:
            print(json.dumps(numpy_features()))
            return 0
        case ["--library"]:
            print(json.dumps(library_digest()))
            return 0
        case ["--write"]:
            STORED.write_text(json.dumps(digests(), indent=1) + "\n", encoding="utf-8")
            return 0
        case _:
            return _report(list(FEATURES) if "--sweep" in arguments else ["all"])


def _report(names: list[str]) -> int:
    import numpy as np

    print(f"numpy {np.__version__}, Python {platform.python_version()}, {' '.join(platform.libc_ver())}")
    n_differing = 0
    for name in names:
        found = digests_with(name)
        wrong = differing(found)
        n_differing += len(wrong)
        uses = " ".join(features_with(name)) or "none"
        print(f"{name}: {len(found) - len(wrong)} of {len(found)} plans as stored; numpy dispatches {uses}")
        print("".join(f"  {case}: {found.get(case)}\n" for case in wrong), end="")
    return 1 if n_differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
