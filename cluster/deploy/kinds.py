"""What `squall deploy` prints."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """A file, by what reads it."""

    RAY_START = "ray-start"
    RAY_UP = "ray-up"
    RAYCLUSTER = "raycluster"
    RAYJOB = "rayjob"
    SLURM = "slurm"
    CONTAINERFILE = "containerfile"
