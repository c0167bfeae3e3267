"""`squall deploy`: what sets up a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from squall.cluster.deploy.kinds import Kind


def deploy(
    kind: Annotated[Kind, typer.Argument(help="What to print.", metavar="KIND")],
    clients: Annotated[int, typer.Option("--clients", min=1, help="Client nodes beside the head.")] = 2,
    servers: Annotated[int, typer.Option("--servers", min=0, help="Nodes with GPUs.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of each of these.")] = 1,
    image: Annotated[str, typer.Option("--image", help="Image of clients and head.")] = "squall:client",
    gpu_image: Annotated[str, typer.Option("--gpu-image", help="Image of the GPU nodes.")] = "squall:gpu",
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="Address of a host, the head's first. Repeatable.")
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Who logs in on these by ssh.")] = "ubuntu",
) -> None:
    """Prints what sets up a cluster: ray-start, ray-up, raycluster, rayjob, slurm or containerfile."""
    from squall.cluster.deploy.forms import filled

    typer.echo(filled(kind, clients, servers, gpus, image, gpu_image, tuple(hosts or ()), user), nl=False)
