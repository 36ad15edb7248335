"""The study behind docs/compression.md: rounds and upload to 90, 95 and 97% on MNIST, by algorithm and bits per number.

    python benchmarks/compression.py paper 32,2 0-2     FedVRA with the paper's stepsizes at 32 and 2 bits, seeds 0 to 2
    python benchmarks/compression.py auto '32,4 of 37%' 0-2    FedVRA with nothing set
    python benchmarks/compression.py baselines 8,4,2 0  FedDyn, SCAFFOLD and FedAvg, 100 rounds at most
    python benchmarks/compression.py table              the table of the page, from what there is

The setting is the paper's: non-IID, 100 clients, ten a round. Every run is kept in docs/results/compression.json as soon as it
is made; called again, a part goes on from there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any

from fedvra.cli._options import parse_seeds
from fedvra.engines.federation import Federation
from fedvra.runs.config import build, configure

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "compression.json"
PAPER = {"gamma": 0.1, "a": 10, "d": 10}
TARGETS = (90, 95, 97)
MESSAGES = {"32": None, "8": "quantize:8", "4": "quantize:4", "2": "quantize:2", "4 of 37%": "topk:0.37+quantize:4"}
"""Bits per number, perhaps of the largest alone, and how to ask for them."""
Run = dict[str, Any]


def play(options: dict[str, Any], rounds: int) -> Run:
    """Up to ``rounds`` rounds, fewer once the last target is reached: the round and the megabytes of upload of each."""
    found: Run = {"rounds": {}, "MB": {}, "best": 0.0}
    up = 0
    with closing(Federation(build(configure(options)), workers=1)) as federation:
        while federation.state.round < rounds and str(TARGETS[-1]) not in found["rounds"]:
            record = federation.round()
            up += record["bytes_up"]
            accuracy = record.get("model_accuracy", record["test_accuracy"])
            found["best"] = max(found["best"], accuracy)
            for target in TARGETS:
                if accuracy >= target / 100 and str(target) not in found["rounds"]:
                    found["rounds"][str(target)] = record["round"]
                    found["MB"][str(target)] = round(up / 1e6, 2)
    return {**found, "played": federation.state.round}


def options_of(algorithm: str, bits: str, seed: int) -> dict[str, Any]:
    said: dict[str, Any] = {"task": "mnist", "algorithm": algorithm.partition(" ")[0], "seed": seed}
    if algorithm != "fedvra auto":
        said["deploy"] = "x0"  # as in the paper's tables
    if algorithm == "fedvra paper":
        said["set"] = PAPER
    return {**said, "compress": MESSAGES[bits]}


def study(algorithms: Iterable[str], widths: str, seeds: Iterable[int], rounds: int) -> None:
    runs = stored()
    for seed in seeds:
        for algorithm in algorithms:
            for bits in widths.split(","):
                name = f"{algorithm}, {bits} bits, seed {seed}"
                if name not in runs:
                    runs[name] = play(options_of(algorithm, bits, seed), rounds)
                    RESULTS.parent.mkdir(parents=True, exist_ok=True)
                    RESULTS.write_text(
                        json.dumps(runs, indent=0).replace(",\n", ", ").replace('}, "fed', '},\n"fed') + "\n"
                    )
                    print(name, runs[name], flush=True)


def stored() -> dict[str, Run]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def table() -> str:
    """One row per algorithm and bits, means over the seeds there are; a dash where a target was not reached by all."""
    runs = stored()
    lines = [
        "| algorithm | bits | seeds | rounds to 90 / 95 / 97% | upload to 90 / 95 / 97%, MB |",
        "|---|---|---|---|---|",
    ]
    for algorithm in dict.fromkeys(name.split(", ")[0] for name in runs):
        for bits in MESSAGES:
            own = [run for name, run in runs.items() if name.startswith(f"{algorithm}, {bits} bits")]
            if own:
                rounds = " / ".join(_mean(own, "rounds", target, ".0f") for target in TARGETS)
                upload = " / ".join(_mean(own, "MB", target, ".1f") for target in TARGETS)
                lines.append(f"| {algorithm} | {bits} | {len(own)} | {rounds} | {upload} |")
    return "\n".join(lines)


def _mean(runs: list[Run], what: str, target: int, form: str) -> str:
    reached = [run[what].get(str(target)) for run in runs]
    return "-" if None in reached else format(mean(reached), form)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["paper", widths, seeds]:
            study(["fedvra paper"], widths, parse_seeds(seeds), 150)
        case ["auto", widths, seeds]:
            study(["fedvra auto"], widths, parse_seeds(seeds), 150)
        case ["baselines", widths, seeds]:
            study(["feddyn", "scaffold", "fedavg"], widths, parse_seeds(seeds), 100)
        case ["table"]:
            print(table())
        case _:
            sys.exit(__doc__)
