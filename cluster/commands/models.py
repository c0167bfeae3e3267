"""`squall models`: the models of the zoo, and repositories made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from squall.scenarios.errors import ScenarioError

models_app = typer.Typer(help="The model zoo.", no_args_is_help=True)


@models_app.command("list")
def models_list() -> None:
    """The models of the zoo with their sizes."""
    from squall.models.spec import ZOO

    for head in ZOO.values():
        sizes = ", ".join(f"{key}={value}" for key, value in head.defaults.items())
        typer.echo(f"{head.name}\n  {head.about}\n  {sizes}")


@models_app.command("build")
def models_build(
    name: Annotated[str, typer.Argument(help="A model of `squall models list`.")],
    out: Annotated[Path, typer.Option("--out", help="Folder that becomes the model repository.")] = Path(
        "models-repository"
    ),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A size of the model: width=64. Repeatable."),
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option("-b", "--max-batch-size", min=1, help="Largest batch in rows.")
    ] = 32,
    framework: Annotated[
        str | None,
        typer.Option("--framework", help="What computes it: numpy, or torch, as it must of an encoder."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or gpu; else the CPU for numpy, a GPU for torch.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="fp32, or fp16 with torch.")] = "fp32",
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="torch on a GPU: one CUDA graph per batch size.")
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
    from squall.models.repository import ComputeConfig, ServingConfig, device_of, write_repository
    from squall.models.spec import head_of

    sizes = {}
    for item in settings or []:
        key, _, value = item.partition("=")
        if not value.isdigit():
            raise ScenarioError(f"--set {item}: write KEY=NUMBER, such as width=64")
        sizes[key] = int(value)
    is_encoder = head_of(name).is_encoder
    framework = framework or ("torch" if is_encoder else "numpy")
    device = device_of(framework, device)
    compute = ComputeConfig(framework, device, precision, cuda_graphs, is_pinned, is_compiled)
    serving = ServingConfig(max_batch_size=max_batch_size, compute=compute)
    spec = write_repository(out, name, "1", sizes, serving, None, weights)
    what = "tokens" if is_encoder else "floats"
    of_chance = "; seeded random weights" if is_encoder and weights is None else ""
    typer.echo(
        f"{out / spec.name}: {spec.inputs[0].dims[0]} {what} a row, at most {spec.max_batch_size} rows "
        f"a batch{of_chance}"
    )
