"""Files that set up a cluster, for the squall, Ray and Python that run here."""

from __future__ import annotations

import re
import sys
from importlib import resources
from importlib.metadata import version
from textwrap import indent

from squall.cluster.deploy.kinds import Kind
from squall.cluster.remote.session import LOCAL_SETTINGS
from squall.scenarios.errors import ClusterError

_PLACE = re.compile(r"@([A-Z_]+)@")
_WORD = re.compile(r"[\w.:/@-]+")


_FILES = {
    Kind.RAY_START: "ray-start.sh", Kind.RAY_UP: "ray-up.yaml", Kind.RAYCLUSTER: "raycluster.yaml",
    Kind.RAYJOB: "rayjob.yaml", Kind.SLURM: "slurm.sh", Kind.CONTAINERFILE: "Containerfile",
}  # fmt: skip


def filled(
    kind: Kind,
    clients: int = 2,
    servers: int = 1,
    gpus: int = 1,
    image: str = "squall:client",
    gpu_image: str = "squall:gpu",
    hosts: tuple[str, ...] = (),
    user: str = "ubuntu",
) -> str:
    """The text. Raises ClusterError for words that could not stand in it, and for ray-up without hosts."""
    for word in (image, gpu_image, user, *hosts):
        if not _WORD.fullmatch(word):
            raise ClusterError(f"{word!r} is no name or address")
    if kind is Kind.RAY_UP and len(hosts) < 2:
        raise ClusterError("ray-up: name the head and the other hosts, each with --host ADDRESS")
    values = {
        "SQUALL": version("squall"), "RAY": version("ray"),
        "PYTHON": f"{sys.version_info.major}.{sys.version_info.minor}",
        "NODES": str(1 + clients + servers), "CLIENTS": str(clients), "SERVERS": str(servers), "GPUS": str(gpus),
        "IMAGE": image, "GPU_IMAGE": gpu_image, "USER": user, "HEAD": "".join(hosts[:1]),
        "WORKERS": ", ".join(hosts[1:]), "N_WORKERS": str(max(0, len(hosts) - 1)),
    }  # fmt: skip
    if kind is Kind.RAY_START:
        settings = [f'export {name}="${{{name}:-{value}}}"' for name, value in LOCAL_SETTINGS.items()]
        values["SETTINGS"] = "\n".join(settings)
    elif kind in (Kind.RAYCLUSTER, Kind.RAYJOB):
        settings = [f'- {{name: {name}, value: "{value}"}}' for name, value in LOCAL_SETTINGS.items()]
        spec = _put(_text("cluster-spec.yaml"), {**values, "SETTINGS": indent("\n".join(settings), " " * 12)})
        values |= {"CLUSTER": indent(spec.rstrip(), "  "), "JOB_CLUSTER": indent(spec.rstrip(), "    ")}
    return _put(_text(_FILES[kind]), values)


def _text(name: str) -> str:
    return resources.files("squall.cluster.deploy").joinpath(name).read_text(encoding="utf-8")


def _put(text: str, values: dict[str, str]) -> str:
    return _PLACE.sub(lambda found: values[found[1]], text)
