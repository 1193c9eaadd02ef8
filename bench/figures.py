"""The figures of a run: what was measured, what it should be, and whether it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    `ratio` is ours to the baseline's, as the target says it; `ours` and `raw` are the values it was made of. A figure
    without a target is there to be looked at.
    """

    key: str
    what: str
    value: float
    unit: str
    target: float | None = None
    sense: Literal["<=", ">="] = "<="
    ours: float | None = None  # µs an operation unless `what` says otherwise
    raw: float | None = None

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.sense == "<=" else self.value >= self.target

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


class Table:
    """Figures in the order they were measured."""

    def __init__(self) -> None:
        self._figures: dict[str, Figure] = {}

    def add(
        self,
        key: str,
        what: str,
        value: float,
        unit: str = "×",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        ours: float | None = None,
        raw: float | None = None,
    ) -> None:
        if key in self._figures:
            raise ValueError(f"two figures are called {key}")
        target, sense = (at_most, "<=") if at_least is None else (at_least, ">=")
        figure = Figure(key, what, value, unit, target, "<=" if sense == "<=" else ">=", ours, raw)
        self._figures[key] = figure
        print(_line(figure), flush=True)

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._figures.values())

    def missed(self) -> list[Figure]:
        return [figure for figure in self if figure.met is False]


def heading() -> str:
    return f"{'figure':<70}{'target':>10}{'measured':>12}  {'':<8}{'ours µs':>10}{'raw µs':>10}\n" + "-" * 122


def _line(f: Figure) -> str:
    target = "" if f.target is None else f"{'≤' if f.sense == '<=' else '≥'} {f.target:g}"
    verdict = {None: "", True: "met", False: "MISSED"}[f.met]
    ours = "" if f.ours is None else f"{f.ours:.2f}"
    raw = "" if f.raw is None else f"{f.raw:.2f}"
    return f"{f.what:<70}{target:>10}{f.value:>8.2f} {f.unit:<3}  {verdict:<8}{ours:>10}{raw:>10}"
