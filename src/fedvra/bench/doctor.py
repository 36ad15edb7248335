"""Does a device compute what the CPU computes, and how fast? Rounds on both, for a person who has one."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

import fedvra as fv
from fedvra.bench.workloads import ALGORITHMS, WORKLOADS, Workload
from fedvra.core import accelerators
from fedvra.core.errors import require
from fedvra.engines.federation import Federation
from fedvra.engines.pool import resolve_device

NETWORKS = ("w1", "w2", "w4", "w7")
"""Whose networks are compared: an MLP, a CNN, one with BatchNorm, one with dropout."""
TOLERANCE = 1e-9
"""Relative to the length of the move of x0, in float64. In float32 a few rounds of a CNN magnify roundings to 1e-2, and
GPUs may multiply with fewer digits still."""
RANDOM = ("w7",)
"""Networks that draw numbers: a device has a generator of its own, so only paths are compared."""


@dataclass(frozen=True)
class Comparison:
    """The same few rounds on the CPU and on the device."""

    network: str
    algorithm: str
    apart: float
    """|x0 - x0 on the CPU| over the length of its move since the start."""
    paths: tuple[str, str]
    """How local steps were taken, on the CPU and on the device."""
    good: bool


@dataclass(frozen=True)
class Timing:
    """A workload of ``fedvra bench``."""

    workload: str
    cpu_seconds: float
    device_seconds: float
    """Per round, the median of several."""


def about(device: torch.device) -> dict[str, Any]:
    """What to say of the machine in a report."""
    found = {
        "fedvra": fv.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "device": str(device),
    }
    if device.type != "cpu":
        module = torch.get_device_module(device)
        free, total = module.mem_get_info(device)
        found |= {
            "name": module.get_device_name(device),
            "free_gb": f"{free / 1e9:.1f}",
            "total_gb": f"{total / 1e9:.1f}",
        }
    return found


def small(workload: Workload) -> Workload:
    """The same network with few clients, samples and steps."""
    return replace(workload, clients=8, samples=12, cohort=4, epochs=1, batch_size=4)


def compare(name: str, device: str, rounds: int = 3) -> Iterator[Comparison]:
    """Rounds of a small federation with a workload's network in double precision, on the CPU and on the device."""
    workload = small(WORKLOADS[name])
    for algorithm in ALGORITHMS:
        data = workload.data()
        start, here, path_here = _run(workload, algorithm, data, "cpu", rounds)
        _, there, path_there = _run(workload, algorithm, data, device, rounds)
        apart = float((there - here).norm() / (here - start).norm())
        good = path_here == path_there and (name in RANDOM or apart <= TOLERANCE)
        yield Comparison(name, algorithm, apart, (path_here, path_there), good)


def _run(
    workload: Workload, algorithm: str, data: Any, device: str, rounds: int
) -> tuple[torch.Tensor, torch.Tensor, str]:
    experiment = workload.experiment(ALGORITHMS[algorithm](), data, fv.SolverSettings(device=device))
    problem = fv.Supervised(lambda: workload.make_model().double(), weight_decay=1e-3, buffers=workload.buffers)
    with closing(Federation(replace(experiment, problem=problem), workers=1)) as federation:
        start = federation.state.x0.cpu().double()
        for _ in range(rounds):
            federation.round()
        return start, federation.state.x0.cpu().double(), federation.solver.path.name


def timed(name: str, device: str, passes: int = 5) -> Timing:
    """Rounds of FedVRA, on the CPU (all cores) and on the device (one process)."""
    workload = WORKLOADS[name]
    # A process of its own, which sees no device and may therefore fork workers.
    with (
        accelerators.own_process(),
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere,
    ):
        accelerators.hide()
        on_the_cpu = elsewhere.submit(_seconds, workload, "cpu", passes).result()
    return Timing(name, on_the_cpu, _seconds(workload, device, passes))


def _seconds(workload: Workload, device: str, passes: int) -> float:
    """The median round, after a first one."""
    experiment = workload.experiment(ALGORITHMS["fedvra"](), workload.data(), fv.SolverSettings(device=device))
    found = []
    with closing(Federation(experiment)) as federation:
        federation.round()
        for _ in range(passes):
            begun = time.perf_counter()
            federation.round()  # ends with a look at x0, so the device has finished
            found.append(time.perf_counter() - begun)
    return median(found)


def examine(device: str, workloads: tuple[str, ...], passes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """All of it, one finding after the other: ("about" | "comparison" | "timing", what was found)."""
    place = resolve_device(device)
    require(passes >= 1, f"passes must be at least 1, got {passes}.")
    yield "about", about(place)
    for name in NETWORKS:
        for comparison in compare(name, device):
            yield "comparison", asdict(comparison)
    for name in workloads:
        yield "timing", asdict(timed(name, device, passes))
