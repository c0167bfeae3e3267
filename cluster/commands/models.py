"""`squall models`: the models of the zoo, and repositories made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from squall.cluster.commands.options import on_disk
from squall.scenarios.errors import ScenarioError
from squall.scenarios.units import parse_size

models_app = typer.Typer(help="The model zoo.", no_args_is_help=True)


@models_app.command("list")
def models_list() -> None:
    """The models of the zoo with their sizes."""
    from squall.models.spec import ZOO

    for head in ZOO.values():
        sizes = ", ".join(f"{key}={value}" for key, value in head.defaults.items())
        typer.echo(f"{head.name}\n  {head.about}\n  {sizes}")


_EXPORT, _QUEUE, _PLAN = "ONNX Runtime and TensorRT", "Triton's queue", "TensorRT"


@models_app.command("build")
def models_build(
    name: Annotated[str, typer.Argument(help="A model of `squall models list`.")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder that becomes the model repository.", callback=on_disk)
    ] = Path("models-repository"),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A size of the model: width=64. Repeatable."),
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", help="Triton's backend: python, onnxruntime or tensorrt.")
    ] = "python",
    max_batch_size: Annotated[
        int, typer.Option("-b", "--max-batch-size", min=1, help="Largest batch in rows.")
    ] = 32,
    instances: Annotated[
        int, typer.Option("--instances", min=1, help="Copies of the model; on GPUs, of each GPU.")
    ] = 1,
    framework: Annotated[
        str | None,
        typer.Option(
            "--framework", help="Backend python: numpy (default), or torch, as it must be of an encoder."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="cpu or gpu; else a GPU for torch and tensorrt, the CPU for the others."
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="fp32, or fp16 where numpy does not compute.")
    ] = "fp32",
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="torch or tensorrt on a GPU: one CUDA graph per batch size.")
    ] = False,
    preferred: Annotated[
        list[int] | None,
        typer.Option(
            "--preferred-batch-size",
            min=1,
            help="Sent off without waiting. Repeatable.",
            rich_help_panel=_QUEUE,
        ),
    ] = None,
    queue_delay: Annotated[
        str, typer.Option("--queue-delay", help="Longest wait for more rows: 500us.", rich_help_panel=_QUEUE)
    ] = "0s",
    queue_size: Annotated[
        int, typer.Option("--queue-size", min=0, help="Longest queue, 0: unbounded.", rich_help_panel=_QUEUE)
    ] = 0,
    queue_timeout: Annotated[
        str, typer.Option("--queue-timeout", help="Longest wait in it, 0s: no limit.", rich_help_panel=_QUEUE)
    ] = "0s",
    on_timeout: Annotated[
        str, typer.Option("--on-timeout", help="reject, or delay: after the others.", rich_help_panel=_QUEUE)
    ] = "reject",
    preserve_ordering: Annotated[
        bool,
        typer.Option("--preserve-ordering", help="Answers leave as requests came.", rich_help_panel=_QUEUE),
    ] = False,
    priority_levels: Annotated[
        int, typer.Option("--priority-levels", min=0, help="Of requests, 0: none.", rich_help_panel=_QUEUE)
    ] = 0,
    opset: Annotated[
        int | None, typer.Option("--opset", help="ONNX opset, 18 if not given.", rich_help_panel=_EXPORT)
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            min=0,
            help="onnxruntime on the CPU: of an instance (1), 0: all.",
            rich_help_panel=_EXPORT,
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator",
            help="onnxruntime on a GPU: tensorrt, built as it loads.",
            rich_help_panel=_EXPORT,
        ),
    ] = None,
    min_rows: Annotated[
        int | None,
        typer.Option("--min-rows", min=1, help="Fewest rows of a batch (1).", rich_help_panel=_PLAN),
    ] = None,
    opt_rows: Annotated[
        int | None,
        typer.Option("--opt-rows", min=1, help="Rows that it is tuned for (all).", rich_help_panel=_PLAN),
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", help="Memory of a kernel: 4GiB (all of it).", rich_help_panel=_PLAN),
    ] = None,
    timing_cache: Annotated[
        Path | None,
        typer.Option("--timing-cache", help="File of kernel times, read and written.", rich_help_panel=_PLAN),
    ] = None,
    busy_wait: Annotated[
        bool, typer.Option("--busy-wait", help="Poll for the end of a batch.", rich_help_panel=_PLAN)
    ] = False,
    output_copy_stream: Annotated[
        bool,
        typer.Option("--output-copy-stream", help="Outputs in a stream of their own.", rich_help_panel=_PLAN),
    ] = False,
    is_pinned: Annotated[
        bool,
        typer.Option("--pinned/--pageable", help="torch on a GPU: buffers on the host page-locked, or not."),
    ] = True,
    is_compiled: Annotated[bool, typer.Option("--compile", help="torch: by torch.compile.")] = False,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            help="Of an encoder: model.safetensors or pytorch_model.bin, its folder, or a name in the local cache of "
            "Hugging Face's hub; else seeded random ones.",
        ),
    ] = None,
) -> None:
    """Writes a model of the zoo into a Triton model repository."""
    from squall.cluster.commands.model_build import Build, build_repository

    sizes = {}
    for item in settings or []:
        key, _, value = item.partition("=")
        if not value.isdigit():
            raise ScenarioError(f"--set {item}: write KEY=NUMBER, such as width=64")
        sizes[key] = int(value)
    build = Build(
        out=out,
        keys={
            "name": name,
            "settings": sizes,
            "instances": instances,
            "max_batch_size": max_batch_size,
            "preferred_batch_sizes": tuple(sorted(set(preferred or ()))),
            "queue_delay": queue_delay,
            "queue": {"max_size": queue_size, "timeout": queue_timeout, "on_timeout": on_timeout},
            "preserve_ordering": preserve_ordering,
            "precision": precision,
            "weights": weights,
        },
        backend=backend,
        framework=framework,
        device=device,
        cuda_graphs=cuda_graphs,
        pageable=not is_pinned,
        compile=is_compiled,
        priority_levels=priority_levels,
        opset=opset,
        threads=threads,
        accelerator=accelerator,
        min_rows=min_rows,
        opt_rows=opt_rows,
        workspace=None if workspace is None else _bytes(workspace),
        timing_cache=timing_cache,
        busy_wait=busy_wait,
        output_copy_stream=output_copy_stream,
    )
    typer.echo(build_repository(build))


def _bytes(workspace: str) -> int:
    try:
        return parse_size(workspace)
    except ValueError as error:
        raise ScenarioError(f"--workspace: {error}") from error
