"""What the check stage makes of damaged rows."""

from __future__ import annotations

from kernelcast.datasets.store.store import Store
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor

UNTRAINED = {"challengers": []}
"""For nights on which it does not matter, since training takes a process of its own."""
DEVICE = "amd-epyc-9005-vm-2c"


def test_damaged_rows_in_the_store(home) -> None:
    assert home.run(train=UNTRAINED) == 0, home.err
    place = home.path / "rehearsals"
    stored = Store(place).files()
    stored[0].write_bytes(stored[0].read_bytes()[:-200] + b"\0" * 200)
    assert home.run("--new", seed=5, train=UNTRAINED) == 0, home.err
    record = home.record()
    facts = record.stage("check").facts
    assert len(facts["damaged_files"]) == 1
    assert "moved out of the way" in home.said("storage")
    assert stored[0] not in Store(place).files()
    load_predictor(default_model_dir()).load_all()
