"""Builds the lane (csrc/) where a C compiler is at hand; everything else stands in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "actors._lane",
            sources=sorted(glob("csrc/*.c")),
            depends=["csrc/lane.h"],
            extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden", "-Wno-cast-function-type"],
            define_macros=[("_GNU_SOURCE", "1")],
            py_limited_api=True,
            optional=True,  # without it the engine does the same in Python, slower
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
