"""The command `squall`: parse, call, print."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cluster.interrupts import Interrupts
from cluster.ray_end import leave
from cluster.trace_cli import trace_app
from scenarios.errors import ScenarioError, SquallError
from scenarios.loader import load_scenario

EXIT_ERROR = 1
EXIT_INVALID = 3
EXIT_UNDECIDED = 4
_DEMO_LOAD_RATIO = 0.5
_MANY = 100_000
_DEFAULT_PAIRS = 3
_TYPER_INTERRUPTED = 130
"""What Typer makes of KeyboardInterrupt."""

app = typer.Typer(
    help="Replays bursty traffic against Triton servers, profiles them, joins every latency with its batch.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
)  # fmt: skip
models_app = typer.Typer(help="The model zoo.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(trace_app, name="trace")

OutOption = Annotated[Path, typer.Option("--out", help="Folder that takes the run directory.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as JSON on stdout.")]
RayOption = Annotated[
    str | None, typer.Option("--ray", help="Address of a Ray cluster to join; none: a local one.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key: phases.burst.arrivals.rate=300/s. Repeatable."
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of the plan and the payloads.")]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server", "-u", "--url", help="Use the Triton at this URL: http://host:port or https://host:port."
    ),
]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")]


def _say_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"squall {version('squall')}")
        raise typer.Exit


@app.callback()
def _top(
    is_version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    del is_version


@app.command()
def demo(
    out: OutOption = Path("runs"),
    seed: SeedOption = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """The bundled scenario on this machine alone: local Ray, embedded Triton, bursty trace. No GPU needed."""
    with resources.as_file(resources.files("scenarios").joinpath("demo.yaml")) as path:
        _run(path, [*_demo_rate(path), *_overrides(overrides, seed, None)], out, None, as_json)


@app.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="A scenario file.", metavar="SCENARIO.yaml")],
    out: OutOption = Path("runs"),
    overrides: SetOption = None,
    seed: SeedOption = None,
    server: ServerOption = None,
    ray: RayOption = None,
    measure_overhead: Annotated[
        bool,
        typer.Option(
            "--measure-overhead", help="Runs with and without profilers in turn: what profiling costs."
        ),
    ] = False,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, help="Pairs of runs of --measure-overhead.  [default: 3]")
    ] = None,
    keep_raw_report: Annotated[
        bool,
        typer.Option(
            "--keep-raw-report",
            help="Leave nsys's own report, which holds environments, on its node; say where.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """One run of a scenario, or pairs of them with --measure-overhead."""
    changes = _overrides(overrides, seed, server)
    if keep_raw_report:
        changes.append("profile.keep_raw_report=true")
    if measure_overhead:
        _measure_overhead(scenario, changes, out, ray, repeat or _DEFAULT_PAIRS, as_json)
    elif repeat is not None:
        raise ScenarioError("--repeat: counts the pairs of --measure-overhead, add that")
    else:
        _run(scenario, changes, out, ray, as_json)


@app.command()
def doctor(ray: RayOption = None, as_json: JsonOption = False) -> None:
    """What each node has and lacks for a run, and the command that mends it."""
    from cluster.doctor import diagnose

    with _interruptible() as interrupts:
        result = diagnose(ray, interrupts)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        from cluster.doctor_screen import render
        from cluster.printed import print_screen

        print_screen(lambda width: render(result, width))
    if not result["can_run"]:
        raise typer.Exit(EXIT_ERROR)


@app.command()
def analyze(
    run_dir: RunArgument,
    memory: Annotated[
        str,
        typer.Option(
            "--memory", help="What it may hold in memory, such as 4GiB; more spills to the run directory."
        ),
    ] = "2GiB",
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS|local",
            help="Spread a large run over the Ray there, each task with that memory; all nodes must see the run "
            "directory under one path. local: over this machine's CPUs.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Join, windows, summary and report again, from the run directory alone."""
    from cluster.analyze import analyze_run

    with _interruptible() as interrupts:
        summary = analyze_run(run_dir, memory, ray, interrupts)
    _print(summary, run_dir, as_json)


@app.command()
def resume(run_dir: RunArgument, as_json: JsonOption = False) -> None:
    """Gathers what a broken run left on this machine's disk, and seals the run with it. Needs no Ray."""
    from cluster.resume import resume_run

    with _interruptible() as interrupts:
        result = resume_run(run_dir, interrupts)
    if result.summary:
        _print(result.summary, result.run_dir, as_json)
    if result.status != "VALID":
        raise typer.Exit(EXIT_INVALID if result.status == "INVALID" else EXIT_ERROR)


@app.command()
def report(run_dir: RunArgument) -> None:
    """The HTML report again, from the run directory alone."""
    from analysis.report import write_report
    from analysis.store import RunStore

    typer.echo(write_report(RunStore.open(run_dir)))


@app.command()
def selftest(
    protocol: Annotated[
        str | None, typer.Option("--protocol", "-i", help="http or grpc; none: both.")
    ] = None,
    duration: Annotated[str, typer.Option("--duration", help="Length of a step of the sweep.")] = "1s",
    check_duration: Annotated[
        str | None,
        typer.Option("--check-duration", help="Length of a known answer.  [default: 4s, or 30s with --full]"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Also sweep this many at once. [default: by the cores]"),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Queues at loads 0.5, 0.8 and 0.95, not only 0.8.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of arrivals and service times.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Proves the client of this host against a null server: highest rate, send lag, CPU, known answers."""
    from analysis.proof import UNMEASURABLE
    from cluster.progress import Screen
    from cluster.selftest import options_of
    from cluster.selftest import selftest as prove

    options = options_of(protocol, duration, check_duration, workers, full, seed)
    with _interruptible() as interrupts, interrupts.allowed():
        result = prove(options, Screen().step)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        from cluster.printed import print_screen
        from cluster.selftest_screen import render

        print_screen(lambda _: render(result))
    if not result["passed"]:
        raise typer.Exit(EXIT_UNDECIDED if result["status"] == UNMEASURABLE else EXIT_INVALID)


@models_app.command("list")
def models_list() -> None:
    """The heads of the zoo with their sizes."""
    from models.spec import HEADS

    for head in HEADS.values():
        sizes = ", ".join(f"{key}={value}" for key, value in head.defaults.items())
        typer.echo(f"{head.name}\n  {head.about}\n  {sizes}")


@models_app.command("build")
def models_build(
    name: Annotated[str, typer.Argument(help="A head of `squall models list`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder that becomes the model repository.")] = Path(
        "models-repository"
    ),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A size of the head: width=64. Repeatable."),
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option("-b", "--max-batch-size", min=1, help="Largest batch in rows.")
    ] = 32,
    framework: Annotated[
        str, typer.Option("--framework", help="What computes it: numpy or torch.")
    ] = "numpy",
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or gpu; else the CPU for numpy, a GPU for torch.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, or fp16 with torch.")] = "fp32",
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="torch on a GPU: one CUDA graph per batch size.")
    ] = False,
) -> None:
    """Writes a head into a Triton model repository."""
    from models.repository import ComputeConfig, ServingConfig, device_of, write_repository

    sizes = {}
    for item in settings or []:
        key, _, value = item.partition("=")
        if not value.isdigit():
            raise ScenarioError(f"--set {item}: write KEY=NUMBER, such as width=64")
        sizes[key] = int(value)
    compute = ComputeConfig(framework, device_of(framework, device), precision, cuda_graphs)
    serving = ServingConfig(max_batch_size=max_batch_size, compute=compute)
    spec = write_repository(out, name, "1", sizes, serving, None)
    typer.echo(
        f"{out / spec.name}: {spec.inputs[0].dims[0]} floats a row, at most {spec.max_batch_size} rows "
        "a batch"
    )


def _demo_rate(path: Path) -> list[str]:
    """The rate of the demo's burst, scaled to this machine: 50 % of what one core serves on average."""
    import numpy as np

    from models.pace import measure_pace
    from scenarios.mix import draw_rows

    scenario = load_scenario(path)
    model = scenario.model
    rows_per_s = measure_pace(model.name, model.settings, model.max_batch_size)
    mean_rows = draw_rows(scenario.clients.rows, np.random.default_rng(0), _MANY).mean()
    rate_hz = float(f"{_DEMO_LOAD_RATIO * rows_per_s / mean_rows:.2g}")
    sys.stderr.write(
        f"squall one core here serves {rows_per_s:.0f} rows/s of {model.name} at this size: "
        f"the burst offers {rate_hz:g} requests/s on average\n"
    )
    return [f"phases.burst.arrivals.rate={rate_hz:g}/s"]


def _overrides(overrides: list[str] | None, seed: int | None, server: str | None) -> list[str]:
    """All that the command line changes in the scenario, as `--set` texts."""
    found = list(overrides or [])
    if seed is not None:
        found.append(f"seed={seed}")
    if server is not None:
        found.append(f"server.url={server}")
    return found


def _run(path: Path, overrides: list[str], out: Path, ray: str | None, as_json: bool) -> None:
    from cluster.run import run_scenario

    scenario = load_scenario(path, overrides)
    with _interruptible() as interrupts:
        result = run_scenario(scenario, out, ray, interrupts)
    _print(result.summary, result.run_dir, as_json)
    if result.status != "VALID":
        raise typer.Exit(EXIT_INVALID)


def _measure_overhead(
    path: Path, overrides: list[str], out: Path, ray: str | None, n_pairs: int, as_json: bool
) -> None:
    from cluster.overhead import measure_overhead

    scenario = load_scenario(path, overrides)
    with _interruptible() as interrupts:
        result = measure_overhead(scenario, out, ray, interrupts, n_pairs)
    if as_json:
        typer.echo(json.dumps(result.evaluation, indent=2))
    else:
        from analysis.overhead_screen import render
        from cluster.printed import print_screen

        print_screen(lambda _: render(result.evaluation, str(result.folder)))
    if not result.is_valid:
        raise typer.Exit(EXIT_INVALID)


@contextlib.contextmanager
def _interruptible() -> Iterator[Interrupts]:
    """Ends the command with one line that names the signal, where one broke in."""
    interrupts = Interrupts()
    try:
        with interrupts:
            yield interrupts
    except KeyboardInterrupt:
        _fail(f"interrupted by {interrupts.name}")


def _print(summary: dict[str, object], run_dir: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    from analysis.screen import render
    from cluster.printed import print_screen

    print_screen(lambda width: render(summary, str(run_dir), width))


def main() -> None:
    """Entry point: every error and Ctrl-C is one line on stderr and an exit code."""
    try:
        _main()
    except SystemExit as done:
        if isinstance(done.code, int) or done.code is None:
            leave(done.code or 0)
        raise


def _main() -> None:
    try:
        app()
    except SquallError as error:
        _fail(str(error), error.exit_code)
    except SystemExit as done:
        if done.code == _TYPER_INTERRUPTED:
            _fail("interrupted")
        raise
    except KeyboardInterrupt:
        _fail("interrupted")
    except Exception as error:  # the process's edge: a fault of ours
        if is_interruption(error):
            _fail("interrupted")
        _fail(f"internal error: {type(error).__name__}: {error}; traceback: {_keep_traceback()}")


def is_interruption(error: BaseException) -> bool:
    """Whether Ctrl-C broke into a library's import, which tells it as a failure of its own."""
    below = [one for one in (error.__cause__, error.__context__) if one is not None]
    return isinstance(error, KeyboardInterrupt) or any(is_interruption(one) for one in below)


def _fail(text: str, exit_code: int = EXIT_ERROR) -> NoReturn:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"squall: {' '.join(text.split())}\n")
    sys.exit(exit_code)


def _keep_traceback() -> str:
    """Path of a file with the traceback of the current exception; its end where no file can be made."""
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile("w", prefix="squall-error-", suffix=".txt", delete=False) as file:
            file.write(traceback.format_exc())
    except OSError:
        return traceback.format_exc().splitlines()[-3].strip()
    return file.name


if __name__ == "__main__":
    main()
