"""Templates ranked by the product's own cost model, a file of the kind triton-gemm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.tuning.kind import Candidates, Task, get_kind
from kernelcast.models.tuning.flat_model import FlatModel, write_model
from kernelcast.models.tuning.forest import Forest
from kernelcast.plugins.cost_model import CostModel, PluginWarning, own_path
from kernelcast.plugins.inductor.ranking import KIND
from kernelcast.plugins.inductor.session import Session, Settings

TILES = [(16, 16, 16), (16, 32, 16), (32, 32, 32), (64, 64, 32), (128, 128, 32), (128, 256, 32), (256, 128, 64)]


@pytest.fixture
def loaded() -> list[CostModel]:
    """The models the session loaded."""
    return []


@pytest.fixture
def session(make: Any, torch_played: Any, kept: Any, loaded: list[CostModel]) -> Session:
    """A session with a user's own model file, whose trees know nothing: it ranks by the bound of a configuration."""
    kind, device = get_kind(KIND), catalogue().get(make.GPU)
    facts = kind.facts_of(device, "bf16")
    forest = Forest(
        0.5,
        1,
        np.zeros(1, np.uint32),
        np.zeros(1, np.float32),
        np.zeros((1, 1), np.uint32),
        np.zeros((1, 2), np.float32),
    )
    table = {(make.GPU, "bf16"): tuple(float(facts[name]) for name in kind.facts)}
    path = own_path(KIND)
    path.parent.mkdir(parents=True)
    write_model(FlatModel(KIND, kind.sizes, kind.knobs, kind.facts, table, kind.formula(), forest), path)

    def load(name: str) -> CostModel:
        loaded.append(CostModel.load(KIND, name))
        return loaded[-1]

    return Session(Settings({}, 3, keep_extern=True), load, kept)


def numbers(kept: list[Any]) -> list[int]:
    return [int(item.name.rsplit("_", 1)[1]) for item in kept if item.name != "mm"]


def test_the_users_model_file_ranks(session: Session, make: Any) -> None:
    # A small tile fetches a large product's operands from L2 far too often.
    assert numbers(session.before(make.mm_list(4096, 4096, 4096, TILES))) == [4, 5, 6]


def test_what_was_measured_teaches_the_model_about_like_shapes(
    session: Session, make: Any, loaded: list[CostModel]
) -> None:
    stay = session.before(make.mm_list(4096, 4096, 4096, TILES))
    session.after(dict(zip(stay, (0.2, 0.3, 0.9, 0.9), strict=True)), "mm")
    session.before(make.mm_list(4096, 4096, 8192, TILES))
    (learnt,) = loaded
    assert learnt.predict(candidates(make, 4096))[[4, 5, 6]] == pytest.approx([0.3e-3, 0.9e-3, 0.9e-3])
    untaught = CostModel.load(KIND, make.GPU).predict(candidates(make, 8192))
    taught = learnt.predict(candidates(make, 8192))
    # Against the one that did well, the two that did not are now expected to take longer than before.
    assert (taught[[5, 6]] / taught[4] > untaught[[5, 6]] / untaught[4]).all()


def candidates(make: Any, k: int) -> Candidates:
    task = Task(KIND, {"batch": 1, "m": 4096, "n": 4096, "k": k}, "bf16", make.GPU)
    rest = {"group_m": 8, "warps": 4, "stages": 3, "split_k": 1}
    return Candidates.of(task, [{"tile_m": m, "tile_n": n, "tile_k": tile_k, **rest} for m, n, tile_k in TILES])


def test_a_format_the_model_does_not_know_is_timed_in_full_and_said(session: Session, make: Any) -> None:
    nodes = make.operands(512, 512, 512, "float16")
    choices = [make.triton(tile, nodes, (512, 512), dtype="float16", number=at) for at, tile in enumerate(TILES)]
    with pytest.warns(PluginWarning, match="does not know fp16"):
        stay = session.before(choices)
    assert len(stay) == 7
    # Its measured times do no harm to what the model does know.
    session.after(dict.fromkeys(stay, 0.1), "mm")
    assert len(session.before(make.mm_list(4096, 4096, 4096, TILES))) == 4


@pytest.mark.parametrize("content", [b"", b"not a model", b"KCM1" * 100])
def test_a_damaged_model_file_is_one_sentence(session: Session, make: Any, content: bytes) -> None:
    own_path(KIND).write_bytes(content)
    with pytest.warns(PluginWarning, match="not ranked and all are timed"):
        assert len(session.before(make.mm_list(4096, 4096, 4096, TILES))) == 8
