"""Answers side by side: tables that are iterated, drawn in notebooks and made DataFrames; and rows of DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..client import answers
from ..features.errors import SpecError
from ..models.predict.prediction import Interval
from ..workloads.compare.devices import fastest_first
from ..workloads.units import counted, joules, money, seconds, watts
from .answer import Answer
from .display import html_table, text_table

_ENDS = (("", "value"), ("_lower", "lower"), ("_upper", "upper"))


def data_frame(rows: Sequence[Mapping[str, Any]], index: Any = None) -> Any:
    """Rows as a pandas DataFrame.

    Raises:
        SpecError: pandas is not installed.
    """
    try:
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        message = (
            "a table needs pandas; run: pip install 'kernelcast[pandas]', or ask for one spec on one device at a time"
        )
        raise SpecError(message, field="pandas") from error
    return pandas.DataFrame(rows, index=index)


def frame_rows(frame: Any) -> list[dict[str, Any]]:
    """The rows of a DataFrame without the cells that are empty, which pandas has as NaN.

    Raises:
        SpecError: two columns have one name.
    """
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise SpecError(f"the column {name!r} is there twice; give it once", field="specs")
    return [
        {str(name): value for name, value in row.items() if value is not None and value == value}
        for row in frame.to_dict("records")
    ]


def columns_of(item: Any, target: str) -> dict[str, float | None]:
    """`latency_s`, `latency_s_lower` and `latency_s_upper` of an interval, None where it is unknown."""
    return {f"{target}{suffix}": None if item is None else getattr(item, end) for suffix, end in _ENDS}


def answer_row(answer: Answer) -> dict[str, Any]:
    """An answer as a row."""
    return {
        "device": answer.device, **columns_of(answer.latency_s, "latency_s"), **columns_of(answer.power_w, "power_w"),
        **columns_of(answer.energy_j, "energy_j"), "bound": answer.bound, "in_domain": answer.in_domain,
        "method": answer.method, "notes": "; ".join(answer.notes),
    }  # fmt: skip


class Rows:
    """What tables have in common: `rows()`, `to_pandas()`, and how they are shown."""

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        """The table as plain data in SI units."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The same as a DataFrame.

        Raises:
            kernelcast.SpecError: pandas is not installed.
        """
        return data_frame(self.rows())

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[Interval | None]]:
        """Title, heads, rows in words, and the interval of each."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, heads, rows, _ = self._shown()
        return text_table(title, heads, rows)

    def _repr_html_(self) -> str:
        return html_table(*self._shown())


@dataclass(frozen=True, slots=True, repr=False)
class Table(Rows, Sequence[Mapping[str, Any]]):
    """A list of things with facts, such as devices.

    Attributes:
        title: What they are.
        items: A mapping each.
        words: Writes facts that are no text, by name; others are not shown.
    """

    title: str
    items: tuple[Mapping[str, Any], ...]
    words: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.items)

    def rows(self) -> list[dict[str, Any]]:
        """The facts of each."""
        return [dict(item) for item in self.items]

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[Interval | None]]:
        rows = [
            ["" if item[name] is None else str(write(item[name])) for name, write in self.words.items()]
            for item in self.items
        ]
        return f"{len(self.items)} {self.title}", tuple(self.words), rows, ()


class Comparison(Rows, answers.Comparison, frozen=True):
    """One kernel on devices, as `/v1/compare` answers; shown with the fastest first."""

    def __repr__(self) -> str:
        return Rows.__repr__(self)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each device, in the order of the question."""
        return [
            {
                "device": item.device, **_costs(item.prediction),
                **columns_of(item.cost_per_million_calls, "cost_per_million_calls"), "of_bound": item.of_bound,
                "bound": None if item.prediction is None else item.prediction.bound,
                "in_domain": None if item.prediction is None else item.prediction.in_domain,
                "refusal": item.refusal,
            }
            for item in self.answers
        ]  # fmt: skip

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[Interval | None]]:
        ordered = fastest_first(self).answers
        rows = [
            (item.device, "refused", "", "", "", "", item.refusal or "") if item.prediction is None
            else (item.device, *_words(item.prediction), _cost_words(item.cost_per_million_calls), _place(item.prediction))
            for item in ordered
        ]  # fmt: skip
        heads = ("device", "latency", "interval", "power", "energy", "cost of 1 M calls", "")
        intervals = [_interval(item.prediction) for item in ordered]
        return f"{self.family} on {counted(len(self.answers), 'device')} ({self.timing} times)", heads, rows, intervals


class Ranking(Rows, answers.Ranking, frozen=True):
    """Configurations of a kernel, the fastest first, as `/v1/rank` answers."""

    def __repr__(self) -> str:
        return Rows.__repr__(self)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each configuration, with a column for each knob."""
        return [
            {
                **item.config, **_costs(item), "slower_than_best": item.slower_than_best, "bound": item.bound,
                "in_domain": item.in_domain,
            }
            for item in self.ranked
        ]  # fmt: skip

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[Interval | None]]:
        rows = [
            (" ".join(f"{name}={value}" for name, value in item.config.items()) or "the compiler's own", *_words(item),
             f"+{100 * item.slower_than_best:.0f} %")
            for item in self.ranked
        ]  # fmt: skip
        title = (
            f"{self.considered} configurations of {self.family} by {self.impl or 'any'} on {self.device}; "
            f"the first {self.tied} cannot be told apart; {self.method}"
        )
        heads = ("configuration", "latency", "interval", "power", "energy", "slower")
        return title, heads, rows, [_interval(item) for item in self.ranked]


class Sweep(Rows, answers.Sweep, frozen=True):
    """A kernel along one of its sizes or knobs on devices, as `/v1/sweep` answers."""

    def __repr__(self) -> str:
        return Rows.__repr__(self)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each device and value."""
        return [
            {
                "device": curve.device, self.dim: value, **_at(curve.latency_s, i, "latency_s"),
                **_at(curve.power_w, i, "power_w"), **_at(curve.energy_j, i, "energy_j"),
                "lower_bound_s": curve.lower_bound_s[i], "bound": curve.bound[i], "in_domain": curve.in_domain[i],
            }
            for curve in self.curves
            for i, value in enumerate(self.values)
        ]  # fmt: skip

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[Interval | None]]:
        rows = self.rows()
        intervals = [Interval(row["latency_s"], row["latency_s_lower"], row["latency_s_upper"]) for row in rows]
        words = [
            (row["device"], f"{row[self.dim]:,}", seconds(row["latency_s"]),
             f"{seconds(row['latency_s_lower'])} to {seconds(row['latency_s_upper'])}", row["bound"])
            for row in rows
        ]  # fmt: skip
        where = f"{counted(len(self.values), 'value')} on {counted(len(self.curves), 'device')}"
        title = f"{self.dim} at {where} ({self.timing} times)"
        return title, ("device", self.dim, "latency", "interval", "bound by"), words, intervals


class Roofline(Rows, answers.Roofline, frozen=True):
    """One kernel under the roofs of devices, as `/v1/roofline` answers."""

    def __repr__(self) -> str:
        return Rows.__repr__(self)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each device."""
        return [
            {
                "device": item.device, "dtype": item.dtype, "peak_flops_per_s": item.peak_flops_per_s.value,
                "bandwidth_b_per_s": item.bandwidth_b_per_s.value, "ridge_intensity": item.ridge_intensity,
                "intensity": item.intensity, **columns_of(item.attained_flops_per_s, "attained_flops_per_s"),
                "of_limit": item.of_limit, "bound": item.bound, **columns_of(item.latency_s, "latency_s"),
                "in_domain": item.in_domain,
            }
            for item in self.answers
        ]  # fmt: skip

    def _shown(self) -> tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[Interval | None]]:
        rows = [
            (item.device, seconds(item.latency_s.value), f"{100 * item.of_limit:.0f} %", item.bound)
            for item in self.answers
        ]
        title = f"roofs of {counted(len(self.answers), 'device')} ({self.timing} times)"
        return (
            title,
            ("device", "latency", "of the limit", "bound by"),
            rows,
            [_interval(item) for item in self.answers],
        )


def as_table(kind: type[Any], answer: msgspec.Struct) -> Any:
    """An answer of the service's type as one of a table's."""
    return kind(*msgspec.structs.astuple(answer))


def _costs(item: Any) -> dict[str, Any]:
    targets = ("latency_s", "power_w", "energy_j")
    return {
        name: value for target in targets for name, value in columns_of(getattr(item, target, None), target).items()
    }


def _at(columns: answers.Intervals | None, i: int, target: str) -> dict[str, float | None]:
    return {f"{target}{suffix}": None if columns is None else getattr(columns, end)[i] for suffix, end in _ENDS}


def _interval(item: Any) -> Interval | None:
    return None if item is None else Interval(item.latency_s.value, item.latency_s.lower, item.latency_s.upper)


def _words(item: Any) -> tuple[str, str, str, str]:
    latency, power, energy = item.latency_s, item.power_w, item.energy_j
    return (
        seconds(latency.value), f"{seconds(latency.lower)} to {seconds(latency.upper)}",
        "" if power is None else watts(power.value), "" if energy is None else joules(energy.value),
    )  # fmt: skip


def _cost_words(cost: answers.Interval | None) -> str:
    return "" if cost is None else money(cost.value)


def _place(prediction: Any) -> str:
    return "" if prediction.in_domain else "outside what was measured"
