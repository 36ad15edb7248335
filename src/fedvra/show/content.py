"""What a report says, as plain values for its page: means and spreads are worked out here, the page only shows them."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedvra import __version__
from fedvra.algorithms import Algorithm
from fedvra.core.goals import Goal, Target
from fedvra.runs.algorithm_text import kind_of, label_of
from fedvra.runs.cache import Stored
from fedvra.runs.files import Record, RunFolder
from fedvra.runs.history import bytes_to, numbers, sent, series
from fedvra.show.clients import picture
from fedvra.show.comparison import header, same_metrics, upwards
from fedvra.show.curves import mean_curve
from fedvra.show.gather import Experiment, Group, shown
from fedvra.show.made import made
from fedvra.show.spreads import Reached, Spread
from fedvra.show.style import DASHES, looks, ramp
from fedvra.show.tables import as_csv, as_latex

FIRST = ("model_accuracy", "test_accuracy", "model_loss", "test_loss", "train_loss")
"""Measures that come first, in this order; all others follow as the records have them."""
NAMES = {
    "model_accuracy": "Test accuracy of the deployed model",
    "model_loss": "Test loss of the deployed model",
    "test_accuracy": "Test accuracy",
    "test_loss": "Test loss",
    "train_loss": "Training loss",
    "stationarity_gap": "Stationarity gap",
    "multiplier": "Multiplier that auto chose",
    "epsilon": "Epsilon spent, greatest of all clients",
    "pseudo_accuracy": "Accuracy of pseudo-labels",
    "diagnostics/grad_norm2": "Squared norm of the gradient",
    "diagnostics/variance_before": "Variance of clients' gradients",
    "diagnostics/variance_after": "Variance after correction",
    "diagnostics/xi": "Ξ: distance of duals to gradients",
    "diagnostics/potential": "Potential of the theorem",
    "diagnostics/drift": "Squared drift of clients",
    "diagnostics/momentum": "Share of momentum in a step of x0",
}
"""For people, where the name in the record needs more than its underscores taken out."""
BOOKKEEPING = ("seconds", "simulated_", "bytes_", "local_steps", "in_budget")
"""Numbers of a record that are no measure of the model: they have places of their own."""
OF_CLIENTS = ("mean", "std", "worst_tenth")
"""What has curves of the results of single clients; their whole spread is in a picture."""
NAMED = 4
"""Algorithms a heading can name."""
RAMP = 16
"""Colours from the worst to the best of a search."""
DIGITS = 5
"""Significant digits of what is drawn: more than a screen shows, and half the size of the page."""


def content(
    experiments: Sequence[Experiment], beside: Path, searches: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Everything a page shows; folders are named as seen from the one it is written to."""
    return {
        "version": __version__,
        "made": made(experiments),
        "searches": searches,
        "ramp": {"light": ramp(RAMP), "dark": ramp(RAMP, dark=True)},
        "dashes": DASHES,
        "experiments": [_experiment(experiment, beside) for experiment in experiments],
    }


def _experiment(experiment: Experiment, beside: Path) -> dict[str, Any]:
    groups, targets = experiment.groups, experiment.targets
    rows = same_metrics([group.row(targets) for group in groups])
    csv, latex = as_csv(rows, targets), as_latex(rows, targets)
    styles = looks([group.config.algorithm for group in groups])
    return {
        "title": experiment.title,
        "heading": heading(experiment),
        "about": experiment.about(),
        "targets": [str(Goal.read(target)) for target in targets],
        "measures": measures(groups),
        "partition": _partition(groups),
        "clients": picture(groups),
        "config": _config(groups),
        "header": header(targets, rows),
        "upwards": [False, *upwards(rows)],
        "csv": {"before": csv.before, "after": csv.after},
        "latex": {"before": latex.before, "after": latex.after},
        "groups": [
            {
                **_group(group, targets, beside, _names(groups)),
                "final": _spread(row.final_accuracy),
                "rounds_to": {target: _reached(reached) for target, reached in row.rounds_to.items()},
                "cells": row.cells(),
                "figures": [_spread(figure) for figure in row.figures()],
                "wins": row.may_win,
                "look": {"light": styles[k].light, "dark": styles[k].dark, "dash": styles[k].dash},
                "csv": csv.rows[k],
                "latex": latex.rows[k],
            }
            for k, (group, row) in enumerate(zip(groups, rows, strict=True))
        ],
    }


def heading(experiment: Experiment) -> str:
    """What the page is about: FedVRA and FedAvg on digits."""
    labels = list(dict.fromkeys(label_of(group.config.algorithm) for group in experiment.groups))
    many = len(experiment.groups)
    if len(labels) == 1:
        return f"{labels[0]} on {experiment.title}" + (f": {many} settings" if many > 1 else "")
    if len(labels) > NAMED:
        return f"{len(labels)} algorithms on {experiment.title}"
    return f"{', '.join(labels[:-1])} and {labels[-1]} on {experiment.title}"


def _going(group: Group) -> dict[str, Any] | None:
    """How far a run is that has not ended, as far as its files tell."""
    going = [run for run in group.runs if run.status == "interrupted"]
    return (
        {"label": group.label, "round": max(run.rounds for run in going), "of": group.config.rounds} if going else None
    )


def _group(group: Group, targets: Sequence[Target], beside: Path, names: Sequence[str]) -> dict[str, Any]:
    """``names``: what the experiment has curves of. A run for x0 has one of the deployed model too: that of x0."""
    curves = {name: mean_curve(group.label, group.metrics, name) for name in names}
    original = (kind_of(group.config.algorithm) or Algorithm).original
    return {
        "label": group.label,
        "algorithm": group.config.algorithm,
        "whole": group.whole,
        "messages": [
            {"seed": run.config["seed"], "status": run.status, "text": run.message}
            for run in group.runs
            if run.message is not None
        ],
        "going": _going(group),
        "seeds": group.seeds,
        "counted": len(group.counted),
        "rounds": max(run.rounds for run in group.counted),
        "statuses": {status: sum(run.status == status for run in group.runs) for status in _statuses(group.runs)},
        "folders": [os.path.relpath(run.where, beside) for run in group.runs],
        "series": {
            name: {
                "rounds": list(curve.rounds),
                "mean": _short(curve.mean),
                **_over_seeds(group, name, curve.rounds),
            }
            for name, curve in curves.items()
            if curve is not None
        },
        "axes": _axes(group),
        "bytes_to": _bytes_to(group, targets),
        "published": {"up": original.up, "down": original.down},
        "seconds_per_round": _spread(Spread.of(map(_seconds_per_round, group.counted))),
        "training": _spread(Spread.of(map(_training_share, group.metrics))),
    }


def _over_seeds(group: Group, name: str, rounds: Sequence[int]) -> dict[str, Any]:
    """Every run's own line and their deviation, where there are several."""
    if len(group.counted) < 2:
        return {}
    lines = [dict(series(metrics, name)) for metrics in group.metrics]
    spreads = [Spread.of(line[r] for line in lines) for r in rounds]
    return {
        "std": _short(spread.std for spread in spreads if spread is not None),
        "runs": [_short(line[r] for r in rounds) for line in lines],
    }


def measures(groups: Sequence[Group]) -> list[dict[str, str]]:
    """What there are curves of, with the heading of each."""
    names = _names(groups)
    return [{"name": name, "label": label(name, "model_accuracy" in names)} for name in names]


def label(name: str, several: bool = False) -> str:
    """For people. With ``several`` models, what is measured of x0 says so.

    >>> label("test_loss"), label("diagnostics/drift"), label("diagnostics/my_own"), label("inertia")
    ('Test loss', 'Squared drift of clients', 'My own', 'Inertia')
    >>> label("test_accuracy", several=True)
    'Test accuracy of x0'
    """
    if several and name.startswith("test_"):
        return f"{label(name)} of x0"
    if name.startswith(("clients/", "unseen/")):
        kind, figure, *part = name.replace("_", " ").split("/")
        return f"{'Clients' if kind == 'clients' else 'Unseen clients'}: {', '.join([figure, *part])}"
    return NAMES.get(name) or name.rpartition("/")[2].replace("_", " ").capitalize()


def _names(groups: Iterable[Group]) -> list[str]:
    found: dict[str, None] = {}
    for group in groups:
        for metrics in group.metrics:
            for record in metrics:
                found.update(dict.fromkeys(numbers(record)))
    others = [name for name in found if name not in FIRST and not name.startswith(BOOKKEEPING)]
    others = [name for name in others if not name.startswith(("clients/", "unseen/")) or name.endswith(OF_CLIENTS)]
    return [*(name for name in FIRST if name in found), *others]


def _axes(group: Group) -> dict[str, list[float]]:
    """Bytes sent and seconds gone by after each round, where the records have them: what curves can be drawn over."""
    sources: dict[str, tuple[str, Callable[[Record], float]]] = {
        "bytes": ("bytes_up", sent),
        "seconds": ("seconds", lambda record: float(record["seconds"])),
        "simulated": ("simulated_seconds", lambda record: float(record["simulated_seconds"])),
    }
    axes = {}
    for axis, (needed, value) in sources.items():
        if all(needed in record for metrics in group.metrics for record in metrics):
            totals = [list(accumulate(value(record) for record in metrics)) for metrics in group.metrics]
            spreads = [Spread.of(each) for each in zip(*totals, strict=False)]
            axes[axis] = _short(spread.mean for spread in spreads if spread is not None)
    return axes


def _bytes_to(group: Group, targets: Sequence[Target]) -> dict[str, dict[str, Any]]:
    """Up and down together until the target was reached, as sent here and by the published protocol."""
    if not all("bytes_up_original" in record for metrics in group.metrics for record in metrics):
        return {}
    found = {}
    for protocol in ("here", "original"):
        each = [bytes_to(metrics, targets, protocol) for metrics in group.metrics]
        spent = [sum(sent(record, protocol) for record in metrics) for metrics in group.metrics]
        found[protocol] = {
            str(Goal.read(t)): _reached(Reached.of([run[str(Goal.read(t))] for run in each], spent)) for t in targets
        }
    return found


def _seconds_per_round(run: Stored) -> float | None:
    return run.seconds / run.rounds if run.rounds else None  # None of one that diverged in its first


def _training_share(metrics: Sequence[Record]) -> float | None:
    """How much of a round's time is local work and the server's step; the rest is testing."""
    whole = sum(record.get("seconds", 0.0) for record in metrics)
    return sum(record["seconds_training"] for record in metrics) / whole if whole else None


def _config(groups: Sequence[Group]) -> dict[str, Any]:
    """Options that differ between groups, with the value of each; and those that are the same in all."""
    flat = [{name: v for name, v in group.config.flat().items() if name != "seed"} for group in groups]
    names = list(dict.fromkeys(name for options in flat for name in options))
    differ, same = [], []
    for name in names:
        values = [shown(options.get(name)) for options in flat]
        plain = name.removeprefix("set.")
        if len(set(values)) > 1:
            differ.append({"name": plain, "values": values})
        else:
            same.append({"name": plain, "value": values[0]})
    return {"differ": differ, "same": same}


def _partition(groups: Sequence[Group]) -> dict[str, Any] | None:
    """The picture of the partition that the first run with one drew."""
    for group in groups:
        for run in group.runs:
            file = RunFolder(run.where).partition_file
            if file.is_file():
                picture = base64.b64encode(file.read_bytes()).decode()
                return {"picture": f"data:image/png;base64,{picture}", "seed": run.config["seed"]}
    return None


def _statuses(runs: Sequence[Stored]) -> list[str]:
    return list(dict.fromkeys(run.status for run in runs))


def _spread(spread: Spread | None) -> Mapping[str, float | None] | None:
    return None if spread is None else spread.to_dict()


def _reached(reached: Reached | None) -> Mapping[str, Any] | None:
    if reached is None:
        return None
    return {
        "mean": reached.mean,
        "std": reached.std,
        "runs": reached.runs,
        "complete": reached.complete,
        "text": reached.text(),
    }


def _short(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
