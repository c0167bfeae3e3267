"""Builds what is in C, where a compiler is at hand: the lane, the library for servers. pyproject.toml has all else."""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """All modules but this file: the root of the repository is the package `squall`, and it stands there."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [module for module in found if module[1] != "setup"]


setup(
    cmdclass={"build_py": BuildPy},
    ext_modules=[
        Extension(
            "squall.actors._lane",
            sources=sorted(glob("actors/native/*.c")),
            depends=["actors/native/lane.h"],
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", "-Wno-cast-function-type"],
            define_macros=[("_GNU_SOURCE", "1")],
            py_limited_api=True,
            optional=True,  # without it the engine does the same in Python, slower
        ),
        Extension(  # no module: nothing of Python is in it, for it is preloaded into servers (actors/inject/library.py)
            "squall.actors._batches",
            sources=["actors/inject/batches.c"],
            depends=["actors/inject/ring.h", "actors/inject/ring_file.h"],
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
            extra_link_args=["-ldl", "-pthread"],
            define_macros=[("_GNU_SOURCE", "1")],
            py_limited_api=True,
            optional=True,  # without it a run knows the batches of our own models alone
        ),
        Extension(  # no module: CUDA loads it into processes of servers (actors/inject/library.py)
            "squall.actors._kernels",
            sources=sorted(glob("actors/inject/kernels/*.c")),
            depends=[
                "actors/inject/kernels/kernels.h",
                "actors/inject/kernels/cupti.h",
                "actors/inject/ring_file.h",
            ],
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
            extra_link_args=["-ldl", "-pthread", "-Wl,-z,nodelete"],
            define_macros=[("_GNU_SOURCE", "1")],
            py_limited_api=True,
            optional=True,  # without it kernels are recorded by nsys alone
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
