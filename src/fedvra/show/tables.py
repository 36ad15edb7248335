"""The table of a report as text to paste elsewhere: CSV for programs, LaTeX for papers.

Given line by line, so that a page can leave out the lines its reader has hidden.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedvra.core.goals import Goal, Target
from fedvra.show.comparison import Row, header
from fedvra.show.spreads import Reached, Spread

ACCURACIES = ("final_accuracy", "best_accuracy")


@dataclass(frozen=True)
class Lines:
    """Text before the lines, one line per row, text after them."""

    before: str
    rows: list[str]
    after: str

    def text(self) -> str:
        return self.before + "".join(self.rows) + self.after


def as_csv(rows: Sequence[Row], targets: Sequence[Target]) -> Lines:
    """Mean, deviation and number of runs in columns of their own; accuracies as fractions; empty where there is nothing.

    Where not every run reached a target there is no mean of the rounds it took, but a number it is above: ``at_least``.
    """
    columns = [f"{name}_{part}" for name in (*ACCURACIES, "worst_fall") for part in ("mean", "std", "runs")]
    columns += [f"{name}_{part}" for name in _metrics(rows) for part in ("mean", "std", "runs")]
    for first in ("rounds_to", "rounds_to_stay"):
        columns += [f"{first}_{Goal.read(t)}_{part}" for t in targets for part in ("mean", "std", "runs", "at_least")]
    timed = [f"simulated_seconds_to_{Goal.read(target)}" for target in targets if _timed(rows)]
    columns += [f"{name}_{part}" for name in (*timed, "seconds") for part in ("mean", "std", "runs")]
    head = _csv_line(["algorithm", "finished", "diverged", "unfinished", *columns])
    return Lines(head, [_csv_line(_csv_cells(row)) for row in rows], "")


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(rows[0].metrics) if rows else []


def _csv_cells(row: Row) -> list[object]:
    figures = [*_figures(row.final_accuracy), *_figures(row.best_accuracy), *_figures(row.worst_fall)]
    for metric in row.metrics.values():
        figures += _figures(metric)
    for reached in (*row.rounds_to.values(), *row.rounds_to_stay.values()):
        figures += _reached(reached)
    for taken in row.time_to.values():
        figures += _figures(taken)
    return [row.label, row.finished, row.diverged, row.unfinished, *figures, *_figures(row.seconds)]


def _reached(reached: Reached | None) -> list[object]:
    if reached is None:
        return [""] * 4
    if reached.spread is not None:
        return [*_figures(reached.spread), ""]
    return ["", "", reached.runs, f"{reached.mean:.10g}"]


def _timed(rows: Sequence[Row]) -> bool:
    """Whether a system told the time; runs of one table have the same."""
    return any(row.time_to for row in rows)


def _figures(spread: Spread | None) -> list[object]:
    return ["", "", ""] if spread is None else [f"{spread.mean:.10g}", f"{spread.std:.10g}", spread.runs]


def _csv_line(cells: Iterable[object]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()


def as_latex(rows: Sequence[Row], targets: Sequence[Target]) -> Lines:
    """A tabular with the rules of booktabs."""
    head = header(targets, rows)
    before = (
        "% \\usepackage{booktabs}\n"
        f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n\\toprule\n"
        f"{_latex_line(head)}\\midrule\n"
    )
    return Lines(before, [_latex_line(row.cells()) for row in rows], "\\bottomrule\n\\end{tabular}\n")


def _latex_line(cells: Iterable[str]) -> str:
    return " & ".join(map(latex, cells)) + " \\\\\n"


def latex(cell: str) -> str:
    r"""A cell as LaTeX has it.

    >>> latex("96.52 ± 0.20"), latex("rounds to 90%"), latex("FedVRA (a_1=5)"), latex(">40.7 (2 of 3)")
    ('$96.52 \\pm 0.20$', 'rounds to 90\\%', 'FedVRA (a\\_1=5)', '$>40.7$ (2 of 3)')
    """
    if cell == "-":
        return "--"
    escaped = re.sub(r"[\\{}$&#^_%~]", _escape, cell)
    bounded = re.sub(r"^>(\d[\d.]*)", r"$>\1$", escaped)
    return re.sub(r"(\d[\d.]*) ± (\d[\d.]*)", r"$\1 \\pm \2$", bounded)


def _escape(found: re.Match[str]) -> str:
    words = {"\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\textasciitilde{}"}
    return words.get(found[0], f"\\{found[0]}")
