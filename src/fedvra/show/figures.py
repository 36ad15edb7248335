"""Figures in the style of a paper: one column wide, in its type, without titles, as PDF, SVG or PNG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedvra.core.errors import UsageError
from fedvra.core.goals import Goal, Target
from fedvra.runs.history import bytes_to
from fedvra.show.comparison import Spread, mean_curve
from fedvra.show.content import label, measures
from fedvra.show.gather import Experiment
from fedvra.show.plots import COLOURS, Curve, draw_lines, write_figure

COLUMN = (3.4, 2.4)
"""Inches; what most two-column formats leave for a figure."""
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx")
"""Bars, like lines, can be told apart in grey."""
TYPE: Any = {
    "font.family": "serif",
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # letters stay letters: publishers refuse outlines of type 3
    "svg.fonttype": "none",
    "svg.hashsalt": "fedvra",  # the same figure, the same bytes
}


def write_figures(experiments: Sequence[Experiment], folder: str | Path, kind: str) -> list[Path]:
    """Every figure there is something to draw for, as ``NAME.KIND``; of several experiments, with their names before it."""
    from matplotlib import rc_context

    folder = Path(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with rc_context(TYPE):
            for experiment in experiments:
                before = f"{_slug(experiment.title)}-" if len(experiments) > 1 else ""
                for name, figure in _figures(experiment):
                    written.append(write_figure(figure, folder / f"{before}{_slug(name)}.{kind}"))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to ({error.strerror}): name another with --figures.") from None
    return written


def _figures(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    for measure in measures(experiment.groups):
        name = measure["name"]
        curves = [mean_curve(group.label, group.metrics, name) for group in experiment.groups]
        drawn = [curve for curve in curves if curve is not None]
        if drawn:
            yield name, _curves(drawn, name)
    reached = [group.row(experiment.targets).rounds_to for group in experiment.groups]
    if any(any(each.values()) for each in reached):
        yield "rounds-to-target", _bars(experiment, reached, "rounds")
    sent = [
        {str(Goal.read(t)): _megabytes(group.metrics, t) for t in experiment.targets}
        if _has_traffic(group.metrics)
        else {}
        for group in experiment.groups
    ]
    if any(any(each.values()) for each in sent):
        yield "data-to-target", _bars(experiment, sent, "data sent (MB)")


def _curves(curves: Sequence[Curve], name: str) -> Any:
    figure, axes = _panel()
    accuracy = name.endswith("accuracy")
    draw_lines(axes, curves, scale=100 if accuracy else 1, width=1.1)
    axes.set_xlabel("round")
    axes.set_ylabel(f"{label(name)} (%)" if accuracy else label(name))
    if name.endswith("loss") and all(min(curve.mean) > 0 for curve in curves):
        axes.set_yscale("log")
    axes.set_xlim(0, max(max(curve.rounds) for curve in curves))
    axes.legend(frameon=False, handlelength=2.6, loc="lower right" if accuracy else "upper right")
    return figure


def _bars(experiment: Experiment, values: Sequence[dict[str, Spread | None]], what: str) -> Any:
    """Targets side by side, in each a bar per group; a target that a group did not reach has a cross instead."""
    figure, axes = _panel()
    keys = [str(Goal.read(target)) for target in experiment.targets]
    targets = [key for key in keys if any(each.get(key) for each in values)]
    width = 0.8 / len(values)
    for k, (group, spreads) in enumerate(zip(experiment.groups, values, strict=True)):
        places = [t + width * (k - (len(values) - 1) / 2) for t in range(len(targets))]
        found = [spreads.get(target) for target in targets]
        axes.bar(
            places,
            [0 if spread is None else spread.mean for spread in found],
            0.92 * width,
            color=COLOURS[k % len(COLOURS)],
            hatch=HATCHES[k % len(HATCHES)],
            edgecolor="white",
            linewidth=0,
            label=group.label,
        )
        several = [(x, s) for x, s in zip(places, found, strict=True) if s is not None and s.runs > 1]
        for x, spread in several:
            axes.errorbar(x, spread.mean, spread.std, color="black", linewidth=0.7, capsize=1.5, capthick=0.7)
        missed = [x for x, spread in zip(places, found, strict=True) if spread is None]
        axes.plot(
            missed, [0.03] * len(missed), "x", color="#666666", markersize=3, transform=axes.get_xaxis_transform()
        )
    axes.set_xticks(range(len(targets)), [Goal.read(target).words for target in targets])
    axes.set_xlabel("target")
    axes.set_ylabel(what)
    axes.legend(frameon=False, loc="upper left", handlelength=1.2)
    return figure


def _panel() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=COLUMN, dpi=300, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _has_traffic(runs: Sequence[list[dict[str, Any]]]) -> bool:
    return all("bytes_up" in record for metrics in runs for record in metrics)


def _megabytes(runs: Sequence[list[dict[str, Any]]], target: Target) -> Spread | None:
    sent = [bytes_to(metrics, [target])[str(Goal.read(target))] for metrics in runs]
    return Spread.of(None if each is None else each / 1e6 for each in sent)


def _slug(text: str) -> str:
    """
    >>> _slug("mnist, epochs 1-5"), _slug("diagnostics/grad_norm2")
    ('mnist-epochs-1-5', 'diagnostics-grad_norm2')
    """
    return re.sub(r"[^\w.=-]+", "-", text).strip("-")
