"""The state of several runs: which of how many, the results so far, how long the rest will take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedvra.runs.files import RunSummary
from fedvra.runs.options import RunConfig
from fedvra.show.comparison import Row


@dataclass
class Study:
    """The runs that are to come, by label, in their order.

    >>> Study([]).place()
    ''
    """

    plan: Sequence[tuple[str, RunConfig]]
    later: int = 0
    """Rounds of runs that come after these, as far as they are known: further rungs of a search."""
    begun: int = 0
    ended: dict[str, dict[int, RunSummary]] = field(default_factory=dict)
    """By label and seed, as it last was."""

    def begin(self) -> None:
        self.begun += 1

    def end(self, label: str, summary: RunSummary) -> None:
        self.ended.setdefault(label, {})[summary.seed] = summary

    def place(self) -> str:
        return f"run {self.begun} of {len(self.plan)}" if self.plan else ""

    def time_left(self, label: str, seconds_per_round: float) -> float:
        """Of the runs after this one, each label as fast as it was so far; labels that have not run yet as fast as the mean."""
        paces = {name: self._pace(name) for name in self.ended}
        known = [pace for pace in paces.values() if pace is not None]
        mean = sum(known) / len(known) if known else seconds_per_round
        paces.setdefault(label, seconds_per_round)
        coming = self.plan[self.begun :]
        return sum(config.rounds * (paces.get(name) or mean) for name, config in coming) + self.later * mean

    def rows(self, most: int) -> list[Row]:
        """The results so far, a row per label; where there are more than fit, the best of them."""
        targets = self.plan[0][1].targets if self.plan else ()
        rows = [Row.of_outcomes(label, [*summaries.values()], targets) for label, summaries in self.ended.items()]
        if len(rows) > most:
            rows.sort(key=lambda row: -1.0 if row.final_accuracy is None else row.final_accuracy.mean, reverse=True)
        return rows[:most]

    def _pace(self, label: str) -> float | None:
        summaries = self.ended[label].values()
        rounds = sum(summary.rounds for summary in summaries)
        return sum(summary.seconds for summary in summaries) / rounds if rounds else None
