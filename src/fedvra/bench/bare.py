"""The yardstick: a bare PyTorch loop, as fast as one writes it by hand, with nothing federated but the mean.

Data as ready float tensors, one model per process, processes of one thread, autograd and two lines of SGD (faster here than
``torch.optim.SGD``, fused or not), channels_last for convolutions. Clients belong to a process and take turns in a shuffled
order. Without state it is FedAvg. With state it is SCAFFOLD: every client's control variate is an entry of a dictionary in the
process that the client belongs to. It draws from the global generator, checks nothing, and imports nothing of fedvra.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
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
        stateful: bool = False,
    ) -> None:
        self.make_model, self.epochs, self.batch_size = make_model, epochs, batch_size
        self.lr, self.shrink = lr, 1 - lr * weight_decay
        self.clients, self.cohort, self.stateful = clients, cohort, stateful
        size = len(inputs) // clients
        self.local_steps = epochs * -(-size // batch_size)
        if inputs.ndim == 4 and inputs.shape[1] > 1:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        self.parts = [(inputs[k * size : (k + 1) * size], targets[k * size : (k + 1) * size]) for k in range(clients)]
        self.x0 = [shared(p) for p in averaged(make_model())]
        self.control = [shared(torch.zeros_like(x)) for x in self.x0] if stateful else []
        self.sums = [[shared(x) for x in self.x0] for _ in range(processes)]
        self.turns = [take_turns(range(rank, clients, processes)) for rank in range(processes)]
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

    def round(self) -> None:
        """One round."""
        count = len(self.pipes)
        for rank, pipe in enumerate(self.pipes):
            share = len(range(rank, self.cohort, count))
            pipe.send([next(self.turns[rank]) for _ in range(share)])
        for pipe in self.pipes:
            pipe.recv()
        means = [sum(rest, first) / self.cohort for first, *rest in zip(*self.sums, strict=True)]
        for c, x, mean in zip(self.control, self.x0, means, strict=False):  # c + m/N * mean(c_i+ - c_i)
            change = (x - mean) / (self.local_steps * self.lr) - c
            c.add_(change, alpha=self.cohort / self.clients)
        for x, mean in zip(self.x0, means, strict=True):
            x.copy_(mean)

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
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        tensors = averaged(model)
        trained: list[Tensor] = list(model.parameters())
        controls: dict[int, list[Tensor]] = {}
        """c_i of the clients that were met."""
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
                if self.stateful:
                    self._scaffold(model, trained, client, controls)
                else:
                    self._train(model, trained, client, None)
                with torch.no_grad():
                    for total, p in zip(self.sums[rank], tensors, strict=True):
                        total += p
            pipe.send(None)

    def _train(self, model: nn.Module, trained: list[Tensor], client: int, moves: list[Tensor] | None) -> None:
        """Local steps; ``moves`` are added to every one of them."""
        inputs, targets = self.parts[client]
        for _ in range(self.epochs):
            for rows in torch.split(torch.randperm(len(inputs)), self.batch_size):
                loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
                gradients = torch.autograd.grad(loss, trained)
                with torch.no_grad():
                    for p, gradient in zip(trained, gradients, strict=True):
                        p.mul_(self.shrink).add_(gradient, alpha=-self.lr)
                    for p, move in zip(trained, moves or (), strict=False):
                        p.add_(move)

    def _scaffold(
        self, model: nn.Module, trained: list[Tensor], client: int, controls: dict[int, list[Tensor]]
    ) -> None:
        """SCAFFOLD with option II: steps by g - c_i + c, then c_i+ = c_i - c + (x0 - x_i) / (K*lr)."""
        own = controls.get(client)
        # c_i - c; a client that is met for the first time has c_i = 0.
        ahead = [-c for c in self.control] if own is None else [a - c for a, c in zip(own, self.control, strict=True)]
        self._train(model, trained, client, [self.lr * h for h in ahead[: len(trained)]])
        with torch.no_grad():
            scale = 1 / (self.local_steps * self.lr)
            for h, x, p in zip(ahead, self.x0, trained, strict=False):
                h.add_(x, alpha=scale).sub_(p, alpha=scale)
        controls[client] = ahead


def averaged(model: nn.Module) -> list[Tensor]:
    """What the mean is taken over: parameters and BatchNorm's running statistics."""
    return [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]


def shared(values: Tensor) -> Tensor:
    """A copy that all processes see."""
    copy = values.detach().clone()
    copy.share_memory_()  # type: ignore[no-untyped-call]
    return copy


def take_turns(clients: range) -> Iterator[int]:
    """Everybody once in a shuffled order, then again in another."""
    while True:
        for place in torch.randperm(len(clients)).tolist():
            yield clients[place]
