import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.tuning.kinds import triton_attention, triton_gemm
from kernelcast.models.tuning.flat_model import FlatModel, write_model
from kernelcast.models.tuning.forest import Forest

DTYPES = ("bf16", "fp16", "tf32", "fp32")
MEASURED = "nvidia-h200-sxm-141gb"


def flat(kind):
    """A model that predicts the bound: its forest has no trees."""
    table = {}
    for device in catalogue():
        for dtype in DTYPES:
            try:
                facts = kind.facts_of(device, dtype)
            except SpecError:
                continue
            table[device.name, dtype] = tuple(facts[name] for name in kind.facts)
    nothing = np.empty((0, 0), dtype=np.uint32)
    forest = Forest(0.0, 0, nothing[0:0].ravel(), np.empty(0, np.float32), nothing, np.zeros((0, 1), np.float32))
    return FlatModel(kind.name, kind.sizes, kind.knobs, kind.facts, table, kind.formula(), forest,
                     metadata={"devices_measured": [MEASURED]})  # fmt: skip


@pytest.fixture(scope="session")
def model_files(tmp_path_factory):
    """Paths of models by kind."""
    folder = tmp_path_factory.mktemp("models")
    result = {}
    for kind in (triton_gemm.KIND, triton_attention.KIND):
        result[kind.name] = folder / f"{kind.name}.kcm"
        write_model(flat(kind), result[kind.name])
    return result
