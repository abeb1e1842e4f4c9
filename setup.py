"""The one thing that pyproject.toml cannot declare: the C++ kernel, built if there is a compiler."""

import sys

from setuptools import Extension, setup

if sys.platform == "win32":
    flags, links = ["/O2", "/openmp:experimental", "/fp:precise", "/std:c++17"], []
elif sys.platform == "darwin":  # Apple's compiler has no OpenMP runtime: one thread, the simd pragmas still count
    flags, links = ["-O3", "-std=c++17", "-fopenmp-simd", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"], []
else:
    flags = ["-O3", "-std=c++17", "-fopenmp", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    flags += ["-funroll-loops", "-fno-tree-slp-vectorize"]  # the loops are vectorised as loops
    flags += ["-fno-thread-jumps"]  # a selection stays one: threading doubles the next one under masks
    links = ["-fopenmp"]

setup(
    ext_modules=[
        Extension(
            "arturo.kernels._native",
            ["arturo/kernels/cpp/native.cpp", "arturo/kernels/cpp/adaptive.cpp"],
            depends=[
                f"arturo/kernels/cpp/{name}.h"
                for name in (
                    "adaptive",
                    "chunk",
                    "formulas",
                    "half",
                    "householder",
                    "portable",
                    "products",
                    "rounded",
                    "settle",
                    "tiles",
                )
            ],
            extra_compile_args=flags,
            extra_link_args=links,
            py_limited_api=True,
            optional=True,  # without a compiler, steps fall back to the eager kernel
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
