"""The figures and tables of docs/adaptive.md, from the runs in docs/results: figures to docs/images, tables to standard output.

python benchmarks/adaptive_tables.py
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from adaptive import DESIGN, FRESH, PAPER, RESULTS, SETTINGS, TARGETS, Curve, Results, first
from matplotlib import pyplot as plt

IMAGES = RESULTS.parent / "images"
CIFAR_TARGETS = (40, 50, 60)
CIFAR_ROWS = {"fedvra-auto": "auto", "fedvra": "gamma = 0.1, a = 7, d = 10"}
"""Rows of table 2 and what they are called here."""
SHOWN = {
    "HLU": "non-IID, HLU",
    "digits, mlp": "digits, network",
    "dirichlet:0.05": "Dirichlet 0.05",
    "iid": "IID",
}
"""What a reader is told."""
Table = Iterator[str]
"""The lines of a table in Markdown."""


def mnist_figure() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, run in Results("mnist").runs.items():
        if name.startswith("non-IID"):
            label = "auto" if "auto" in name else "gamma = 0.1, a = d = 10"
            plot(left, run["curve"], label, legend="seed 0" in name)
            if run.get("sigma"):
                right.plot(range(1, len(run["sigma"]) + 1), run["sigma"], lw=1, label=name.rpartition(", ")[2])
    left.set(ylim=(60, 98), title="MNIST, non-IID, until 97%")
    right.set(xlabel="round", ylabel="sigma", ylim=(0, None), title="the strength that auto chose")
    finish(figure, "adaptive-mnist.png")


def mnist_table() -> Table:
    runs = Results("mnist").runs
    yield from head("data", "stepsizes", "seeds", *(f"to {t}%" for t in TARGETS))
    for name, (label, seeds) in itertools.product(SETTINGS, itertools.product(("auto", "paper"), (DESIGN, FRESH))):
        some = [runs[key]["curve"] for key in (f"{name}, {label}, seed {seed}" for seed in seeds) if key in runs]
        if some:
            what = "auto" if label == "auto" else ", ".join(f"{key} = {value:g}" for key, value in PAPER.items())
            yield row(SHOWN.get(name, name), what, f"{seeds.start} to {seeds.stop - 1}", *rounds_to(some, TARGETS))


def cifar10() -> dict[str, dict[int, Curve]]:
    """Accuracies on non-IID data by row and seed, from the runs behind table 2: `fedvra reproduce table2` makes them."""
    made = [run for run in json.loads((RESULTS / "table2.json").read_text())["runs"] if run["case"] == "noniid"]
    by_seed = sorted(made, key=lambda run: run["seed"])
    return {
        label: {run["seed"]: run["metrics"]["test_accuracy"] for run in by_seed if run["row"] == name}
        for name, label in CIFAR_ROWS.items()
    }


def cifar10_figure() -> None:
    found = cifar10()
    seeds = list(found["auto"])
    size = {"figsize": (10, 4.6), "layout": "constrained", "sharex": True, "sharey": True}
    figure, grid = plt.subplots(-(-len(seeds) // 4), 4, squeeze=False, **size)
    for axes in grid.flat[len(seeds) :]:
        axes.remove()
    for axes, seed in zip(grid.flat, seeds, strict=False):
        for label, curves in found.items():
            plot(axes, curves[seed], label, legend=seed == seeds[0])
        axes.set(xlim=(0, 145), ylim=(8, 66), title=f"seed {seed}")
        axes.label_outer()
    finish(figure, "adaptive-cifar10.png")


def cifar10_table() -> Table:
    yield from head("stepsizes", "seed", *(f"to {t}%" for t in CIFAR_TARGETS))
    for label, curves in cifar10().items():
        for seed, curve in curves.items():
            yield row(label, str(seed), *rounds_to([curve], CIFAR_TARGETS))
        for seeds in dict.fromkeys((tuple(DESIGN), tuple(curves))):
            some = [curves[seed] for seed in seeds]
            yield row(label, f"mean of {seeds[0]} to {seeds[-1]}", *rounds_to(some, CIFAR_TARGETS))


def grids_table() -> Table:
    runs = Results("grids").runs
    yield from head("problem", "auto", "best of the grid", "ratio", "at (a p, d p)")
    for case in dict.fromkeys(key.split(" | ")[0] for key in runs):
        goal = {"digits, mlp": 0.95, "digits, logistic regression": 0.92}.get(case, 4.0)
        by: dict[str, list[Curve]] = {}
        for key, run in runs.items():
            if key.startswith(f"{case} | "):
                by.setdefault(key.split(" | ")[1], []).append(run["curve"])
        auto = by.pop("auto")
        tuned = {k: rounds(v, goal) for k, v in by.items() if len(v) == 3 and reached(v, goal) == 3}
        if tuned:
            best = min(tuned, key=lambda k: sum(tuned[k]))
            cells = (mean(by[best], goal), ratio(rounds(auto, goal), tuned[best]), f"({best.replace(' ', ', ')})")
        else:
            longest = max(len(curve) for some in by.values() for curve in some)
            cells = (f"more than {longest}", f"below {ratio(rounds(auto, goal), [longest] * 3)}", "none")
        yield row(SHOWN.get(case, case), mean(auto, goal), *cells)


def corners_table() -> Table:
    runs = Results("corners").runs
    yield from head("clients per round", "epochs", "split", "stepsize", "auto", "FedAvg")
    for name in sorted((key for key in runs if key.endswith("fedvra")), key=lambda key: int(key[2 : key.index(" ")])):
        cohort, epochs, split, rate, _ = name.split(" ")
        shown = [text.partition("=")[2] for text in (cohort, epochs, rate)]
        ends = [f"{100 * runs[key]['curve'][-1]:.1f}%" for key in (name, name.replace("fedvra", "fedavg"))]
        yield row(shown[0], shown[1].replace("-", " to "), SHOWN.get(split, split), shown[2], *ends)


def divergence() -> Table:
    for part in ("robust", "corners"):
        runs = Results(part).runs
        ours = {key.removesuffix(" fedvra"): run for key, run in runs.items() if key.endswith("fedvra")}
        theirs = {key: runs[f"{key} fedavg"] for key in ours}
        worse = [key for key in ours if not last(ours[key]) < last(theirs[key])]
        yield f"\n{part}: {len(ours)} federations; auto ends below FedAvg in {len(ours) - len(worse)}"
        yield from (f"  not in {key}: {last(ours[key]):.3f}, FedAvg {last(theirs[key]):.3f}" for key in worse)
        for name, made in (("auto", ours), ("FedAvg", theirs)):
            highest = max(max(values(run)) for run in made.values())
            yield f"  {name}: highest {highest:.3f}, diverged {[key for key, run in made.items() if diverged(run)]}"


# -- parts ----------------------------------------------------------------------------------------------------------------


def plot(axes: Any, curve: Curve, label: str, legend: bool = True) -> None:
    """Accuracy over rounds, auto in blue and what it is compared with in gray."""
    colour = "tab:blue" if label == "auto" else "tab:gray"
    axes.plot(range(1, len(curve) + 1), [100 * v for v in curve], color=colour, lw=1, label=label if legend else None)
    axes.set(xlabel="round", ylabel="test accuracy, %")


def finish(figure: Any, name: str) -> None:
    for axes in figure.axes:
        lines = len(axes.get_legend_handles_labels()[1])
        if lines:
            axes.legend(fontsize=8, loc="lower center" if lines > 3 else "lower right", ncols=3 if lines > 3 else 1)
        axes.grid(alpha=0.3)
    figure.savefig(IMAGES / name, dpi=110)


def head(*names: str) -> Table:
    yield ""
    yield row(*names)
    yield row(*("---" for _ in names))


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def rounds_to(curves: Sequence[Curve], targets: Sequence[int]) -> list[str]:
    return [mean(curves, target / 100) for target in targets]


def rounds(curves: Sequence[Curve], goal: float) -> list[int]:
    """The first at the goal; of a run that did not get there, all."""
    return [first({"curve": curve}, goal) or len(curve) for curve in curves]


def reached(curves: Sequence[Curve], goal: float) -> int:
    return sum(first({"curve": curve}, goal) is not None for curve in curves)


def mean(curves: Sequence[Curve], goal: float) -> str:
    """Over runs; a lower bound where some did not get there."""
    total, there = len(curves), reached(curves, goal)
    text = f"{np.mean(rounds(curves, goal)):.{1 if total > 1 else 0}f}"
    if there == total:
        return text
    return f"more than {text}" + (f" ({there} of {total})" if total > 1 else "")


def ratio(ours: Sequence[int], theirs: Sequence[int]) -> str:
    return f"{sum(ours) / sum(theirs):.2f}"


def values(run: dict[str, Any]) -> list[float]:
    """Lower is better: a loss, or the share of errors."""
    return list(run["loss"]) if "loss" in run else [1 - v for v in run["curve"]]


def last(run: dict[str, Any]) -> float:
    return values(run)[-1] if values(run) else float("nan")


def diverged(run: dict[str, Any]) -> bool:
    """Not finite, or at a loss no better than guessing among ten classes would have, twice over."""
    return not last(run) <= (2 * np.log(10) if "loss" in run else 0.9)


TABLES = (mnist_table, cifar10_table, grids_table, corners_table)
"""As docs/adaptive.md shows them, line by line."""

if __name__ == "__main__":
    mnist_figure()
    cifar10_figure()
    for lines in (*TABLES, divergence):
        print("\n".join(lines()))
