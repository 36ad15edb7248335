"""Pictures. matplotlib is imported when one is drawn: it takes longer to import than a small run takes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvra.core.files import replace_durably
from fedvra.core.goals import Target

# Okabe and Ito's colours, which colour-blind readers tell apart, in an order that keeps neighbours distinct; line styles say
# the same again for those who print in grey. Yellow is left out: it does not show on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DARK_COLOURS = ("#56A9E8", "#FF8A3D", "#2CC59A", "#E59ACB", "#F5B942", "#8FD3FF", "#F2F2F2")
"""The same in the same order, lightened for a dark background."""
STYLES = ("-", (0, (6, 2)), (0, (2, 1.2)), (0, (6, 2, 1.5, 2)), (0, (4, 1, 1, 1, 1, 1)))


@dataclass(frozen=True)
class Curve:
    """One line with its band; accuracies as fractions."""

    label: str
    rounds: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def draw_curves(curves: Sequence[Curve], path: Path, title: str, subtitle: str, targets: Sequence[Target] = ()) -> Path:
    """Accuracy over rounds: a line per curve, a band where there are several seeds, a thin rule at every target."""
    # Figure alone draws with Agg and leaves pyplot's global state, and the caller's backend, untouched.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 5.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    plot_curves(axes, curves, targets)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    axes.set_title(subtitle, loc="left", fontsize=9, color="#555555")
    return write_figure(figure, path)


def plot_curves(axes: Any, curves: Sequence[Curve], targets: Sequence[Target] = ()) -> None:
    """The same on axes of a figure that has more of them."""
    draw_lines(axes, curves, scale=100)
    low, high = _accuracy_range(curves)
    axes.set_ylim(low, high)
    for target in targets:
        if not isinstance(target, str) and low < target < high:
            axes.axhline(target, color="#999999", linewidth=0.6, linestyle=(0, (1, 3)), zorder=0)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    if curves:
        axes.set_xlim(0, max(max(curve.rounds) for curve in curves))
        axes.legend(loc="lower right", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)


def draw_lines(axes: Any, curves: Sequence[Curve], scale: float = 1.0, width: float = 1.8) -> None:
    """Each curve in its colour and style, the first a little thicker, with its band."""
    for k, curve in enumerate(curves):
        colour = COLOURS[k % len(COLOURS)]
        style: Any = STYLES[k % len(STYLES)]
        mean, low, high = ([scale * each for each in values] for values in (curve.mean, curve.low, curve.high))
        lone = len(curve.rounds) == 1
        axes.plot(
            curve.rounds,
            mean,
            color=colour,
            linestyle=style,
            linewidth=1.2 * width if k == 0 else width,
            marker="o" if lone else None,
            label=curve.label,
            zorder=10 - min(k, 8),
        )
        if low != high:
            axes.fill_between(curve.rounds, low, high, color=colour, alpha=0.15, linewidth=0)


def write_figure(figure: Any, path: Path) -> Path:
    """In the format of the file's ending; readers see it whole or not at all. The same figure gives the same bytes."""
    buffer, kind = io.BytesIO(), path.suffix[1:]
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    figure.savefig(buffer, format=kind, metadata=undated)
    replace_durably(path, buffer.getvalue())
    return path


def _accuracy_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """From a little below the lowest value to a little above the highest, in per cent, so that the top is not squeezed."""
    if not curves:
        return 0.0, 100.0
    low = 100 * min(min(curve.low) for curve in curves)
    high = 100 * max(max(curve.high) for curve in curves)
    margin = max(1.0, 0.04 * (high - low))
    return max(0.0, low - margin), min(101.0, high + margin)
