"""The engine beside a bare PyTorch loop, interleaved in one run: the ratio counts, for seconds swing with the machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedvra.bench.against import Checkout
from fedvra.bench.jobs import BareLoop, Job, Simulation
from fedvra.bench.sides import Side, Timed, memory_of_one_side, take_turns
from fedvra.bench.workloads import Workload
from fedvra.core.threads import one_thread

BARE, STATEFUL = "bare", "stateful"
"""The bare loop, and the one that keeps SCAFFOLD's state in a dictionary."""


@dataclass(frozen=True)
class SpeedReport:
    """Everything ``fedvra bench`` prints of one workload."""

    workload: str
    title: str
    workers: int
    path: str
    client_steps: int
    """Client-steps in a round."""
    seconds: dict[str, float]
    """Median seconds per round of each contender."""
    processor_seconds: dict[str, float]
    """The same of all its processes together: what a round costs on a machine that is busy with other things."""
    ratio: dict[str, dict[str, float]]
    """By opponent and algorithm, median over the passes of the opponent's seconds over the algorithm's: above 1 is faster."""
    processor_ratio: dict[str, dict[str, float]]
    """The same of processor time."""
    fedvra_over_fedavg: float | None
    """Seconds of the one over those of the other; None where not both were timed."""
    limit_seconds: float
    """A round at the rate at which this machine multiplies large matrices in float32, on all workers."""
    fraction_of_limit: dict[str, float]
    memory_mb: dict[str, float]
    """Of all processes of each contender, at most."""
    startup_seconds: float
    """From data in memory to the end of the first round, of the last algorithm."""
    passes: int
    rounds: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    name: str,
    workload: Workload,
    workers: int,
    passes: int = 7,
    rounds: int = 3,
    algorithms: Sequence[str] = ("fedavg", "fedvra"),
    path: str = "auto",
    precision: str = "float32",
) -> SpeedReport:
    """Time bare loops and the algorithms in turn, ``passes`` times over, ``rounds`` rounds each."""
    memory = memory_of_one_side()
    jobs: dict[str, Job] = {BARE: BareLoop(workload, workers)}
    if workload.cold:
        jobs[STATEFUL] = BareLoop(workload, workers, stateful=True)
    opponents = list(jobs)
    for algorithm in algorithms:
        jobs[algorithm] = Simulation(workload, algorithm, workers, memory, path, precision)
    source = Checkout.present().source
    starts = [partial(Side, each, source, job) for each, job in jobs.items()]
    found = dict(zip(jobs, take_turns(starts, workload, passes, rounds), strict=True))
    seconds = {each: [turn.seconds for turn in timed.turns] for each, timed in found.items()}
    processor = {each: [turn.processor for turn in timed.turns] for each, timed in found.items()}
    limit = limit_seconds(workload, workers)
    last = found[algorithms[-1]]
    return SpeedReport(
        workload=name,
        title=workload.title,
        workers=workers,
        path=last.path,
        client_steps=workload.client_steps,
        seconds=_medians(seconds),
        processor_seconds=_medians(processor),
        ratio={each: {a: _ratio(seconds[each], seconds[a]) for a in algorithms} for each in opponents},
        processor_ratio={each: {a: _ratio(processor[each], processor[a]) for a in algorithms} for each in opponents},
        fedvra_over_fedavg=(
            _ratio(seconds["fedvra"], seconds["fedavg"]) if {"fedvra", "fedavg"} <= seconds.keys() else None
        ),
        limit_seconds=limit,
        fraction_of_limit={each: limit / median(some) for each, some in seconds.items()},
        memory_mb={each: _memory(timed) for each, timed in found.items()},
        startup_seconds=last.startup_seconds,
        passes=passes,
        rounds=rounds,
    )


def _memory(timed: Timed) -> float:
    return max(turn.memory_mb for turn in timed.turns)


def _medians(several: dict[str, list[float]]) -> dict[str, float]:
    return {each: median(some) for each, some in several.items()}


def limit_seconds(workload: Workload, workers: int) -> float:
    """The arithmetic of one round over the machine's rate of multiplying matrices (float32, one thread per worker)."""
    size = min(workload.batch_size, workload.samples)
    # Shapes will do. On the CPU an LSTM would be one kernel that the counter does not know, here it is its matrix products.
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        outputs = workload.make_model()(torch.empty(size, *workload.shape))
        targets = torch.empty(size, dtype=torch.int64)
        torch.nn.functional.cross_entropy(outputs, targets).backward()  # type: ignore[no-untyped-call]
    per_step = float(counter.get_total_flops())
    return per_step * workload.client_steps / (matmul_rate() * workers)


def matmul_rate(size: int = 1024, seconds: float = 0.3) -> float:
    """Floating-point operations per second of one thread on large square matrices; the best of several tries."""
    a, b = torch.rand(size, size), torch.rand(size, size)
    best = float("inf")
    with one_thread():
        stop = time.perf_counter() + seconds
        while best == float("inf") or time.perf_counter() < stop:  # once, however busy the machine is
            begun = time.perf_counter()
            torch.mm(a, b)
            best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def _ratio(above: list[float], below: list[float]) -> float:
    return median(a / b for a, b in zip(above, below, strict=True))
