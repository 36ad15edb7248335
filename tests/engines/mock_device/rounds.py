"""Whole rounds on the mock device and on the CPU, in a process of their own: ``python rounds.py`` prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from loaded import FREE, torch  # first
from torch import nn

import fedvra as fv
from fedvra.algorithms.base import REGISTRY

PATHS = ("eager", "traced", "block")
SEEN = ("diagnostics", "clients", "train_losses", "cost")
"""What callbacks and metrics add to records."""


def counts() -> list[int]:
    return list(torch.ops.mock_device.counts())


def data(clients: int = 8, **split: Any) -> fv.FederatedData:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(160, 1, 6, 6, generator=generator)
    targets = torch.randint(0, 3, (160,), generator=generator)
    return fv.split((inputs, targets), fv.IID(), clients=clients, seed=0, test=(inputs[:40], targets[:40]), **split)


def network(kind: str = "plain") -> nn.Module:
    torch.manual_seed(1)
    head = [nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3)]
    if kind == "dropout":
        head.insert(3, nn.Dropout(0.3))
    if kind == "batchnorm":
        head.insert(2, nn.BatchNorm1d(8))
    if kind == "conv":
        head = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*head)


def run(device: str, algorithm: fv.Algorithm, path: str = "auto", kind: str = "plain", **options: Any) -> fv.History:
    given: dict[str, Any] = {
        "problem": fv.Supervised(
            network(kind), loss=nn.functional.cross_entropy, buffers="average" if kind == "batchnorm" else "refuse"
        ),
        "data": data(),
        "sampler": fv.Full() if algorithm.everyone_takes_part else fv.Uniform(4),
        "work": fv.Steps(3),
        "lr": 0.1,
        "batch_size": 5,
        "rounds": 3,
        "seed": 0,
    }
    given.update(options)
    if callable(given["problem"]):  # one that is made anew for each of two runs
        given["problem"] = given["problem"]()
    return fv.simulate(algorithm, solver=fv.SolverSettings(device=device, path=path), **given)


def numbers(tree: Any) -> Iterator[float]:
    """All that are in there."""
    if isinstance(tree, dict | list):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from numbers(each)
    elif tree is not None:
        yield float(tree)


def compared(**options: Any) -> dict[str, Any]:
    """The same rounds on both: how far apart x0 and the duals are, and the paths."""
    here, there = run("cpu", **options, workers=1), run("cuda", **options)
    apart = [(here.x0 - there.x0.cpu()).abs().max().item()]
    apart += [(row.cpu() - there.duals[client].cpu()).abs().max().item() for client, row in here.duals.items()]
    both = [(a["train_loss"], b["train_loss"]) for a, b in zip(here.metrics, there.metrics, strict=True)]
    losses = [0.0 if a is None else abs(a - b) for a, b in both]  # what is private has none
    accuracies = [record["test_accuracy"] for record in there.metrics]
    seen = [list(numbers([[r.get(name) for name in SEEN] for r in history.metrics])) for history in (here, there)]
    looked = [abs(a - b) for a, b in zip(*seen, strict=True)]
    return {
        "apart": max(*apart, *losses, *looked),
        "paths": [here.path.name, there.path.name],
        "accuracy": accuracies == [record["test_accuracy"] for record in here.metrics],
    }


def copies(path: str, cohort: int) -> list[float]:
    """Copies per round to the device, to the host, and to the host with nobody waiting."""

    def in_all(rounds: int) -> list[int]:
        before = counts()
        run("cuda", fv.FedVRA(), path, data=data(16), sampler=fv.Uniform(cohort), rounds=rounds)
        return [b - a for a, b in zip(before, counts(), strict=True)][:3]

    few, many = in_all(3), in_all(6)
    return [(b - a) / 3 for a, b in zip(few, many, strict=True)]


def largest_of(cohort: int) -> int:
    """Bytes of the largest tensor that a run with so many clients in a cohort has on the device."""
    run("cuda", fv.FedVRA(), "traced", data=data(16), sampler=fv.Uniform(cohort), rounds=1)
    return counts()[3]


def refuses(case: Callable[[], object]) -> str:
    try:
        case()
    except RuntimeError as error:
        return str(error)
    return ""


CASES: dict[str, dict[str, Any]] = {
    **{
        f"{name}, {path}": {"algorithm": REGISTRY.get(name)(), "path": path}
        for name in REGISTRY.names()
        for path in PATHS
        if name not in ("fedvra-u",)
    },
    **{f"{kind} network": {"algorithm": fv.FedVRA(), "kind": kind} for kind in ("conv", "batchnorm", "dropout")},
    "momentum": {"algorithm": fv.FedVRA(), "local": fv.SGD(momentum=0.9)},
    "Adam": {"algorithm": fv.FedAvg(), "local": fv.Adam(), "lr": 0.01},
    "unequal work": {
        "algorithm": fv.FedVRA(),
        "work": fv.Steps(torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]]).repeat(3, 1).numpy()),
    },
    "one step each": {"algorithm": fv.FedVRA(), "work": fv.Steps(1), "path": "block"},
    "compressed": {"algorithm": fv.FedVRA(), "compress": fv.Quantize(bits=4), "compress_down": "int8"},
    "compressed without duals": {"algorithm": fv.FedAvg(), "compress": fv.TopK(0.2)},
    "refusals": {"algorithm": fv.FedVRA(), "refuse": fv.MedianNorm(3)},
    "lost replies": {"algorithm": fv.FedVRA(), "drop": 0.3},
    "state in bfloat16": {"algorithm": fv.FedVRA(), "state_dtype": torch.bfloat16},
    "semi-supervised": {"algorithm": fv.FedVRAU(), "problem": lambda: fv.SemiSupervised(network(), hidden=0.6)},
    "mean of the clients' models": {"algorithm": fv.FedVRA(), "deploy": "mean"},
    "running mean": {"algorithm": fv.FedAvg(), "deploy": "ema:0.9"},
    "private records": {"algorithm": fv.FedVRA(), "privacy": fv.RecordDP(clip=1, noise=1)},
    "power of choice": {"algorithm": fv.FedAvg(), "sampler": fv.PowerOfChoice(2, 5)},
    "diagnostics": {"algorithm": fv.FedVRA(), "diagnostics": 1},
    "diagnostics of a network with statistics": {"algorithm": fv.FedVRA(), "kind": "batchnorm", "diagnostics": 2},
    "clients' own results": {
        "algorithm": fv.FedVRA(),
        "callbacks": [fv.ClientResults(1, tune=2)],
        "data": data(test_share=0.3),
    },
    "losses of clients": {"algorithm": fv.FedVRA(), "callbacks": [fv.TrainLosses()]},
    "a figure of one's own": {"algorithm": fv.FedVRA(), "metrics": {"cost": nn.functional.cross_entropy}},
    "an optimiser of torch's": {
        "algorithm": fv.FedVRA(gamma=0.1, a=10, d=10),
        "local": fv.Torch(lambda parameters: torch.optim.RMSprop(parameters, lr=0.01)),
    },
}


def main() -> None:
    largest = largest_of(4)  # before anything larger was there
    found = {name: compared(**case) for name, case in CASES.items()}
    FREE["bytes"] = 0  # clients' rows do not fit on the device
    found["rows in the host's memory"] = compared(algorithm=fv.FedVRA())
    streamed = copies("traced", 8)
    found["rows on disk"] = compared(algorithm=fv.FedVRA(), memory_limit=0)
    FREE["bytes"] = 1 << 30
    x = torch.ones(3, device="cuda")
    report = {
        "cases": found,
        "copies": {path: {m: copies(path, m) for m in (4, 8, 16)} for path in PATHS},
        "streamed": streamed,
        "largest": largest,
        "parameters": run("cuda", fv.FedVRA(), rounds=1).x0.numel(),
        "mixing": refuses(lambda: x + torch.ones(3)),
        "mixing in place": refuses(lambda: torch.ones(3, 3).mm(torch.ones(3, 3, device="cuda"))),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
