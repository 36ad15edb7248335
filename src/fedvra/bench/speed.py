"""The engine beside a bare PyTorch loop, interleaved in one run: the ratio counts, for seconds swing with the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedvra.bench.resident import pss_mb
from fedvra.bench.workloads import ALGORITHMS, Workload, bare_of
from fedvra.core.threads import one_thread
from fedvra.engines.federation import Federation
from fedvra.local.protocol import SolverSettings

WARM_UP_SECONDS = 2.0


@dataclass
class Contender:
    """One way of running a round."""

    name: str
    round: Callable[[], Any]
    close: Callable[[], None]
    seconds: list[float] = field(default_factory=list)
    """Per round, one entry per pass."""


@dataclass(frozen=True)
class SpeedReport:
    """Everything ``fedvra bench`` prints of one workload."""

    workload: str
    title: str
    workers: int
    path: str
    block: int
    client_steps: int
    """Client-steps in a round."""
    seconds: dict[str, float]
    """Median seconds per round of each contender."""
    ratio: dict[str, float]
    """Median over the passes of bare / contender: above 1 is faster than bare."""
    fedvra_over_fedavg: float | None
    """Seconds of the one over those of the other; None where not both were timed."""
    limit_seconds: float
    """A round at the rate at which this machine multiplies large matrices in float32, on all workers."""
    fraction_of_limit: dict[str, float]
    memory_mb: float
    """Proportional set size over all processes of the run of the last algorithm."""
    startup_seconds: float
    """From nothing but imports to the end of the first round, of the last algorithm."""
    passes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    name: str,
    workload: Workload,
    workers: int,
    passes: int = 7,
    rounds: int = 3,
    solver: SolverSettings | None = None,
    algorithms: Sequence[str] = ("fedavg", "fedvra"),
) -> SpeedReport:
    """Time bare and the algorithms in turn, ``passes`` times over, ``rounds`` rounds each."""
    data = workload.data()
    started = time.perf_counter()
    federations: dict[str, Federation] = {}
    for algorithm in reversed(algorithms):  # the last one starts with nothing else in memory
        federation = Federation(workload.experiment(ALGORITHMS[algorithm](), data, solver), workers)
        federations[algorithm] = federation
        federation.round()
        if len(federations) == 1:
            startup = time.perf_counter() - started
        visit_everyone(federation)
    last = federations[algorithms[-1]]
    bare = bare_of(workload)
    contenders = [
        Contender("bare", bare.round, bare.close),
        *(Contender(name, federations[name].round, federations[name].close) for name in algorithms),
    ]
    try:
        for contender in contenders:
            settle(contender)
        for _ in range(passes):
            for contender in contenders:
                begun = time.perf_counter()
                for _ in range(rounds):
                    contender.round()
                contender.seconds.append((time.perf_counter() - begun) / rounds)
        memory = pss_mb(os.getpid(), *(p.pid for p in last.processes() if p.pid))
    finally:
        for contender in contenders:
            contender.close()
    seconds = {c.name: c.seconds for c in contenders}
    limit = limit_seconds(workload, workers)
    return SpeedReport(
        workload=name,
        title=workload.title,
        workers=workers,
        path=last.solver.path.name,
        block=last.solver.width(last.next_cohort().steps),
        client_steps=workload.client_steps,
        seconds={c.name: median(c.seconds) for c in contenders},
        ratio={c.name: _ratio(seconds["bare"], c.seconds) for c in contenders[1:]},
        fedvra_over_fedavg=(
            _ratio(seconds["fedvra"], seconds["fedavg"]) if {"fedvra", "fedavg"} <= seconds.keys() else None
        ),
        limit_seconds=limit,
        fraction_of_limit={c.name: limit / median(c.seconds) for c in contenders},
        memory_mb=memory,
        startup_seconds=startup,
        passes=passes,
    )


def settle(contender: Contender) -> None:
    """Rounds before the clock starts: programs are traced, and every process maps the client state it will meet."""
    stop = time.perf_counter() + WARM_UP_SECONDS
    contender.round()
    while time.perf_counter() < stop:
        contender.round()


def visit_everyone(federation: Federation) -> None:
    """Give every client a dual, as after many rounds, where the algorithm keeps any: a first visit also pays for its memory."""
    duals = federation.clients.duals
    if not len(duals):
        return
    zeros = torch.zeros(duals.width, dtype=duals.dtype)
    for client in range(federation.total):
        if client not in duals:
            duals.put([client], [zeros])


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
        while time.perf_counter() < stop:
            begun = time.perf_counter()
            torch.mm(a, b)
            best = min(best, time.perf_counter() - begun)
    return 2 * size**3 / best


def _ratio(above: list[float], below: list[float]) -> float:
    return median(a / b for a, b in zip(above, below, strict=True))
