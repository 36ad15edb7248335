"""The yardstick: a bare PyTorch loop, as fast as one writes it by hand, with nothing federated but the mean.

Data as ready float tensors, one model per process, 2 processes x 1 thread, autograd + SGD, channels_last for convolutions.
It keeps no state per client, draws from the global generator, checks nothing, and imports nothing of fedvra. `fedvra bench`
loads this file and times its rounds between those of the engine.

    python benchmarks/bare.py w1
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn


class Bare:
    """Processes that each train their share of a round's clients and add up the models."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        inputs: Tensor,
        targets: Tensor,
        clients: int,
        cohort: int,
        epochs: int,
        batch_size: int,
        lr: float = 0.01,
        weight_decay: float = 1e-3,
        processes: int = 2,
    ) -> None:
        self.make_model, self.epochs, self.batch_size = make_model, epochs, batch_size
        self.lr, self.weight_decay = lr, weight_decay
        self.clients, self.cohort = clients, cohort
        size = len(inputs) // clients
        if inputs.ndim == 4 and inputs.shape[1] > 1:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        self.parts = [(inputs[k * size : (k + 1) * size], targets[k * size : (k + 1) * size]) for k in range(clients)]
        self.x0 = [p.detach().clone().share_memory_() for p in averaged(make_model())]
        self.sums = [[torch.zeros_like(p).share_memory_() for p in self.x0] for _ in range(processes)]
        context = multiprocessing.get_context("fork")
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._work, args=(theirs, rank, [*self.pipes, ours]), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def round(self) -> float:
        """One round; returns its seconds."""
        started = time.perf_counter()
        cohort = torch.randperm(self.clients)[: self.cohort].tolist()
        for rank, pipe in enumerate(self.pipes):
            pipe.send(cohort[rank :: len(self.pipes)])
        for pipe in self.pipes:
            pipe.recv()
        for k, x in enumerate(self.x0):
            x.copy_(sum(part[k] for part in self.sums) / self.cohort)
        return time.perf_counter() - started

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.join()

    def _work(self, pipe: Connection, rank: int, inherited: list[Connection]) -> None:
        for other in inherited:
            other.close()
        torch.set_num_threads(1)
        model = self.make_model()
        if any(isinstance(m, nn.Conv2d) for m in model.modules()):
            model = model.to(memory_format=torch.channels_last)
        tensors = averaged(model)
        optimiser = torch.optim.SGD(model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        while True:
            try:
                cohort = pipe.recv()
            except EOFError:
                return
            for total in self.sums[rank]:
                total.zero_()
            for client in cohort:
                with torch.no_grad():
                    for p, x in zip(tensors, self.x0, strict=True):
                        p.copy_(x)
                inputs, targets = self.parts[client]
                for _ in range(self.epochs):
                    for rows in torch.randperm(len(inputs)).split(self.batch_size):
                        loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
                        optimiser.zero_grad()
                        loss.backward()
                        optimiser.step()
                with torch.no_grad():
                    for total, p in zip(self.sums[rank], tensors, strict=True):
                        total += p
            pipe.send(None)


def averaged(model: nn.Module) -> list[Tensor]:
    """What the mean is taken over: parameters and BatchNorm's running statistics."""
    return [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]


if __name__ == "__main__":
    from fedvra.bench.workloads import WORKLOADS, bare_of

    bare = bare_of(WORKLOADS[sys.argv[1]])
    seconds = sorted(bare.round() for _ in range(10))
    print(f"{sys.argv[1]}: {seconds[5]:.4f} s per round (median of 10)")
    bare.close()
