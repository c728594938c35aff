"""Numbers with units: three digits, the unit that suits, and the next where rounding reaches it."""

from __future__ import annotations

import pytest
from kernelcast.models.predict.prediction import Interval
from kernelcast.workloads.units import bytes_per_s, counted, flops, joules, num_bytes, plain, seconds, watts, with_ends


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (seconds(1.23e-5), "12.3 µs"), (seconds(999.6e-6), "1.00 ms"), (seconds(0.0), "0 ns"), (seconds(123.4), "123 s"),
        (seconds(4.56e20), "4.56e+20 s"), (counted(1, "run"), "1 run"), (counted(2, "run"), "2 runs"),
        (joules(0.0123), "12.3 mJ"), (watts(1234.0), "1.23 kW"), (flops(2.5e9), "2.50 GFLOP"), (num_bytes(8e10), "80.0 GB"),
        (bytes_per_s(3.35e12), "3.35 TB/s"),
    ],
)  # fmt: skip
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


def test_a_value_has_its_ends_beside_it_or_is_unknown() -> None:
    assert with_ends(Interval(3.79e-6, 3.53e-6, 4.12e-6), seconds) == "3.79 µs (3.53 µs to 4.12 µs)"
    assert with_ends(Interval(11342.7, 0.2871, 999.0), plain) == "11,343 (0.287 to 999)"
    assert with_ends(None, joules) == "unknown"
