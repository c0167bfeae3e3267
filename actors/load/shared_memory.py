"""Tensors in POSIX shared memory, for a server on the same node: requests name places instead of carrying bytes.

Source: Triton's extension_shared_memory.md (`v2/systemsharedmemory`, parameters `shared_memory_*` of a tensor). One
region a worker and server; in it, for each template,

    │ inputs, written once │ one slot for each output │

and all requests of a template share its slots: their inputs are equal, so are their outputs.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from squall.actors.net.access import PLAIN, Access
from squall.actors.net.triton_control import Control, ControlError
from squall.actors.net.triton_models import INSPECTION_S
from squall.actors.process.sweep import hold, sweep
from squall.models.payload import Place, n_written, write_tensor
from squall.models.spec import ModelSpec
from squall.scenarios.errors import ClusterError, ScenarioError, TargetError

FOLDER = Path("/dev/shm")
_PREFIX = "squall-shm-"
_ALIGNMENT_BYTES = 64
_UNWRITTEN = b"\xff"
"""Fills the outputs before the start, NaN in every float: what no server has written is found out."""
_SERVER = "/v2/systemsharedmemory"
_LET_GO_S = 2.0
"""How long a server may hold a region on after it answered the last request that named it."""
_AGAIN_S = 0.05
Kind = tuple[int, int]


@dataclass(frozen=True)
class SharedMemorySettings:
    """Which tensors travel in shared memory, and the server's HTTP address, where regions are registered."""

    inputs: bool
    outputs: bool
    url: str
    access: Access = PLAIN


@dataclass(frozen=True)
class Places:
    """Where the tensors of one template are, by name; empty for those that requests and replies carry."""

    inputs: Mapping[str, Place]
    outputs: Mapping[str, Place]


def region_name(run: str, worker: int, target: int = 0, model: int = 0) -> str:
    """Name of a worker's region for one model of a server: its file in /dev/shm, its key and its name at the server."""
    return f"{_PREFIX}{run}-{worker}-{target}" + (f"-m{model}" if model else "")


class Region:
    """A file in /dev/shm, mapped, from its making until `close`. Locked while its process lives."""

    def __init__(self, name: str, n_bytes: int, folder: Path = FOLDER) -> None:
        """Sweeps what dead processes left. Raises ClusterError where the memory cannot be had."""
        self.name = name
        self.n_bytes = n_bytes
        self._path = folder / name
        self._map: mmap.mmap | None = None
        sweep(folder, f"{_PREFIX}*", partial(Path.unlink, missing_ok=True))
        try:
            self._fd = _make_locked(self._path)
        except OSError as error:
            raise ClusterError(f"shared memory: cannot make {self._path}: {error.strerror}") from error
        try:
            os.posix_fallocate(self._fd, 0, n_bytes)  # else a full /dev/shm would be a SIGBUS later
            self._map = mmap.mmap(self._fd, n_bytes)
        except OSError as error:
            self.close()
            what = f"{n_bytes} bytes for {self._path}"
            raise ClusterError(f"shared memory: cannot have {what}: {error.strerror}") from error

    def write(self, place: Place, data: bytes) -> None:
        """Puts `data`, which is as long as the place."""
        assert self._map is not None
        self._map[place.offset : place.offset + place.n_bytes] = data

    def read(self, place: Place) -> bytes:
        """What stands there now."""
        assert self._map is not None
        return self._map[place.offset : place.offset + place.n_bytes]

    def close(self) -> None:
        """Removes the file; a server that has it mapped keeps the memory until it lets go."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path.unlink(missing_ok=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True)
class Slots:
    """Reads what the server last wrote as an output of one template, by name."""

    region: Region
    places: Mapping[str, Place]

    def __call__(self, name: str) -> bytes:
        return self.region.read(self.places[name])


def place_tensors(
    name: str,
    spec: ModelSpec,
    inputs: Mapping[Kind, Mapping[str, NDArray[np.generic]]],
    settings: SharedMemorySettings,
    folder: Path = FOLDER,
) -> tuple[Region, dict[Kind, Places]]:
    """A region `name` that holds the inputs of every (rows, variant), and the places of their tensors.

    Raises ScenarioError where the model leaves the size of an output open, ClusterError without the memory.
    """
    end, places = 0, {}
    for kind, arrays in inputs.items():
        ours: dict[str, Place] = {}
        theirs: dict[str, Place] = {}
        if settings.inputs:
            for tensor in spec.carried(arrays):
                n_bytes = n_written(arrays[tensor.name])
                ours[tensor.name] = Place(name, end, n_bytes)
                end = _aligned(end + n_bytes)
        if settings.outputs:
            for tensor in spec.outputs:
                size = tensor.n_bytes(kind[0] if spec.is_batched else 1)
                if size is None:
                    raise ScenarioError(
                        f"clients.shared_memory: output {tensor.name} of model {spec.name} has no fixed size, "
                        "no memory can be set aside for it; use {inputs: true, outputs: false}"
                    )
                theirs[tensor.name] = Place(name, end, size)
                end = _aligned(end + size)
        places[kind] = Places(ours, theirs)
    region = Region(name, max(end, 1), folder)
    for kind, arrays in inputs.items():
        for tensor_name, place in places[kind].inputs.items():
            region.write(place, write_tensor(arrays[tensor_name]))
        for place in places[kind].outputs.values():
            region.write(place, _UNWRITTEN * place.n_bytes)
    return region, places


def register(region: Region, settings: SharedMemorySettings) -> None:
    """Tells the server of the region. Raises TargetError where it cannot open it."""
    body = json.dumps({"key": f"/{region.name}", "offset": 0, "byte_size": region.n_bytes}).encode()
    try:
        control = Control(settings.url, settings.access)
        try:
            control.ask(f"{_SERVER}/region/{region.name}/register", "POST", body)
        finally:
            control.close()
    except OSError as error:
        raise TargetError(
            f"clients.shared_memory: the server at {settings.url} does not take the region {region.name}: {error}; "
            "it must run on this node, with the same /dev/shm, and may read files of this user"
        ) from error


def unregister_all(run: str, url: str, access: Access) -> list[str]:
    """Makes a server that goes on forget the regions of a run; returns what did not go well.

    A server up to Triton 2.49 crashes where one of their requests is still in it, a later one refuses instead
    (triton-inference-server/server, issue 3207 and pull request 7567): call it when the run is over.
    """
    notes = []
    try:
        control = Control(url, access, None, INSPECTION_S)
        try:
            for region in control.ask_json(f"{_SERVER}/status"):
                name = str(region["name"])
                if name.startswith(f"{_PREFIX}{run}-"):
                    try:
                        _unregister(control, name)
                    except ControlError as error:
                        if not error.status:
                            raise
                        notes.append(f"the server at {url} keeps the shared memory region {name}: {error}")
        finally:
            control.close()
    except (OSError, KeyError, TypeError) as error:
        notes.append(f"shared memory regions at {url} may still be registered: {error}")
    return notes


def _unregister(control: Control, name: str) -> None:
    """Asks again while the server answers with an error of its own: a reply over gRPC may be out milliseconds before
    the request has let go of its region. Raises ControlError."""
    until_s = time.monotonic() + _LET_GO_S
    while True:
        try:
            control.ask(f"{_SERVER}/region/{name}/unregister", "POST")
            return
        except ControlError as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > until_s:
                raise
        time.sleep(_AGAIN_S)


def remove_regions(run: str, folder: Path = FOLDER) -> None:
    """Removes what workers of a run left on this node, those that were killed or never ran; nothing of other users."""
    for path in folder.glob(f"{_PREFIX}{run}-*"):
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == os.geteuid():
                path.unlink()


def _make_locked(path: Path) -> int:
    """A new file that is locked and in its place."""
    fd = None
    while fd is None:
        fd = hold(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    return fd


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
