"""Answers that compute: sums are those of whole models, ratios follow from the same correlations."""

from __future__ import annotations

import math
from dataclasses import replace

import kernelcast
import pytest
from kernelcast import Answer, Interval, SpecError, Total
from kernelcast.workloads.whole_model import ERROR_CORRELATION

H200 = "nvidia-h200-sxm-141gb"


def gemm(device: str = H200, m: int = 512, **settings: object) -> Answer:
    return kernelcast.predict("gemm", device=device, dtype="bf16", m=m, n=4096, k=4096, **settings)


@pytest.fixture(scope="module")
def answers() -> tuple[Answer, Answer]:
    return gemm(), kernelcast.predict("softmax", device=H200, dtype="bf16", rows=4096, cols=4096)


def half(interval: Interval) -> float:
    return math.log(interval.upper / interval.value)


def test_intervals_take_the_worst_case():
    a, b = Interval(2.0, 1.0, 4.0), Interval(4.0, 3.0, 5.0)
    assert a + b == sum([a, b]) == Interval(6.0, 4.0, 9.0)
    assert 3 * a == a * 3 == Interval(6.0, 3.0, 12.0)
    assert a / 2 == Interval(1.0, 0.5, 2.0)
    assert a - a == Interval(0.0, a.lower - a.upper, a.upper - a.lower)
    assert a - 1 == a + -1
    assert f"{Interval(1.2345, 1.0, 1.5):.2f} s" == "1.23 (1.00 to 1.50) s"
    assert f"{a}" == str(a)
    assert a / b == Interval(0.5, 0.2, 4 / 3)
    assert a < b
    assert max(a, b) is b
    assert repr(a) == "2 (1 to 4)"
    for wrong in (lambda: a * -1, lambda: a / 0, lambda: a * b, lambda: a / Interval(1.0, 0.0, 2.0), lambda: a + "1"):
        with pytest.raises(TypeError):
            wrong()


def test_a_sum_is_that_of_a_whole_model(answers):
    a, b = answers
    total = 3 * a + b
    assert isinstance(total, Total)
    assert total.latency_s.value == pytest.approx(3 * a.latency_s.value + b.latency_s.value)
    assert total.energy_j.value == pytest.approx(3 * a.energy_j.value + b.energy_j.value)
    assert [part.kernel.count for part in total.parts] == [3, 1]
    assert sum([a, a, a, b]).latency_s.upper == pytest.approx(total.latency_s.upper)
    assert (total + total).latency_s.value == pytest.approx((2 * total).latency_s.value)
    # Errors are not all one: the interval is narrower than the sum of the ends.
    assert total.latency_s.upper < 3 * a.latency_s.upper + b.latency_s.upper


def test_runs_of_one_kernel_are_one_error(answers):
    a, _ = answers
    assert (5 * a).latency_s.upper == pytest.approx(5 * a.latency_s.upper)


def test_the_gaps_of_a_whole_model_stay_in_its_sums(answers):
    kernels = [{"family": "gemm", "dtype": "bf16", "m": 512, "n": 4096, "k": 4096, "count": 4}]
    whole = kernelcast.predict_model(kernels, "h200", launch_s=1e-6)
    assert whole.launch_s == pytest.approx(4e-6)
    assert (2 * whole).launch_s == pytest.approx(8e-6)
    assert (whole + answers[1]).launch_s == pytest.approx(4e-6)


def test_a_ratio_to_itself_is_one_and_common_kernels_cancel(answers):
    a, b = answers
    same = a / a
    assert (same.latency.lower, same.latency.value, same.latency.upper) == (1, 1, 1)
    assert not same.is_clear
    long = 1000 * a
    assert half(((long + b) / long).latency) < 0.01 * half(a.latency_s)


def test_errors_of_a_ratio_on_one_device_are_correlated(answers):
    a, b = answers
    ratio = (a / b).latency
    assert ratio.value == pytest.approx(a.latency_s.value / b.latency_s.value)
    assert a.regime == b.regime == "seen"
    up, down = half(a.latency_s), math.log(b.latency_s.value / b.latency_s.lower)
    rho = ERROR_CORRELATION["seen"].cross_family
    assert half(ratio) == pytest.approx(math.sqrt(up**2 + down**2 - 2 * rho * up * down))


def test_errors_on_two_devices_are_independent(answers):
    a, other = answers[0], gemm("h100-sxm")
    up, down = half(a.latency_s), math.log(other.latency_s.value / other.latency_s.lower)
    ratio = a / other
    assert half(ratio.latency) == pytest.approx(math.hypot(up, down))
    assert "over" in repr(ratio)
    assert (gemm(m=16384) / gemm(m=16)).is_clear


def test_energy_is_unknown_where_one_of_them_is():
    known = {"dtype": "fp32", "m": 512, "n": 512, "k": 512}
    a = kernelcast.predict("gemm", device=H200, **known)
    unknown = replace(a, power_w=None, energy_j=None)
    assert (a / unknown).energy is None
    assert (a + unknown).energy_j is None
    assert "energy   unknown" in repr(a + unknown)


def test_what_does_not_add_up_is_refused(answers):
    a, _ = answers
    with pytest.raises(SpecError, match="do not add up") as caught:
        a + gemm("h100-sxm")
    assert caught.value.field == "device"
    for wrong in (lambda: a + gemm(coverage=0.5), lambda: a / gemm(coverage=0.5)):
        with pytest.raises(SpecError, match=r"coverages 0\.5 and 0\.9") as caught:
            wrong()
        assert caught.value.field == "coverage"
    with pytest.raises(SpecError, match="count must be a whole number"):
        0 * a
    for wrong in (lambda: a * 1.5, lambda: a * True, lambda: a + 1, lambda: a / 2, lambda: a < 3):
        with pytest.raises(TypeError):
            wrong()


def test_answers_are_ordered_by_latency(answers):
    small, large = gemm(m=16), gemm(m=16384)
    assert sorted([large, small]) == [small, large]
    assert max(small, large) is large
    assert min(small + small, large) is not large


def test_answers_are_read_and_drawn(answers):
    a, b = answers
    assert repr(a).splitlines()[0] == f"gemm[batch=1,m=512,n=4096,k=4096]:bf16 on {H200}"
    assert " µs to " in repr(a)
    assert "90 % intervals, bound by" in repr(a)
    for item in (a, a + b, a / b):
        html = item._repr_html_()
        assert html.count("<svg") == html.count("</svg>") == (2 if item is not a and not isinstance(item, Total) else 3)
        assert "nan" not in html
        assert "script" not in html
    hostile = replace(a, method="<script>alert(1)</script>")
    assert "&lt;script&gt;" in hostile._repr_html_()
    assert "<script>" not in hostile._repr_html_()
