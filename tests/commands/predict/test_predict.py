"""`kernelcast predict` for one kernel, and what is said when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

GEMM = ("gemm", "m=64", "n=4096", "k=4096", "dtype=bf16")


def test_a_person_reads_units_and_the_binding_limit(run, fake):
    done = run("predict", *GEMM, "--device", "h100-sxm")
    assert done.code == 0
    assert "on NVIDIA H100 SXM5 80 GB" in done.out
    assert "µs" in done.out
    assert "100 W" in done.out
    assert "TFLOP/s" in done.out
    assert "90 % of cases" in done.out
    assert "bound" in done.out
    assert "█" in done.out
    assert done.err == ""


def test_a_program_reads_json(run, fake):
    done = run("predict", *GEMM, "--device", "h100-sxm", "--coverage", "0.8", "--json")
    result = json.loads(done.out)
    assert result["device"] == "nvidia-h100-sxm-80gb"
    assert result["coverage"] == 0.8
    assert result["latency_s"]["lower"] < result["latency_s"]["value"] < result["latency_s"]["upper"]


def test_settings_and_knobs_are_taken(run, fake):
    done = run(
        "predict", *GEMM, "impl=torch", "threads=2", "cache_state=cold", "tile_m=64", "--device", "h100", "--json"
    )
    assert done.code == 0


def test_how_words_were_read_is_told_apart_from_json(run, fake):
    done = run("predict", "matmul", "4kx4kx4k", "bf16", "--device", "H100", "--json")
    assert json.loads(done.out)["device"] == "nvidia-h100-sxm-80gb"
    assert done.err == (
        "read as: gemm m=4096 n=4096 k=4096 dtype=bf16\n"
        "H100 is read as nvidia-h100-sxm-80gb; it may also be nvidia-h100-nvl, nvidia-h100-pcie-80gb\n"
    )


def test_several_devices_are_compared_by_another_command(run, fake):
    assert "kernelcast compare gemm" in run("predict", *GEMM, "--device", "l40s", "--device", "l4").error


def test_whether_the_like_was_measured_has_a_word(run, fake):
    assert "fake — inside what was measured" in run("predict", *GEMM, "--device", "h100-sxm").out


def test_power_that_is_not_known_is_said_to_be(run, fake):
    done = run("predict", "gemm", "m=1", "n=1", "k=1", "dtype=fp64", "--device", "h100")
    assert "unknown" in done.out


def test_a_device_of_ones_own(run, fake, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nkind: gpu\nfacts:\n"
        "  compute_units: {value: 10, source: me}\n  boost_clock_hz: {value: 1.0e+9, source: me}\n"
        "  memory_bandwidth_b_per_s: {value: 1.0e+11, source: me}\n  l2_b: {value: 1000000, source: me}\n"
        "peak_flops_per_s:\n  vector:\n    fp32: {value: 1.0e+12, source: me}\n"
    )
    options = ("--device", "mine", "--device-file", path)
    done = run("predict", "gemm", "m=8", "n=8", "k=8", "dtype=fp32", *options, "--json")
    assert json.loads(done.out)["device"] == "mine"
    assert "no peak for int64" in run("predict", "gemm", "m=8", "n=8", "k=8", "dtype=int64", *options).error


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "name a kernel"),
        (("gem", "m=1", "--device", "h100"), "no kernel family 'gem'"),
        (("modle", "layers.json"), "did you mean `kernelcast predict model`?"),
        (("kernels.csv", "--device", "h100"), "for such a file: kernelcast predict --table FILE --out OUT"),
        (("net.onnx", "--device", "h100"), "kernelcast estimate FILE"),
        (("gemm", "", "--device", "h100"), "'' is not name=value"),
        (("--table", "x.csv", "--out", "y.csv", "--device", "h100"), "leave --device out"),
        ((*GEMM,), "name a device"),
        ((*GEMM, "--device", "h900"), "no device 'h900'"),
        (("gemm", "m=1", "n=1", "dtype=fp32", "--device", "h100"), "gemm needs k"),
        (("gemm", "m=0", "n=1", "k=1", "dtype=fp32", "--device", "h100"), "between 1 and"),
        (("gemm", "m=1.5", "n=1", "k=1", "--device", "h100"), "m must be a whole number, got '1.5'"),
        (("gemm", "m=1", "m=2", "--device", "h100"), "m is given twice"),
        (("gemm", "q=1", "--device", "h100"), "gemm has no 'q'"),
        (("gemm", "m", "--device", "h100"), "'m' is not name=value"),
        ((*GEMM, "threads=x", "--device", "h100"), "threads must be a whole number"),
        (("gemm", "m=1", "n=1", "k=1", "--device", "h100"), "dtype is missing"),
        ((*GEMM, "--device", "h100", "--out", "x.csv"), "need --table FILE"),
        ((*GEMM, "--device", "h100", "--device-file", "/nowhere.yaml"), "cannot read the device file"),
        ((*GEMM, "--device", "h100", "--coverage", "high"), "--coverage"),
        (("--table", "x.parquet"), "--table needs --out"),
        (("--tabel", "x.parquet"), "--tabel"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(run, fake, args, said):
    assert said in run("predict", *args).error


def test_a_model_that_is_none(run, tmp_path):
    assert "is no model" in run("predict", *GEMM, "--device", "h100", "--model", tmp_path).error
    (tmp_path / "file").touch()
    error = run("predict", *GEMM, "--device", "h100", "--model", tmp_path / "file").error
    assert error.endswith("file is a file; a model is a folder; make one with `kernelcast train`")


def test_an_unknown_command_and_help(run):
    assert "no command 'predikt'; did you mean predict?" in run("predikt").error
    assert "predict" in run("--help").out
    assert run("--version").out.strip()


def start(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernelcast", *args], capture_output=True, text=True, cwd="/", **options
    )  # type: ignore[call-overload]


def test_the_module_is_the_command_and_keeps_colour_out_of_pipes():
    done = start("devices", env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0
    assert "nvidia-h100-sxm-80gb" in done.stdout
    assert "\x1b" not in done.stdout


def test_predicting_imports_nothing_that_is_slow_to_load():
    code = (
        "import sys; from kernelcast.cli import main; "
        "main(['predict', 'gemm', 'm=1', 'n=1', 'k=1', 'dtype=fp32', '--device', 'h100', '--model', '/nowhere']); "
        "print([m for m in ('torch', 'pandas', 'sklearn', 'mlflow', 'xgboost', 'starlette', 'uvicorn', 'pyarrow') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_stream_without_a_character_gets_a_plainer_one(encoding):
    code = "from kernelcast.cli import main; main(['--version']); print('[160 µs … 194 µs] ● × █')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        timeout=60,
        cwd="/",
        check=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    words = done.stdout.decode(encoding).splitlines()[-1]
    assert words == {"ascii": "[160 us .. 194 us] * x #", "latin-1": "[160 µs .. 194 µs] * × #"}[encoding]


def test_a_closed_stdout_is_no_traceback():
    command = f"'{sys.executable}' -P -m kernelcast devices h100-sxm >&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, cwd="/", env=os.environ)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    command = f"{sys.executable} -m kernelcast devices --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd="/", check=True)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_board_may_be_set_to_a_limit_or_a_clock(run, fake):
    usual, slow, limited = (
        json.loads(run("predict", *GEMM, "--device", "h100-sxm", *options, "--json").out)
        for options in ((), ("--clock-hz", "9e8"), ("--power-limit-w", "500"))
    )
    assert limited == usual
    assert slow["latency_s"]["value"] > 1.2 * usual["latency_s"]["value"]
    assert slow["method"].endswith("under 900 MHz")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--power-limit-w", "5"), "power_limit_w is 5 W for nvidia-h100-sxm-80gb, below what it draws"),
        (("--power-limit-w", "0"), "power_limit_w must be a positive number"),
        (("--clock-hz", "5e9"), "above its boost clock"),
        (("--clock-hz", "1e9", "--table", "x.csv", "--out", "y.csv"), "have columns power_limit_w and clock_hz"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused(run, fake, options, words):
    what = () if "--table" in options else (*GEMM, "--device", "h100-sxm")
    done = run("predict", *what, *options)
    assert done.code == 2
    assert words in done.err


def test_a_kernel_s_footprint(run, fake):
    done = run("predict", *GEMM, "--device", "h100-sxm", "--grid", "poland", "--electricity-price", "0.2")
    assert "one run: " in done.out
    assert "Poland, 615 g CO2e per kWh" in done.out
    answer = json.loads(run("predict", *GEMM, "--device", "h100-sxm", "--grid", "pl", "--json").out)
    assert answer["footprint"]["carbon_g"]["upper"] == pytest.approx(615 * answer["energy_j"]["upper"] / 3.6e6)
    assert "go with one kernel" in run("predict", "--table", "x.csv", "--out", "y.csv", "--grid", "pl").err
