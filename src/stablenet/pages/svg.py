"""The little of SVG that the charts need. Colours are classes of the page's style: they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True)
class Scale:
    """Maps low … high of the data to start … stop of the drawing."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Data without a range lie in the middle."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.stop - self.start)


@dataclass
class Drawing:
    """Elements in the order they are painted. title: what a screen reader says."""

    width: int
    height: int
    title: str
    elements: list[str] = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.elements.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>')

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.elements.append(f'<polyline points="{text}" class="{style}"/>')

    def bar(self, x: float, y: float, width: float, height: float, style: str) -> None:
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}"'
        self.elements.append(f'<rect {box} rx="1.5" class="{style}"/>')

    def cell(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """A rectangle that touches its neighbours without a seam."""
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width + 0.2:.1f}" height="{height + 0.2:.1f}"'
        self.elements.append(f'<rect {box} class="{style}"/>')

    def dot(self, x: float, y: float, radius: float, style: str, hint: str = "") -> None:
        told = f"<title>{escape(hint)}</title>" if hint else ""
        self.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{style}">{told}</circle>')

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(text)}</text>'
        )

    def render(self) -> str:
        body = "".join(self.elements)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}">{body}</svg>'
        )


def choose_ticks(low: float, high: float) -> list[float]:
    """Round values, four to seven of them; one value alone where there is no range."""
    span = high - low
    if not math.isfinite(span):
        raise ValueError(f"a chart's range must be finite, got {low} to {high}")
    if span <= 1e-12 * max(abs(low), abs(high), 1e-300):  # less than the digits of a float can divide
        return [low]
    power = 10.0 ** math.floor(math.log10(span))
    step = next(step * power for step in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if span / (step * power) <= 6.0001)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
