"""What the store holds of the cases of a table: tables themselves are tested in test_measure.py."""

from __future__ import annotations

import numpy as np
from kernelcast.commands.measure.result_table import Case, stored_cases, stored_results
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec

H200 = "nvidia-h200-sxm-141gb"


def test_with_energy_a_hot_case_of_a_gpu_is_done_once_it_has_energy(tmp_path):
    store = Store(tmp_path / "store", lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
    specs = [KernelSpec.of("softmax", "fp16", impl="torch", rows=8 * i, cols=64) for i in range(1, 4)]
    specs.append(KernelSpec.of("softmax", "fp16", impl="torch", cache_state="cold", rows=8, cols=64))
    with_energy = {"power_w": 300.0, "energy_j": 0.03, "energy_source": "nvml"}
    rows = [("a", specs[0], with_energy), *(("b", specs[i], {}) for i in (0, 1, 3))]
    for block, spec, more in rows:
        store.append([Measurement(spec, H200, "ok", block, 1e-4, **more)], Provenance(block, {"host": "a"}))
    store.append([Measurement(specs[2], H200, "out_of_memory", "c")], Provenance("c", {"host": "a"}))
    device = catalogue().get(H200)
    ids = [spec.case_id for spec in specs]
    assert stored_cases(store, device, specs, energy=False) == set(ids)
    assert stored_cases(store, device, specs, energy=True) == {ids[0], ids[2], ids[3]}
    results = stored_results(store, {i: Case(spec, device) for i, spec in enumerate(specs)})
    assert results[ids[0]]["energy_j"] == 0.03, "a newer row without energy"
