"""Runs of several algorithms over several seeds, side by side: a table with means and spreads, and a picture of the curves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvra.core.files import replace_durably
from fedvra.runs.files import write_json
from fedvra.runs.inline import study_html
from fedvra.runs.options import RunConfig
from fedvra.show.curves import mean_curve
from fedvra.show.plots import FEW, Curve, curves_figure, draw_curves
from fedvra.show.rows import Outcome as Outcome
from fedvra.show.rows import Row as Row
from fedvra.show.rows import Run as Run
from fedvra.show.rows import columns as columns
from fedvra.show.rows import header as header
from fedvra.show.rows import models_said
from fedvra.show.rows import rows_table as rows_table
from fedvra.show.rows import same_metrics as same_metrics
from fedvra.show.rows import upwards as upwards
from fedvra.show.rows import winners as winners
from fedvra.show.terminal import markdown, split_of


@dataclass(frozen=True, repr=False)
class Comparison:
    """Renders itself: ``print``, ``rich.print(comparison)``, ``comparison.markdown()``, ``comparison.to_dict()``."""

    config: RunConfig
    """Of one of the runs; the others differ in algorithm, hyper-parameters and seed."""
    runs: list[Run]
    out: Path

    @property
    def table_file(self) -> Path:
        return self.out / "table.md"

    @property
    def picture_file(self) -> Path:
        return self.out / "curves.png"

    @property
    def report_file(self) -> Path:
        return self.out / "report.html"

    def rows(self) -> list[Row]:
        return same_metrics([Row.of(runs, self.config.targets) for runs in self._by_label().values()])

    def header(self) -> list[str]:
        return header(self.config.targets, self.rows())

    def title(self) -> str:
        c = self.config
        models = models_said({label: runs[0].summary.deploy for label, runs in self._by_label().items()})
        who = f"{c.clients} clients, {split_of(c)}, {c.sampler} cohort of {c.cohort}"
        return f"{c.task}: {who}, {c.rounds} rounds{models}"

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.runs)} runs. {self.title()}>"

    def __rich__(self) -> Any:
        return rows_table(self.rows(), self.config.targets, title=self.title())

    def markdown(self) -> str:
        rows = self.rows()
        best_of = [set[int](), *winners(rows)]
        return f"{self.title()}\n\n" + markdown(self.header(), [row.cells() for row in rows], best_of)

    __str__ = markdown

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.config.task,
            "folder": str(self.out),
            "table": str(self.table_file),
            "picture": str(self.picture_file),
            "report": str(self.report_file),
            "rows": [dataclasses.asdict(row) for row in self.rows()],
            "runs": [{"label": run.label, "summary": run.summary.to_dict()} for run in self.runs],
        }

    def to_pandas(self) -> Any:
        """Every round of every run as a DataFrame, with columns ``label`` and ``seed`` (needs the extra ``fedvra[pandas]``)."""
        import pandas

        rows = [{"label": run.label, "seed": run.summary.seed, **record} for run in self.runs for record in run.metrics]
        return pandas.DataFrame(rows)

    def plot(self) -> Any:
        """The curves with their bands, as a matplotlib figure."""
        return curves_figure(self.curves(), self.title(), self._band(), self.config.targets)

    def report(self, path: str | Path | None = None) -> Path:
        """One self-contained page about all its runs; None: into the folder of the comparison."""
        from fedvra.show.page import write_report

        return write_report([self.out], self.report_file if path is None else path)

    def _repr_html_(self) -> str:
        cells, best_of = [row.cells() for row in self.rows()], [set[int](), *winners(self.rows())]
        return study_html(self.title(), self.header(), cells, self.plot(), best_of)

    def write(self) -> None:
        """The table (table.md, comparison.json) and the picture (curves.png) into the folder of the comparison."""
        replace_durably(self.table_file, self.markdown().encode())
        write_json(self.out / "comparison.json", self.to_dict())
        draw_curves(self.curves(), self.picture_file, self.title(), self._band(), self.config.targets)

    def _band(self) -> str:
        seeds = len({run.summary.seed for run in self.runs})
        bands = "; bands: one standard deviation" if len(self._by_label()) <= FEW else ""
        return f"mean of {seeds} seeds{bands}" if seeds > 1 else f"seed {self.config.seed}"

    def curves(self) -> list[Curve]:
        """Per label the mean over its finished runs; where none finished, over what there is of them."""
        made = []
        for label, runs in self._by_label().items():
            finished = [run for run in runs if run.summary.status == "finished"]
            curve = mean_curve(
                label if finished else f"{label}, diverged",
                [run.metrics for run in finished or runs],
                algorithm=runs[0].summary.algorithm,
                whole=bool(finished),
            )
            if curve is not None:
                made.append(curve)
        return made

    def _by_label(self) -> dict[str, list[Run]]:
        grouped: dict[str, list[Run]] = {}
        for run in self.runs:
            grouped.setdefault(run.label, []).append(run)
        return grouped
