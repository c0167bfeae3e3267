"""`squall models`: the heads of the zoo, and repositories made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from squall.scenarios.errors import ScenarioError

models_app = typer.Typer(help="The model zoo.", no_args_is_help=True)


@models_app.command("list")
def models_list() -> None:
    """The heads of the zoo with their sizes."""
    from squall.models.spec import HEADS

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
    from squall.models.repository import ComputeConfig, ServingConfig, device_of, write_repository

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
