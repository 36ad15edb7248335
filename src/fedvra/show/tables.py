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
from fedvra.show.comparison import Row, Spread, header


@dataclass(frozen=True)
class Lines:
    """Text before the lines, one line per row, text after them."""

    before: str
    rows: list[str]
    after: str

    def text(self) -> str:
        return self.before + "".join(self.rows) + self.after


def as_csv(rows: Sequence[Row], targets: Sequence[Target]) -> Lines:
    """Mean, deviation and number of runs in columns of their own; accuracies as fractions; empty where there is nothing."""
    reached = [f"rounds_to_{Goal.read(target)}" for target in targets]
    reached += [f"simulated_seconds_to_{Goal.read(target)}" for target in targets if _timed(rows)]
    names = ["final_accuracy", "best_accuracy", *reached, "seconds"]
    columns = [f"{name}_{part}" for name in names for part in ("mean", "std", "runs")]
    head = _csv_line(["algorithm", "finished", "diverged", "unfinished", *columns])
    return Lines(head, [_csv_line(_csv_cells(row)) for row in rows], "")


def _csv_cells(row: Row) -> list[object]:
    spreads = [row.final_accuracy, row.best_accuracy, *row.rounds_to.values(), *row.time_to.values(), row.seconds]
    figures = [figure for spread in spreads for figure in _figures(spread)]
    return [row.label, row.finished, row.diverged, row.unfinished, *figures]


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
    head = header(targets, _timed(rows))
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

    >>> latex("96.52 ± 0.20"), latex("rounds to 90%"), latex("FedVRA (a_1=5)"), latex("12.0 ± 2.8 (2 of 3)")
    ('$96.52 \\pm 0.20$', 'rounds to 90\\%', 'FedVRA (a\\_1=5)', '$12.0 \\pm 2.8$ (2 of 3)')
    """
    if cell == "-":
        return "--"
    escaped = re.sub(r"[\\{}$&#^_%~]", _escape, cell)
    return re.sub(r"(\d[\d.]*) ± (\d[\d.]*)", r"$\1 \\pm \2$", escaped)


def _escape(found: re.Match[str]) -> str:
    words = {"\\": "\\textbackslash{}", "^": "\\^{}", "~": "\\textasciitilde{}"}
    return words.get(found[0], f"\\{found[0]}")
