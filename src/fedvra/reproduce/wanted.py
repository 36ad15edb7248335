"""The runs that a recipe asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fedvra.algorithms import REGISTRY
from fedvra.core.errors import UsageError
from fedvra.reproduce.recipe import Case, Recipe, RowSpec
from fedvra.runs.config import BEFORE_DEPLOY, configure
from fedvra.runs.options import RunConfig


@dataclass(frozen=True)
class Wanted:
    """One run of a recipe."""

    case: Case
    row: RowSpec
    config: RunConfig

    @property
    def label(self) -> str:
        """In tables and figures, without case and seed."""
        return self.row.label or REGISTRY.get(self.config.algorithm).label

    @property
    def title(self) -> str:
        """Where it stands alone."""
        return f"{self.case.title}, {self.label}"


def plan(recipe: Recipe, seeds: int, rounds: int, only: Iterable[str] = ()) -> list[Wanted]:
    """Every row of every case with seeds 0, 1, ..., in the order in which they are run: seed by seed.

    So whoever stops early has all rows with fewer seeds, rather than some rows with all.

    Args:
        only: patterns of CASE, ROW or CASE/ROW, such as ``noniid`` or ``*/fedvra``; none: everything.
    """
    patterns, used = list(only), set()
    chosen: list[tuple[Case, RowSpec]] = []
    for case in recipe.cases:
        for row in case.rows:
            whole = f"{case.name}/{row.name}"
            fitting = {p for p in patterns if any(fnmatchcase(name, p) for name in (whole, case.name, row.name))}
            used |= fitting
            if fitting or not patterns:
                chosen.append((case, row))
    for pattern in patterns:
        if pattern not in used:
            known = ", ".join(f"{case.name}/{row.name}" for case in recipe.cases for row in case.rows)
            raise UsageError(f"{recipe.name} has nothing named {pattern!r}; --only takes any of {known}.")
    return [
        Wanted(
            case,
            row,
            configure(  # the paper's tables are of x0, unless a recipe says otherwise
                BEFORE_DEPLOY,
                case.options,
                row.options,
                {"seed": seed, "rounds": rounds, "targets": case.targets, "workers": 1},
            ),
        )
        for seed in range(seeds)
        for case, row in chosen
    ]
