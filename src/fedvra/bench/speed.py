"""The engine beside a bare PyTorch loop, interleaved in one run: the ratio counts, for seconds swing with the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedvra.algorithms.fedavg import FedAvg
from fedvra.algorithms.fedvra import FedVRA
from fedvra.bench.memory import pss_mb
from fedvra.bench.workloads import Workload, bare_of
from fedvra.engines.local import one_thread
from fedvra.federation import Federation
from fedvra.problems.base import SolverSettings

WARM_UP_SECONDS = 2.0


@dataclass
class Contender:
    """One way of playing a round."""

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
    fedvra_over_fedavg: float
    limit_seconds: float
    """A round at the rate at which this machine multiplies large matrices in float32, on all workers."""
    fraction_of_limit: dict[str, float]
    memory_mb: float
    """Proportional set size over all processes of the FedVRA run."""
    startup_seconds: float
    """From nothing but imports to the end of the first round, FedVRA."""
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
) -> SpeedReport:
    """Time bare, FedAvg and FedVRA in turn, ``passes`` times over, ``rounds`` rounds each."""
    data = workload.data()
    started = time.perf_counter()
    fedvra = Federation(workload.experiment(FedVRA(gamma=0.1, a=10, d=10), data, solver), workers)
    fedvra.round()
    startup = time.perf_counter() - started
    visit_everyone(fedvra)
    fedavg = Federation(workload.experiment(FedAvg(), data, solver), workers)
    bare = bare_of(workload)
    contenders = [
        Contender("bare", bare.round, bare.close),
        Contender("fedavg", fedavg.round, fedavg.close),
        Contender("fedvra", fedvra.round, fedvra.close),
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
        memory = pss_mb(os.getpid(), *(p.pid for p in fedvra.processes() if p.pid))
    finally:
        for contender in contenders:
            contender.close()
    bare_seconds, avg_seconds, vra_seconds = (c.seconds for c in contenders)
    limit = limit_seconds(workload, workers)
    return SpeedReport(
        workload=name,
        title=workload.title,
        workers=workers,
        path=fedvra.solver.path,  # type: ignore[attr-defined]
        block=fedvra.solver.width,
        client_steps=workload.client_steps,
        seconds={c.name: median(c.seconds) for c in contenders},
        ratio={c.name: _ratio(bare_seconds, c.seconds) for c in contenders[1:]},
        fedvra_over_fedavg=_ratio(vra_seconds, avg_seconds),
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
    """Give every client a dual, as after many rounds: a first visit also pays for its memory, once per client."""
    duals = federation.stores["duals"]
    zeros = torch.zeros(duals.width, dtype=duals.dtype)
    for client in range(federation.total):
        if client not in duals:
            duals.put(client, zeros)


def limit_seconds(workload: Workload, workers: int) -> float:
    """The arithmetic of one round over the machine's rate of multiplying matrices (float32, one thread per worker)."""
    images, labels = workload.raw()
    size = min(workload.batch_size, workload.samples)
    model = workload.make_model()
    with FlopCounterMode(display=False) as counter:
        outputs = model(workload.transform(images[:size], None, torch.float32))
        torch.nn.functional.cross_entropy(outputs, labels[:size]).backward()  # type: ignore[no-untyped-call]
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
