"""ADMM is a variance-reduction scheme: how much the clients' gradients disagree at x0, before and after correction.

    python examples/variance.py variance.svg        # four algorithms, three seeds, 200 rounds: a minute or two

Logistic regression on handwritten digits, of which each of 50 clients holds 28, of few classes. Such a model cannot fit
every client, so their gradients keep differing at the best x0; a correction is good when what is left of that vanishes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from fedvra.show.comparison import Run
from fedvra.show.plots import Curve, draw_lines, svg_figure, write_figure
from fedvra.studies.comparing import compare

ALGORITHMS = "fedvra:gamma=0.1,a=10,d=1/p,scaffold,feddyn:alpha=0.1,fedavg"
LABELS = ("FedVRA", "SCAFFOLD", "FedDyn", "FedAvg")
TASK = {"task": "digits", "model": "linear", "diagnostics": 5, "eval_every": 0, "workers": 1}


def main(picture: Path, rounds: int = 200, seeds: int = 3) -> dict[str, Curve]:
    """Draw the picture; returns the curves after correction by label."""
    with tempfile.TemporaryDirectory() as folder:
        options = {**TASK, "rounds": rounds}
        comparison = compare(ALGORITHMS, options, seeds=range(seeds), out=Path(folder) / "runs")
    curves = {
        key: [curve(label, [run for run in comparison.runs if run.label.startswith(label)], key) for label in LABELS]
        for key in ("variance_before", "variance_after")
    }
    with svg_figure(8.6, 4.2, across=2) as (figure, (left, right)):
        for axes, key, title in (
            (left, "variance_before", "Gradients"),
            (right, "variance_after", "Corrected gradients"),
        ):
            draw_lines(axes, curves[key])
            axes.set_yscale("log")
            axes.set_title(title, loc="left")
            axes.set_xlabel("round")
            axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
        left.set_ylabel("variance between clients, at x0")
        right.legend(frameon=False)
        write_figure(figure, picture)
    return {each.label: each for each in curves["variance_after"]}


def curve(label: str, runs: list[Run], key: str) -> Curve:
    """The mean over the seeds, and the range."""
    records = [[m for m in run.metrics if "diagnostics" in m] for run in runs]
    table = np.array([[m["diagnostics"][key] for m in metrics] for metrics in records])
    rounds = [m["round"] for m in records[0]]
    algorithm = runs[0].summary.algorithm
    return Curve(label, rounds, table.mean(0).tolist(), table.min(0).tolist(), table.max(0).tolist(), algorithm)


if __name__ == "__main__":
    for found in main(Path(sys.argv[1])).values():
        print(f"{found.label:9s} {found.mean[0]:.3g} after round {found.rounds[0]}, {found.mean[-1]:.3g} at the end")
