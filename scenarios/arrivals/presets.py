"""Rate curves fitted to public traces of real services.

Each curve is the arrivals per minute of about an hour, divided by their mean and rounded to 3 digits;
they are fitted parameters, and no trace is part of squall. The residuals were fitted on the rescaled
clock of 60 s bins over the whole trace: c2 and index of dispersion of Λ(t_i). MMPP, Hawkes, fractional noise and
b-model were fitted to the dispersion curve of the whole trace (`python -m tests.bench.traces --presets`).
A bin of n arrivals has a standard error of 1/√n: 7 % of the bin at 200 arrivals, 14 % at 50.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

PresetName = Literal["azure-conversation", "mooncake-conversation", "nasa-web", "nasa-flash-crowd"]
ClientPresetName = Literal[
    "servegen-deepseek-r1", "servegen-large", "servegen-mid", "servegen-small", "servegen-image"
]


def _service(
    curve: str,
    residual: Mapping[str, Any],
    mmpp: tuple[float, float, str],
    hawkes: tuple[float, str],
    fgn: tuple[float, float],
    bias: float,
) -> Mapping[str, Mapping[str, Any]]:
    """The curve has a value a minute; of mmpp peak, base and tau, of hawkes n and beta, of fgn sigma and hurst."""
    return {
        "envelope": {"bin": "60s", "residual": residual, "curve": [float(word) for word in curve.split()]},
        "mmpp": dict(zip(("peak", "base", "tau"), mmpp, strict=True)),
        "hawkes": dict(zip(("n", "beta"), hawkes, strict=True)),
        "fgn": dict(zip(("sigma", "hurst"), fgn, strict=True)),
        "b-model": {"bias": bias},
    }


def _clients(clients: int, zipf: float, cv: float, cv_sigma: float) -> dict[str, dict[str, float]]:
    """Zipf exponent by maximum likelihood of the clients' shares; cv the request-weighted median over 600-s windows,
    cv_sigma the standard deviation of its logarithm over those windows, cv cut to 0.1 … √10."""
    return {"clients": {"clients": clients, "zipf": zipf, "cv": cv, "cv_sigma": cv_sigma}}


PRESETS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    # LLM conversations on Azure: 58 minutes of 2023-11-16, peak/mean 1.52.
    # Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024), CC-BY 4.0.
    "azure-conversation": _service(
        """
        0.573 0.795 0.987 1.06 0.921 0.819 0.804 0.783 0.966 0.894 0.903 0.906 1.04 0.978 0.849
        0.837 0.84 0.924 1.03 1.05 1.05 1.03 1.22 1.19 1.16 1.19 1.3 1.44 1.43 1.36 1.34 1.52 1.31
        1.24 1.27 1.25 1.4 0.933 0.987 0.948 0.999 1.07 0.957 1.08 1 1.13 0.99 0.747 0.663 0.747
        0.795 0.84 0.768 0.762 0.726 0.78 0.738 0.675
    """,
        {"kind": "hawkes", "n": 0.07, "beta": 0.54},
        (1.128, 0.533, "114s"),
        (0.885, "0.0765/s"),
        (0.517, 0.98),
        0.540,
    ),
    # LLM conversations on Mooncake (Kimi): 59 minutes, peak/mean 1.21.
    # Mooncake conversation trace (Qin et al., Mooncake, FAST 2025), Apache-2.0.
    "mooncake-conversation": _service(
        """
        0.794 0.868 1.06 0.858 0.917 0.804 0.706 0.897 0.794 0.878 1.07 0.912 0.912 1 0.902 0.794
        0.927 0.829 0.932 1.08 0.996 1.01 1.07 1.02 0.843 1.18 0.878 1.03 1.06 1.02 1.15 0.966 0.951
        0.922 1.1 1.02 1.21 0.863 1.12 1.15 1.02 1.15 1.01 1.1 1.07 1.05 0.961 1.13 1.11 1.15 1.07
        1.21 1.09 1.06 0.981 1.17 1.07 1.1 0.996
    """,
        {"kind": "poisson"},
        (1.086, 0.812, "35600ms"),
        (0.549, "0.0622/s"),
        (0.204, 0.956),
        0.520,
    ),
    # Kennedy Space Center web server: 1995-08-01 10:00 to 11:00 EDT, smoothed, peak/mean 1.88.
    # NASA-HTTP log (Internet Traffic Archive; Arlitt, Williamson 1996), may be freely redistributed.
    # Bins of this hour hold as few as 28 arrivals; smoothed by (previous + 2 · bin + next) / 4, cyclically.
    "nasa-web": _service(
        """
        0.891 0.95 0.998 0.942 0.832 0.784 0.883 1.07 1.04 0.768 0.645 0.721 0.752 0.641 0.558 0.641
        0.681 0.641 0.665 0.737 1.01 1.26 1.09 0.923 1.01 1.06 1.03 0.97 1.03 1.09 1.03 1.02 1.02
        1.12 1.39 1.39 1.02 0.796 0.847 1 1.11 1.09 1.06 1.43 1.88 1.54 0.946 0.899 1.17 1.31 1.17
        0.99 1.05 1.26 1.32 1.17 0.986 0.891 0.907 0.911
    """,
        {"kind": "hawkes", "n": 0.29, "beta": 2.2},
        (1.707, 0.148, "141s"),
        (0.907, "0.0759/s"),
        (1.105, 0.963),
        0.600,
    ),
    # Kennedy Space Center web server at a shuttle launch: 1995-07-13 09:00-10:00 EDT, peak/mean 1.63.
    # NASA-HTTP log (Internet Traffic Archive; Arlitt, Williamson 1996), may be freely redistributed.
    # Not smoothed: its dips, down to 38 arrivals in one bin, and the surge after each are the feature.
    "nasa-flash-crowd": _service(
        """
        1.34 1.07 0.961 1.21 1.19 1.21 1.09 1.11 1.33 1.02 1.26 1.03 0.486 1.35 1.27 1.06 1.02 1.13
        0.884 0.888 0.334 0.446 0.153 0.908 1.01 0.997 0.844 0.587 1.02 0.836 0.852 0.414 0.868 1.06
        1.37 1.16 1.25 1.03 1.17 1.19 1.21 0.997 0.872 0.326 0.458 0.756 0.366 1.33 1.04 1.63 1.24
        1.32 1.21 1.14 1.13 1.17 1.03 1.21 1.09 1.1
    """,
        {"kind": "hawkes", "n": 0.25, "beta": 0.52},
        (1.548, 0.0163, "607s"),
        (0.969, "0.0526/s"),
        (1.28, 0.98),
        0.594,
    ),
    # clients of a model on Alibaba Cloud (ServeGen, arXiv 2505.09999), first day, Apache-2.0
    "servegen-deepseek-r1": _clients(73, 1.18, 1.02, 0.55),  # deepseek-r1
    "servegen-large": _clients(101, 1.39, 1.09, 0.46),  # m-large
    "servegen-mid": _clients(87, 1.04, 1.96, 0.49),  # m-mid
    "servegen-small": _clients(29, 1.42, 1.13, 0.38),  # m-small
    "servegen-image": _clients(35, 1.01, 1.01, 0.60),  # mm-image
}
"""The keys that each service stands for, by kind.

The envelope reproduces the service; the others are the best of their kind, for comparison and for studies of one
parameter. Their times are those of the service, whatever the rate.
"""
