"""Figures in the style of a paper: one column wide, in its type, without titles, as PDF, SVG or PNG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedvra.core.errors import UsageError
from fedvra.core.goals import Goal, Target
from fedvra.runs.history import bytes_to, sent
from fedvra.show.clients import KINDS, draw, drawn_measure
from fedvra.show.content import label, measures
from fedvra.show.curves import mean_curve
from fedvra.show.gather import Experiment
from fedvra.show.plots import Curve, draw_lines, write_figure
from fedvra.show.spreads import Reached
from fedvra.show.style import looks

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
    for kind in KINDS:
        if (spread := drawn_measure(experiment.groups, kind)) is not None:
            yield f"{kind}-spread", draw(experiment.groups, [spread])
    for measure in measures(experiment.groups):
        name = measure["name"]
        curves = [
            mean_curve(group.label, group.metrics, name, group.config.algorithm, group.whole)
            for group in experiment.groups
        ]
        drawn = [curve for curve in curves if curve is not None]
        if drawn:
            yield name, _curves(drawn, name)
    reached = [group.row(experiment.targets).rounds_to for group in experiment.groups]
    if any(_anyone(each) for each in reached):
        yield "rounds-to-target", _bars(experiment, reached, "rounds")
    traffic = [
        {str(Goal.read(t)): _megabytes(group.metrics, t) for t in experiment.targets}
        if _has_traffic(group.metrics)
        else {}
        for group in experiment.groups
    ]
    if any(_anyone(each) for each in traffic):
        yield "data-to-target", _bars(experiment, traffic, "data sent (MB)")


def _curves(curves: Sequence[Curve], name: str) -> Any:
    figure, axes = _panel()
    accuracy = name.endswith("accuracy")
    draw_lines(axes, curves, scale=100 if accuracy else 1, width=1.1)
    axes.set_xlabel("round")
    axes.set_ylabel(f"{label(name)} (%)" if accuracy else label(name))
    if name.endswith("loss") and all(min(curve.mean) > 0 for curve in curves):
        axes.set_yscale("log")
    whole = [curve for curve in curves if curve.whole]
    if whole and len(whole) < len(curves):  # what diverged would leave the others a flat line
        scale = 100 if accuracy else 1
        low, high = (scale * f(f(getattr(c, edge)) for c in whole) for f, edge in ((min, "low"), (max, "high")))
        axes.set_ylim(low if axes.get_yscale() == "linear" or low > 0 else None, high)
    axes.set_xlim(0, max(max(curve.rounds) for curve in curves))
    axes.legend(frameon=False, handlelength=2.6, loc="lower right" if accuracy else "upper right")
    return figure


def _bars(experiment: Experiment, values: Sequence[dict[str, Reached | None]], what: str) -> Any:
    """Targets side by side, in each a bar per group; a hollow one where it is a bound, for not every run got there."""
    figure, axes = _panel()
    targets = [
        str(Goal.read(target))
        for target in experiment.targets
        if any((reached := each.get(str(Goal.read(target)))) is not None and reached.runs for each in values)
    ]
    colours = [look.light for look in looks([group.config.algorithm for group in experiment.groups])]
    width = 0.8 / len(values)
    for k, spreads in enumerate(values):
        places = [t + width * (k - (len(values) - 1) / 2) for t in range(len(targets))]
        found = [(x, reached) for x, target in zip(places, targets, strict=True) if (reached := spreads.get(target))]
        whole = [(x, reached) for x, reached in found if reached.complete]
        bounds = [(x, reached) for x, reached in found if not reached.complete]
        hatch = HATCHES[k % len(HATCHES)]
        for bars, face in ((whole, colours[k]), (bounds, "none")):
            axes.bar(
                [x for x, _ in bars],
                [reached.mean for _, reached in bars],
                0.92 * width,
                color=face,
                hatch=hatch if face != "none" else "",
                edgecolor="white" if face != "none" else colours[k],
                linewidth=0 if face != "none" else 0.6,
            )
        for x, reached in whole:
            if reached.runs > 1:
                axes.errorbar(x, reached.mean, reached.std, color="black", linewidth=0.7, capsize=1.5, capthick=0.7)
        for x, reached in bounds:
            axes.text(x, reached.mean, ">", ha="center", va="bottom", fontsize=5)
    axes.set_xticks(range(len(targets)), [Goal.read(target).words for target in targets])
    axes.set_xlabel("target")
    axes.set_ylabel(what)
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colours[k], hatch=HATCHES[k % len(HATCHES)], edgecolor="white", linewidth=0, label=group.label)
        for k, group in enumerate(experiment.groups)
    ]
    axes.legend(handles=handles, frameon=False, loc="upper left", handlelength=1.2)
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


def _anyone(reached: dict[str, Reached | None]) -> bool:
    return any(each is not None and each.runs for each in reached.values())


def _megabytes(runs: Sequence[list[dict[str, Any]]], target: Target) -> Reached | None:
    until = [bytes_to(metrics, [target])[str(Goal.read(target))] for metrics in runs]
    spent = [sum(map(sent, metrics)) / 1e6 for metrics in runs]
    return Reached.of([None if each is None else each / 1e6 for each in until], spent)


def _slug(text: str) -> str:
    """
    >>> _slug("mnist, epochs 1-5"), _slug("diagnostics/grad_norm2")
    ('mnist-epochs-1-5', 'diagnostics-grad_norm2')
    """
    return re.sub(r"[^\w.=-]+", "-", text).strip("-")
