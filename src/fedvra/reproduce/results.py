"""The results of a recipe: NAME.json with the metrics of every run, NAME.md with the table, NAME.svg with the curves.

The JSON is enough to make the other two again (``fedvra reproduce NAME --no-run --runs FOLDER-OF-THE-JSON``), and small enough
to keep: accuracies and losses, no models. A figure that is drawn from the runs of a table leaves them in the table's file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvra import __version__
from fedvra.core.errors import require
from fedvra.core.files import replace_durably
from fedvra.reproduce.figures import draw
from fedvra.reproduce.recipe import Recipe
from fedvra.reproduce.table import ResultTable
from fedvra.reproduce.wanted import Wanted
from fedvra.runs.cache import Stored, fingerprint
from fedvra.runs.files import finite

KEPT = {"test_accuracy": 6, "model_accuracy": 6, "test_loss": 5, "pseudo_accuracy": 4}
"""Metrics that are kept, where a run has them, and their significant digits."""


@dataclass(frozen=True)
class Result:
    """A recipe with the runs that were found for it."""

    recipe: Recipe
    found: Sequence[tuple[Wanted, Stored]]
    quick: bool
    """Fewer seeds and rounds than the recipe has: for a first look."""
    missing: int = 0
    """Runs that the recipe asks for and that there are none of."""

    @property
    def table(self) -> ResultTable:
        return ResultTable.of(self.recipe, self.found)

    def heading(self) -> str:
        kind = " - quick look, not the paper's number of seeds and rounds" if self.quick else ""
        return f"{self.recipe.title}{kind}"

    def notes(self) -> list[str]:
        """What a reader of the table has to know."""
        lacking = (
            f"{self.missing} of the recipe's {self.missing + len(self.found)} runs have not been made."
            if self.missing
            else None
        )
        return [note for note in (self.table.score(), lacking) if note]

    def markdown(self) -> str:
        table = self.table
        parts = [f"# {self.heading()}", self.recipe.says, table.markdown().rstrip(), *self.notes()]
        readings = table.readings_markdown()
        if readings:
            parts += ["Accuracy read in three ways:", readings.rstrip()]
        return "\n\n".join(parts) + f"\n\nMade by `fedvra reproduce {self.recipe.name}`, fedvra {__version__}.\n"

    def to_dict(self) -> dict[str, Any]:
        """Without the metrics: for programs that want the table."""
        table = self.table
        return {
            "recipe": self.recipe.name,
            "title": self.recipe.title,
            "quick": self.quick,
            "fedvra": __version__,
            "missing_runs": self.missing,
            "runs_in": sorted({case.of or self.recipe.name for case in self.recipe.cases}),
            "agreement": table.verdicts(),
            "table": [line.to_dict() for line in table.lines],
        }

    def write(self, out: Path) -> list[Path]:
        """The three files, of which the picture is left out where there is nothing to draw; returns their paths."""
        stem = f"{self.recipe.name}-quick" if self.quick else self.recipe.name
        data, text, picture = (out / f"{stem}.{kind}" for kind in ("json", "md", "svg"))
        replace_durably(data, (self._json() + "\n").encode())
        replace_durably(text, self.markdown().encode())
        seeds = max((line.seeds for line in self.table.lines), default=0)
        band = f"mean of up to {seeds} seeds; bands: one standard deviation" if seeds > 1 else "one seed"
        drawn = draw(self.recipe, self.found, picture, f"{'quick look; ' if self.quick else ''}{band}")
        return [data, text] if drawn is None else [data, text, drawn]

    def into_page(self, page: Path) -> None:
        """Replace what a Markdown page has between ``<!-- NAME -->`` and ``<!-- /NAME -->`` by the table and its notes.

        A figure drawn from the runs of tables has no table of its own.
        """
        if all(case.of for case in self.recipe.cases):
            return
        text = page.read_text(encoding="utf-8")
        begin, end = (f"<!-- {slash}{self.recipe.name} -->" for slash in ("", "/"))
        before, found, rest = text.partition(f"{begin}\n")
        _, closed, after = rest.partition(f"{end}\n")
        require(bool(found and closed), f"{page} has no lines {begin} and {end}, between which the table would go.")
        table = "\n\n".join([self.table.markdown().rstrip(), *self.notes()])
        replace_durably(page, f"{before}{begin}\n{table}\n{end}\n{after}".encode())

    def _json(self) -> str:
        """One run a line, so that a change of one is a change of one line; runs of another recipe are in its own file."""
        own = [(wanted, run) for wanted, run in self.found if wanted.case.of is None]
        runs = ",\n".join(json.dumps(finite(_run(wanted, run)), allow_nan=False) for wanted, run in own)
        head = json.dumps(finite(self.to_dict()), indent=1, allow_nan=False)
        return f'{head.removesuffix("}").rstrip()},\n "runs": [\n{runs}\n]}}'


def _run(wanted: Wanted, run: Stored) -> dict[str, Any]:
    played = dataclasses.replace(wanted.config, rounds=run.rounds) if run.status != "diverged" else wanted.config
    kept = [name for name in KEPT if any(record.get(name) is not None for record in run.metrics)]
    return {
        "case": wanted.case.name,
        "row": wanted.row.name,
        "seed": wanted.config.seed,
        "fingerprint": fingerprint(wanted.config),
        "status": run.status,
        "rounds": run.rounds,
        "seconds": round(run.seconds, 1),
        "config": played.to_dict(),
        "metrics": {name: [_short(record.get(name), KEPT[name]) for record in run.metrics] for name in kept},
    }


def _short(value: float | None, digits: int) -> float | None:
    """
    >>> _short(0.123456789, 4)
    0.1235
    """
    return None if value is None else float(f"{value:.{digits}g}")
