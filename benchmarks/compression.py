"""The study behind docs/compression.md: rounds and upload to some accuracies, by algorithm and bits per number.

    python benchmarks/compression.py mnist paper 32,2 0-2     FedVRA with the paper's stepsizes at 32 and 2 bits, seeds 0 to 2
    python benchmarks/compression.py mnist auto '32,4 of 37%' 0-2    FedVRA with nothing set
    python benchmarks/compression.py mnist baselines 8,4,2 0  FedDyn, FedAvg and SCAFFOLD
    python benchmarks/compression.py mnist table              the table of the page, from what there is
    python benchmarks/compression.py cifar10 paper 32,2 0     the same on CIFAR-10

The settings are the paper's: non-IID, 100 clients, ten a round. Every run is kept in docs/results/compression-TASK.json as soon
as it is made; called again, a part goes on from there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from fedvra.cli._options import parse_seeds
from fedvra.engines.federation import Federation
from fedvra.runs.config import build, configure

RESULTS = Path(__file__).parent.parent / "docs" / "results"
MESSAGES = {"32": None, "8": "quantize:8", "4": "quantize:4", "2": "quantize:2", "4 of 37%": "topk:0.37+quantize:4"}
"""Bits per number, perhaps of the largest alone, and how to ask for them."""
Run = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A task with the paper's stepsizes for it, accuracies in percent, and how many rounds are played at most."""

    task: str
    paper: dict[str, float]
    targets: tuple[int, ...]
    rounds: int
    rounds_of_others: int

    @property
    def results(self) -> Path:
        return RESULTS / f"compression-{self.task}.json"

    def stored(self) -> dict[str, Run]:
        return json.loads(self.results.read_text()) if self.results.exists() else {}


STUDIES = {
    study.task: study
    for study in (
        Study("mnist", {"gamma": 0.1, "a": 10, "d": 10}, (90, 95, 97), 150, 100),
        Study("cifar10", {"gamma": 0.1, "a": 7, "d": 10}, (30, 40, 50), 60, 60),
    )
}


def play(options: dict[str, Any], targets: tuple[int, ...], rounds: int) -> Run:
    """Up to ``rounds`` rounds, fewer once the last target is reached: the round and the megabytes of upload of each."""
    found: Run = {"rounds": {}, "MB": {}, "best": 0.0}
    up = 0
    with closing(Federation(build(configure(options)), workers=1)) as federation:
        while federation.state.round < rounds and str(targets[-1]) not in found["rounds"]:
            record = federation.round()
            up += record["bytes_up"]
            accuracy = record.get("model_accuracy", record["test_accuracy"])
            found["best"] = max(found["best"], accuracy)
            for target in targets:
                if accuracy >= target / 100 and str(target) not in found["rounds"]:
                    found["rounds"][str(target)] = record["round"]
                    found["MB"][str(target)] = round(up / 1e6, 2)
    return {**found, "played": federation.state.round}


def options_of(study: Study, algorithm: str, bits: str, seed: int) -> dict[str, Any]:
    said: dict[str, Any] = {"task": study.task, "algorithm": algorithm.partition(" ")[0], "seed": seed}
    if algorithm != "fedvra auto":
        said["deploy"] = "x0"  # as in the paper's tables
    if algorithm == "fedvra paper":
        said["set"] = study.paper
    return {**said, "compress": MESSAGES[bits]}


def make(study: Study, algorithms: Iterable[str], widths: str, seeds: Iterable[int], rounds: int) -> None:
    runs = study.stored()
    for seed in seeds:
        for algorithm in algorithms:
            for bits in widths.split(","):
                name = f"{algorithm}, {bits} bits, seed {seed}"
                if name not in runs:
                    runs[name] = play(options_of(study, algorithm, bits, seed), study.targets, rounds)
                    study.results.parent.mkdir(parents=True, exist_ok=True)
                    study.results.write_text(
                        json.dumps(runs, indent=0).replace(",\n", ", ").replace('}, "fed', '},\n"fed') + "\n"
                    )
                    print(name, runs[name], flush=True)


def table(study: Study) -> str:
    """One row per algorithm and bits, means over the seeds there are; a dash where a target was not reached by all."""
    runs = study.stored()
    goals = " / ".join(str(target) for target in study.targets)
    lines = [
        f"| algorithm | bits | seeds | rounds to {goals}% | upload to {goals}%, MB | best, % |",
        "|---|---|---|---|---|---|",
    ]
    for algorithm in dict.fromkeys(name.split(", ")[0] for name in runs):
        for bits in MESSAGES:
            own = [run for name, run in runs.items() if name.startswith(f"{algorithm}, {bits} bits")]
            if own:
                rounds = " / ".join(_mean(own, "rounds", target, ".0f") for target in study.targets)
                upload = " / ".join(_mean(own, "MB", target, ".1f") for target in study.targets)
                best = mean(100 * run["best"] for run in own)
                lines.append(f"| {algorithm} | {bits} | {len(own)} | {rounds} | {upload} | {best:.1f} |")
    return "\n".join(lines)


def _mean(runs: list[Run], what: str, target: int, form: str) -> str:
    reached = [run[what].get(str(target)) for run in runs]
    return "-" if None in reached else format(mean(reached), form)


if __name__ == "__main__":
    match sys.argv[1:]:
        case [task, "paper", widths, seeds] if task in STUDIES:
            make(STUDIES[task], ["fedvra paper"], widths, parse_seeds(seeds), STUDIES[task].rounds)
        case [task, "auto", widths, seeds] if task in STUDIES:
            make(STUDIES[task], ["fedvra auto"], widths, parse_seeds(seeds), STUDIES[task].rounds)
        case [task, "baselines", widths, seeds] if task in STUDIES:
            names = ["feddyn", "fedavg", "scaffold"]
            make(STUDIES[task], names, widths, parse_seeds(seeds), STUDIES[task].rounds_of_others)
        case [task, "table"] if task in STUDIES:
            print(table(STUDIES[task]))
        case _:
            sys.exit(__doc__)
