"""The study behind docs/compression.md: rounds and upload to some accuracies, by algorithm and bits per number.

    python benchmarks/compression.py mnist paper 32,2 0-2     FedVRA with the paper's stepsizes at 32 and 2 bits, seeds 0 to 2
    python benchmarks/compression.py mnist auto '32,4 of 37%' 0-2    FedVRA with nothing set
    python benchmarks/compression.py mnist baselines 8,4,2 0  FedDyn, FedAvg and SCAFFOLD
    python benchmarks/compression.py mnist table              the table of the page, from what there is
    python benchmarks/compression.py cifar10 paper 32,2 0     the same on CIFAR-10

The settings are the paper's: non-IID, 100 clients, ten a round. Every run is kept in docs/results/compression-TASK.json,
and what there is of it while it is made; called again, a part goes on after the last one that was finished. What was not run at
32 bits here is taken from the runs of tables 2 and 3 (docs/results/table2.json, table3.json), which have the same settings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
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
LABELS = {
    "fedvra paper": "FedVRA, paper",
    "fedvra auto": "FedVRA, auto",
    "feddyn": "FedDyn",
    "scaffold": "SCAFFOLD",
    "fedavg": "FedAvg",
}
Run = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """A task with the paper's stepsizes for it, accuracies in percent, and how many rounds are played at most."""

    task: str
    paper: dict[str, float]
    targets: tuple[int, ...]
    rounds: int
    rounds_of_others: int
    table: str
    """Where the paper's algorithms were run without compression, in the same setting."""
    parameters: int

    @property
    def results(self) -> Path:
        return RESULTS / f"compression-{self.task}.json"

    def stored(self) -> dict[str, Run]:
        return json.loads(self.results.read_text()) if self.results.exists() else {}


STUDIES = {
    study.task: study
    for study in (
        Study("mnist", {"gamma": 0.1, "a": 10, "d": 10}, (90, 95, 97), 150, 100, "table3", 199_210),
        Study("cifar10", {"gamma": 0.1, "a": 7, "d": 10}, (30, 40, 50), 60, 60, "table2", 878_538),
    )
}


def finished(run: Run, targets: tuple[int, ...], rounds: int) -> bool:
    return run["played"] >= rounds or str(targets[-1]) in run["rounds"]


def play(options: dict[str, Any], targets: tuple[int, ...], rounds: int) -> Iterator[Run]:
    """Up to ``rounds`` rounds, fewer once the last target is reached; after each: the round and the megabytes of upload of
    every target so far.
    """
    found: Run = {"rounds": {}, "MB": {}, "best": 0.0, "played": 0}
    up = 0
    with closing(Federation(build(configure(options)), workers=1)) as federation:
        while not finished(found, targets, rounds):
            record = federation.round()
            up += record["bytes_up"]
            accuracy = record.get("model_accuracy", record["test_accuracy"])
            found["best"] = max(found["best"], accuracy)
            for target in targets:
                if accuracy >= target / 100 and str(target) not in found["rounds"]:
                    found["rounds"][str(target)] = record["round"]
                    found["MB"][str(target)] = round(up / 1e6, 2)
            found["played"] = record["round"]
            yield found


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
                if name in runs and finished(runs[name], study.targets, rounds):
                    continue
                for run in play(options_of(study, algorithm, bits, seed), study.targets, rounds):
                    runs[name] = run
                    write(study, runs)
                print(name, runs[name], flush=True)


def write(study: Study, runs: dict[str, Run]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(run)}" for name, run in runs.items()]
    study.results.parent.mkdir(parents=True, exist_ok=True)
    unfinished = study.results.with_suffix(".tmp")
    unfinished.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    unfinished.replace(study.results)


def uncompressed(study: Study) -> dict[str, Run]:
    """The runs of the paper's table, by the names that they would have here, as far as they would be played."""
    found: dict[str, Run] = {}
    rows = {"fedvra": "fedvra paper", "feddyn": "feddyn", "fedavg": "fedavg", "scaffold": "scaffold"}
    for run in json.loads((RESULTS / f"{study.table}.json").read_text())["runs"]:
        if run["case"] == "noniid" and run["row"] in rows:
            rounds = study.rounds if run["row"] == "fedvra" else study.rounds_of_others
            curve = run["metrics"]["test_accuracy"]
            own: Run = {"rounds": {}, "MB": {}, "best": max(curve[:rounds]), "played": min(rounds, len(curve))}
            for target in study.targets:
                first = next((k for k, accuracy in enumerate(curve, start=1) if accuracy >= target / 100), None)
                if first is not None:
                    own["rounds"][str(target)] = first
                    own["MB"][str(target)] = first * run["config"]["cohort"] * study.parameters * 4 / 1e6
            found[f"{rows[run['row']]}, 32 bits, seed {run['seed']}"] = own
    return found


def table(study: Study) -> str:
    """One row per algorithm and bits, means over the seeds there are; a dash where a target was not reached by all."""
    runs = study.stored()
    given = {name.partition(",")[0] for name in runs if ", 32 bits" in name}
    more = {name: run for name, run in uncompressed(study).items() if name.partition(",")[0] not in given}
    runs |= more
    goals = " / ".join(str(target) for target in study.targets)
    lines = [
        f"| algorithm | bits | seeds | rounds to {goals}% | upload to {goals}%, MB | best, % (within rounds) |",
        "|---|---|---|---|---|---|",
    ]
    for algorithm, label in LABELS.items():
        for bits in MESSAGES:
            own = [run for name, run in runs.items() if name.startswith(f"{algorithm}, {bits} bits")]
            if own:
                rounds = " / ".join(_mean(own, "rounds", target, ".0f") for target in study.targets)
                upload = " / ".join(_mean(own, "MB", target, ".1f") for target in study.targets)
                best, played = mean(100 * run["best"] for run in own), max(run["played"] for run in own)
                lines.append(f"| {label} | {bits} | {len(own)} | {rounds} | {upload} | {best:.1f} ({played}) |")
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
