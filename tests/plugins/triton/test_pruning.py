"""What `prune` keeps, with configurations that stand for Triton's."""

import sys
import types
import warnings
from dataclasses import dataclass, field

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.tuning.kinds import triton_attention
from kernelcast.plugins.cost_model import PluginWarning
from kernelcast.plugins.triton import FLASH_ATTENTION, GEMM, KernelMap, prune

H200 = "nvidia-h200-sxm-141gb"
FP16 = types.SimpleNamespace(dtype="torch.float16")
ARGS = {"a_ptr": FP16, "b_ptr": FP16, "c_ptr": FP16, "M": 4096, "N": 4096, "K": 1024}


@dataclass(frozen=True)
class Config:
    """What Triton's own shows of itself."""

    parameters: tuple
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None

    def all_kwargs(self):
        launch = {"num_warps": self.num_warps, "num_ctas": self.num_ctas, "num_stages": self.num_stages}
        return dict(self.parameters) | launch | ({} if self.maxnreg is None else {"maxnreg": self.maxnreg})


def tile(m, n, k=64, **launch):
    return Config((("BLOCK_SIZE_M", m), ("BLOCK_SIZE_N", n), ("BLOCK_SIZE_K", k), ("GROUP_SIZE_M", 8)), **launch)


@dataclass
class Volume:
    """A model that likes large tiles, and notes what it was asked."""

    query: list = field(default_factory=list)

    def predict(self, candidates):
        self.query.append(candidates)
        return 1.0 / (candidates.knobs["tile_m"] * candidates.knobs["tile_n"])


TILES = [tile(m, n) for m in (32, 64, 128) for n in (32, 64, 128)]


def kept(configs, args=ARGS, top_k=5, maps=GEMM, device=H200, **kwargs):
    return prune(top_k, device, maps, Volume())(configs, args, **kwargs)


@pytest.mark.parametrize(("top_k", "n"), [(1, 1), (4, 4), (9, 9), (100, 9), (1.0, 9), (0.5, 4), (0.34, 3), (0.01, 1)])
def test_top_k_counts_as_in_triton_and_leaves_at_least_one(top_k, n):
    result = kept(TILES, top_k=top_k)
    assert len(result) == n
    assert result[0] == tile(128, 128)


@pytest.mark.parametrize("top_k", [0, -1, 0.0, 1.5, -0.5, "5", None, True, float("nan")])
def test_other_top_k_are_refused(top_k):
    with pytest.raises(SpecError, match="top_k is"):
        prune(top_k)


def test_one_batch_with_all_knobs_and_sizes():
    model = Volume()
    prune(2, "h200", GEMM, model)(TILES, {}, grid=None, warmup=False, **ARGS)
    (query,) = model.query
    assert len(query) == 9
    assert dict(query.task.sizes) == {"batch": 1, "m": 4096, "n": 4096, "k": 1024}
    assert (query.task.dtype, query.task.device) == ("fp16", H200)
    assert query.config(0) == {"tile_m": 32, "tile_n": 32, "tile_k": 64, "group_m": 8, "warps": 4, "stages": 3}


def test_register_limit_and_cluster_are_knobs():
    model = Volume()
    prune(1, H200, GEMM, model)([tile(64, 64, num_ctas=2, maxnreg=128)], ARGS)
    result = model.query[0].config(0)
    assert (result["ctas"], result["max_registers"]) == (2, 128)


def test_equal_configurations_count_once():
    assert kept([tile(64, 64), tile(64, 64), tile(32, 32)], top_k=2) == [tile(64, 64), tile(32, 32)]


def test_arguments_named_like_the_hooks_own():
    args = ARGS | {"configs": 3, "named_args": 4, "self": 5}
    assert len(prune(2, H200, GEMM, Volume())(TILES, args, **args)) == 2


def test_unread_configurations_are_kept_and_said_once():
    odd = Config((("BLOCK_SIZE_M", 64),))
    pruner = prune(1, H200, GEMM, Volume())
    with pytest.warns(
        PluginWarning, match="1 of 10 Triton configurations could not be read and are kept: no tile_n"
    ) as said:
        result = [pruner([*TILES, odd], ARGS) for _ in range(2)]
    assert result == [[tile(128, 128), odd]] * 2
    assert len(said) == 1


@pytest.mark.parametrize(
    ("configs", "args", "said"),
    [
        (TILES, {name: value for name, value in ARGS.items() if name != "K"}, "no k: looked at K, k"),
        (TILES, ARGS | {"M": 1.5}, "no m"),
        (TILES, ARGS | {"M": 2**50}, "no m"),
        (TILES, ARGS | {"a_ptr": 3}, "no dtype: looked at a_ptr"),
        (TILES, ARGS | {"a_ptr": types.SimpleNamespace(dtype="torch.complex64")}, "no dtype 'complex64'"),
        ([Config(()), Config((("BLOCK_SIZE_M", "x"),))], ARGS, "none of the 2 configurations could be read"),
    ],
)
def test_what_cannot_be_read_keeps_everything(configs, args, said):
    with pytest.warns(PluginWarning, match="all are kept") as caught:
        assert kept(configs, args, top_k=1) == configs
    assert len(caught) == 1
    assert said in str(caught[0].message)


def test_no_configurations_stay_none():
    assert kept([]) == []


def test_warnings_made_errors_do_not_end_tuning(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept(TILES, {}) == TILES
    assert "all are kept" in capsys.readouterr().err


def test_what_cannot_fit_comes_last():
    threads, shared = tile(128, 128, num_warps=64), tile(256, 256, 128, num_stages=4)
    configs = [shared, threads, *TILES]
    assert not {threads, shared} & set(kept(configs, top_k=9))
    assert set(kept(configs, top_k=11)[-2:]) == {threads, shared}


def test_smaller_devices_hold_less():
    large = tile(128, 128, 128, num_stages=3)
    assert kept([tile(32, 32), large], top_k=1) == [large]
    assert kept([tile(32, 32), large], top_k=1, device="nvidia-t4") == [tile(32, 32)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: prune(device="nvidia-h900"), "no device 'nvidia-h900'"),
        (lambda: prune(maps="gemm"), "maps is 'gemm'"),
        (lambda: prune(maps=KernelMap("triton-gemm", {"m": "M"}, {}, "a")), "the map says nothing of batch"),
        (lambda: prune(maps=KernelMap("triton-gemm", GEMM.sizes, {"tile_x": "X"}, "a")), "no knob 'tile_x'"),
        (lambda: prune(maps=KernelMap("triton-gemm", {**GEMM.sizes, "q": "Q"}, {}, "a")), "no size 'q'"),
        (lambda: prune(maps=KernelMap("triton-fft", {}, {}, "a")), "no kind of tuning problem 'triton-fft'"),
        (lambda: KernelMap("triton-gemm", {"m": 1.5}, {}, "a"), "sizes['m'] of a kernel map is 1.5"),
        (lambda: KernelMap("triton-gemm", {}, {}, "a", fp32_as="fp33"), "no dtype 'fp33'"),
    ],
)
def test_mistakes_are_refused_when_the_pruner_is_made(make, said):
    with pytest.raises(SpecError) as caught:
        make()
    assert said in str(caught.value)


def test_a_map_of_ones_own_with_functions_and_numbers():
    maps = KernelMap(
        kind="triton-gemm",
        sizes={
            "batch": 1,
            "m": lambda args: args["x"].shape[0],
            "n": ("width", 512),
            "k": (lambda args: args.get("depth"), 64),
        },
        knobs={"tile_m": "BM", "tile_n": lambda args: 2 * args["BM"], "tile_k": 64, "warps": "num_warps"},
        dtype=lambda args: "bf16",
    )
    model = Volume()
    configs = [Config((("BM", size),)) for size in (16, 64)]
    assert prune(1, H200, maps, model)(configs, {"x": types.SimpleNamespace(shape=(7, 64))}) == [configs[1]]
    assert dict(model.query[0].task.sizes) == {"batch": 1, "m": 7, "n": 512, "k": 64}
    assert model.query[0].task.dtype == "bf16"
    assert model.query[0].config(1) == {"tile_m": 64, "tile_n": 128, "tile_k": 64, "warps": 4}


def test_a_function_that_raises_keeps_everything():
    maps = KernelMap("triton-gemm", {**GEMM.sizes, "m": lambda args: args["nothing"]}, GEMM.knobs, "a_ptr")
    with pytest.warns(PluginWarning, match="the function for m raised KeyError"):
        assert kept(TILES, maps=maps) == TILES


def test_products_of_32_bit_floats_run_as_tf32_unless_told():
    args = ARGS | {"a_ptr": types.SimpleNamespace(dtype="torch.float32")}
    assert GEMM.read_dtype(args) == "tf32"
    exact = KernelMap("triton-gemm", GEMM.sizes, GEMM.knobs, "a_ptr", fp32_as="fp32")
    assert exact.read_dtype(args) == "fp32"
    descriptor = types.SimpleNamespace(base=types.SimpleNamespace(dtype="torch.float8_e5m2"))
    assert GEMM.read_dtype({"a_desc": descriptor}) == "fp8"


@pytest.mark.parametrize(("stage", "causal"), [(1, 0), (3, 1)])
def test_attention_arguments_of_the_tutorial(stage, causal):
    args = {"sm_scale": 0.1, "M": FP16, "Z": 2, "H": 8, "desc_q": types.SimpleNamespace(base=FP16), "N_CTX": 1024,
            "HEAD_DIM": 64, "STAGE": stage}  # fmt: skip
    assert FLASH_ATTENTION.read_sizes(args) == {
        "batch": 2, "heads": 8, "kv_heads": 8, "q_len": 1024, "kv_len": 1024, "head_dim": 64, "causal": causal,
    }  # fmt: skip
    assert FLASH_ATTENTION.read_dtype(args) == "fp16"
    config = Config((("BLOCK_M", 128), ("BLOCK_N", 64)), num_warps=8)
    result = FLASH_ATTENTION.read_knobs({**args, **config.all_kwargs()})
    assert set(result) <= set(triton_attention.KIND.knobs)
    assert result == {"tile_m": 128, "tile_n": 64, "warps": 8, "stages": 3}


def test_a_missing_model_file_keeps_everything(tmp_path):
    with pytest.warns(PluginWarning, match="all are kept"):
        assert prune(1, H200, GEMM, tmp_path / "none.kcm")(TILES, ARGS) == TILES


def test_the_current_gpu_is_looked_up_in_the_catalogue(monkeypatch):
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_name=lambda: "NVIDIA H200"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    model = Volume()
    assert len(prune(2, None, GEMM, model)(TILES, ARGS)) == 2
    assert model.query[0].task.device == H200
    torch.cuda.get_device_name = lambda: "Brand New GPU"
    with pytest.warns(PluginWarning, match="does not know the current GPU 'Brand New GPU'"):
        assert prune(2, None, GEMM, model)(TILES, ARGS) == TILES
