"""What pyproject.toml cannot say in a stable way: the compiled engine, without which the package installs as well."""

from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "kernelcast.models.engine._native",
            ["models/engine/native/engine.cpp"],
            depends=sorted(map(str, Path("models/engine/native").glob("*.hpp"))),
            # Nothing but plain C functions is seen from outside; what is fused is written so (see arithmetic.hpp).
            extra_compile_args=["-O3", "-std=c++17", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi", "-g0"],
            language="c++",
            # No compiler, or one that does not take it: onnxruntime serves.
            optional=True,
        )
    ]
)
