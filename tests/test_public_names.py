"""What `import kernelcast` shows: exactly the public names, all of which work, and little that is loaded."""

from __future__ import annotations

import subprocess
import sys

import kernelcast

PUBLIC = {
    "Answer", "ArtifactError", "Client", "ClientError", "Interval", "KernelSpec", "ModelFileError", "Ratio", "SpecError",
    "Total", "__version__", "best_cap", "compare", "devices", "estimate_model", "families", "footprint", "llm_fleet",
    "llm_plan", "llm_predict", "load", "predict", "predict_mlir", "predict_model", "rank", "roofline", "sweep", "torch",
}  # fmt: skip


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_the_names_are_the_public_ones_and_each_is_there():
    assert set(dir(kernelcast)) == PUBLIC == set(kernelcast.__all__)
    for name in PUBLIC:
        value = getattr(kernelcast, name)
        # The docstring is what `help` and a notebook's `?` show.
        assert isinstance(value, str) or value.__doc__, name


def test_a_fresh_import_has_no_stray_names_and_loads_no_library():
    code = (
        "import sys, kernelcast, types\n"
        "print(sorted(n for n, v in vars(kernelcast).items() if n[0] != '_' and not isinstance(v, types.ModuleType)))\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'msgspec', 'pandas', 'torch', 'pyarrow'}))"
    )
    assert run(code) == "[]\n[]\n"


def test_every_name_is_there_for_import_from():
    assert run("from kernelcast import *; print(SpecError.__name__, Answer.__name__, predict.__name__)") == (
        "SpecError Answer predict\n"
    )


def test_errors_are_those_that_are_raised():
    from kernelcast.features.errors import SpecError

    assert kernelcast.SpecError is SpecError
    assert issubclass(kernelcast.ArtifactError, SpecError)
    assert issubclass(kernelcast.ModelFileError, SpecError)


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(kernelcast, "os")
    assert not hasattr(kernelcast, "predicts")
