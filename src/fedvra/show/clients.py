"""A picture of what single clients see: how their accuracies are spread, and how that changes over the rounds."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvra.core.cohort import Floats
from fedvra.core.goals import figure
from fedvra.runs.files import Record
from fedvra.show.gather import Group
from fedvra.show.style import looks

KINDS = ("clients", "unseen")
ACROSS = 4
"""Panels side by side: more would be too small to read on a page."""
PARTS = ("q10", "q25", "median", "q75", "q90", "worst_tenth", "mean")


def drawn_measure(groups: Sequence[Group], kind: str) -> str | None:
    """Accuracy where there is one, else the loss; None where the records have no results of clients."""
    for name in ("accuracy", "loss"):
        if any(figure(m, f"{kind}/{name}/mean") is not None for group in groups for run in group.metrics for m in run):
            return f"{kind}/{name}"
    return None


def distribution(runs: Sequence[list[Record]], measure: str) -> tuple[list[int], dict[str, Floats]]:
    """Rounds, and each part of the distribution at them, as the mean over runs that have it."""
    by_round: dict[int, list[list[float]]] = {}
    for metrics in runs:
        for record in metrics:
            values = [figure(record, f"{measure}/{part}") for part in PARTS]
            if None not in values:
                by_round.setdefault(record["round"], []).append([float(value or 0.0) for value in values])
    rounds = sorted(by_round)
    means = np.array([np.mean(by_round[r], axis=0) for r in rounds]).reshape(len(rounds), len(PARTS))
    return rounds, {part: means[:, k] for k, part in enumerate(PARTS)}


def picture(groups: Sequence[Group]) -> str | None:
    """The picture as the address of an image within a page; None where there is nothing to draw."""
    measures = [measure for kind in KINDS if (measure := drawn_measure(groups, kind)) is not None]
    if not measures:
        return None
    buffer = io.BytesIO()
    draw(groups, measures).savefig(buffer, format="png", dpi=120)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def draw(groups: Sequence[Group], measures: Sequence[str]) -> Any:
    """Per kind of clients a panel for each group with results: the median, the middle half, eight tenths, the worst tenth."""
    from matplotlib.figure import Figure

    styles = looks([group.config.algorithm for group in groups])
    drawn = [
        [(k, found) for k, group in enumerate(groups) if (found := distribution(group.metrics, measure))[0]]
        for measure in measures
    ]
    across = min(ACROSS, max(map(len, drawn)))
    down = [math.ceil(len(each) / across) for each in drawn]
    whole = Figure(figsize=(max(4.2, 3.2 * across), 2.9 * sum(down)), layout="constrained")
    blocks = whole.subfigures(len(measures), 1, squeeze=False, height_ratios=down)[:, 0]
    for block, rows, each, measure in zip(blocks, down, drawn, measures, strict=True):
        kind, _, name = measure.partition("/")
        scale = 100 if name == "accuracy" else 1
        panels = block.subplots(rows, across, squeeze=False, sharey=True, sharex=True)
        if kind == "unseen":
            block.suptitle("clients who never train", fontsize=10)
        for axes in panels.flat[len(each) :]:
            axes.set_visible(False)
        for axes, (k, (rounds, parts)) in zip(panels.flat, each, strict=False):
            colour = styles[k].light
            at = {part: scale * values for part, values in parts.items()}
            mark = "o" if len(rounds) == 1 else None
            axes.fill_between(
                rounds, at["q10"], at["q90"], color=colour, alpha=0.15, linewidth=0, label="80% of clients"
            )
            axes.fill_between(
                rounds, at["q25"], at["q75"], color=colour, alpha=0.3, linewidth=0, label="50% of clients"
            )
            axes.plot(rounds, at["median"], color=colour, linewidth=1.8, marker=mark, label="median")
            axes.plot(rounds, at["worst_tenth"], color=colour, linestyle="--", marker=mark, label="worst tenth, mean")
            axes.set_title(textwrap.fill(groups[k].label, 36), fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.xaxis.get_major_locator().set_params(integer=True)
        block.supxlabel("round", fontsize=9)
        block.supylabel(f"clients' {name}{' (%)' if scale == 100 else ''}", fontsize=9)
        panels[0][0].legend(fontsize=7, frameon=False)
    return whole
