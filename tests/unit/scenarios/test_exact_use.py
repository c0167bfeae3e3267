"""What plans a schedule calls no function whose last digit is that of the CPU: read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[3] / "scenarios"
NOT_PLANNING = (
    "series/burstiness.py", "series/correlation.py", "series/logging_tick.py",  # figures about a schedule
)  # fmt: skip
EXEMPT = {("arrivals/users.py", "mean_excess_ns")}
"""Functions of a module that are about a closed loop after it ran."""

MATH = {
    "ceil",
    "factorial",
    "floor",
    "frexp",
    "fsum",
    "gcd",
    "inf",
    "isfinite",
    "ldexp",
    "nan",
    "prod",
    "sqrt",
}
"""What may be used of `math`: exact, correctly rounded, or rounded by IEEE 754 itself."""
_NUMPY = """
    exp exp2 expm1 log log2 log10 log1p logaddexp power float_power sin cos tan sinh cosh tanh arcsin arccos arctan
    arctan2 arcsinh arccosh arctanh hypot cbrt sinc sum nansum mean average std var prod dot vdot inner matmul einsum
    tensordot convolve correlate trapezoid interp polyfit polyval linalg fft logspace geomspace percentile quantile
    complex64 complex128
"""
NUMPY = frozenset(_NUMPY.split())
_METHODS = """
    exponential standard_exponential normal standard_normal standard_gamma gamma poisson weibull pareto lognormal
    choice beta binomial negative_binomial geometric chisquare dirichlet gumbel hypergeometric laplace logistic
    logseries multinomial multivariate_normal noncentral_chisquare power rayleigh standard_cauchy standard_t triangular
    uniform vonmises wald zipf mean std var prod dot
"""
METHODS = frozenset(_METHODS.split())
"""Of a generator, and of arrays."""
OURS = {"arrays", "draws", "scalars"}


def faults(source: str, name: str) -> Iterator[str]:
    """The lines of a module that use what is not the same everywhere."""
    tree = ast.parse(source)
    exempt = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and (name, node.name) in EXEMPT
    ]
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if not any(part.lineno <= line <= (part.end_lineno or 0) for part in exempt) and is_fault(node, name):
            yield f"{name}:{line}: {ast.unparse(node)}"


def is_fault(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module in ("math", "numpy", "statistics", "random")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return owner_of(node.func) not in OURS | {"math"} and node.func.attr in METHODS
    if isinstance(node, ast.Attribute):
        owner = owner_of(node)
        return (owner == "math" and node.attr not in MATH) or (owner == "np" and node.attr in NUMPY)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return not (name in WHOLE_POWERS or (is_number(node.left) and is_number(node.right)))
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)


WHOLE_POWERS = (
    "exact/arrays.py",
    "exact/scalars.py",
    "units.py",
    "traces/rows.py",
)
"""Modules whose powers are of whole or decimal numbers, or only tell a likely unit in the words of an error."""


def owner_of(node: ast.Attribute) -> str | None:
    return node.value.id if isinstance(node.value, ast.Name) else None


def is_number(node: ast.expr) -> bool:
    """A literal number, with or without a sign: its power is a power of 2 or 10, which no library gets wrong."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


MODULES = [
    path
    for path in sorted(SCENARIOS.rglob("*.py"))
    if path.relative_to(SCENARIOS).as_posix() not in NOT_PLANNING
]


def test_planning_uses_no_function_of_the_cpu() -> None:
    named = [(path, path.relative_to(SCENARIOS).as_posix()) for path in MODULES]
    found = [(name, one) for path, name in named for one in faults(path.read_text(encoding="utf-8"), name)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "np.exp(x)", "np.interp(t, a, b)", "np.fft.rfft(x)", "np.linalg.lstsq(a, b)", "math.log(x)", "math.gamma(x)",
        "cv**2", "x ** -zipf", "a @ b", "rng.standard_exponential(3)", "self.counts.poisson(m)", "x.mean()",
        "from math import exp",
    ],
)  # fmt: skip
def test_what_is_not_the_same_everywhere_is_seen(line: str) -> None:
    assert len(list(faults(line, "arrivals/gaps.py"))) >= 1


def test_what_is_exact_is_let_by() -> None:
    for line in (
        "math.sqrt(x)",
        "arrays.exp(x)",
        "draws.poisson(rng, 1.0, 3)",
        "2**20",
        "2.0**-54",
        "rng.random(3)",
        "x * x",
    ):
        assert list(faults(line, "arrivals/gaps.py")) == []
