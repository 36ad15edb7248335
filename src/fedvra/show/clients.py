"""A picture of what single clients see: how their accuracies are spread, and how that changes over the rounds."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedvra.core.cohort import Floats
from fedvra.core.goals import figure
from fedvra.runs.files import Record
from fedvra.show.gather import Group
from fedvra.show.style import looks

KINDS = ("clients", "unseen")
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
    """A row per kind of clients, a panel per group: the median, the middle half, eight tenths, and the worst tenth."""
    from matplotlib.figure import Figure

    whole = Figure(figsize=(max(4.2, 3.2 * len(groups)), 2.9 * len(measures)), layout="constrained")
    styles = looks([group.config.algorithm for group in groups])
    panels = whole.subplots(len(measures), len(groups), squeeze=False, sharey="row", sharex="col")
    for row, measure in zip(panels, measures, strict=True):
        kind, _, name = measure.partition("/")
        scale = 100 if name == "accuracy" else 1
        for k, (axes, group) in enumerate(zip(row, groups, strict=True)):
            rounds, parts = distribution(group.metrics, measure)
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
            axes.set_title(group.label if kind == "clients" else f"{group.label}: clients who never train", fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_xlabel("round")
        row[0].set_ylabel(f"clients' {name}{' (%)' if scale == 100 else ''}")
    panels[0][0].legend(fontsize=7, frameon=False)
    return whole
