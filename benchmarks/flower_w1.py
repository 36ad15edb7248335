"""Rounds of a workload in Flower's simulation: FedAvg in its own idiom, a Message API app on its Ray backend.

``benchmarks/cluster.py --flower PYTHON`` starts it with an interpreter that has ``flwr[simulation]`` and torch; it needs
nothing of fedvra. It is spoken to as ``fedvra.bench.contender`` is: sizes first, then numbers of rounds through a pipe. A
client takes the local steps of the bare loop (``fedvra/bench/bare.py``), in one thread, on tensors that its process made
once. Part of a round is waiting: Flower looks for messages and for replies ten times a second.
"""

from __future__ import annotations

import os
import sys
import time
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

FOREVER = 10**9
client_app = ClientApp()


@lru_cache(maxsize=1)
def network(pixels: int) -> nn.Sequential:
    """The MNIST network of the workload; one per process, as in the bare loop."""
    layers = (nn.Linear(pixels, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
    return nn.Sequential(nn.Flatten(), *layers)


@lru_cache(maxsize=1)
def samples(count: int, pixels: int) -> tuple[Tensor, Tensor]:
    """Made-up images and labels, as ready tensors."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn((count, pixels), generator=generator), torch.randint(0, 10, (count,), generator=generator)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Local steps of one client."""
    torch.set_num_threads(1)
    how: Any = message.content["config"]
    size, client = how["samples"], int(context.node_config["partition-id"])
    inputs, labels = (t[client * size : (client + 1) * size] for t in samples(how["clients"] * size, how["pixels"]))
    model, lr = network(how["pixels"]), how["lr"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    shrink, parameters, loss = 1 - lr * how["weight-decay"], list(model.parameters()), torch.zeros(())
    for _ in range(how["epochs"]):
        for rows in torch.split(torch.randperm(size), how["batch-size"]):
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for p, gradient in zip(parameters, gradients, strict=True):
                    p.mul_(shrink).add_(gradient, alpha=-lr)
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": size})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def serve(pipe: Connection) -> None:
    """Run a first round, answer ("ran", (its seconds, "")); for every number k that arrives run k rounds, answer alike."""
    sizes: dict[str, Any] = pipe.recv()
    clients, cohort, actors = sizes["clients"], sizes.pop("cohort"), sizes.pop("actors")
    left, begun = 1, time.perf_counter()
    server_app = ServerApp()

    def after_a_round(number: int, arrays: ArrayRecord) -> None:
        """Where a Flower app looks at the model; called before the first round too."""
        nonlocal left, begun
        left -= number > 0
        if left:
            return
        pipe.send(("ran", (time.perf_counter() - begun, "")))
        try:
            left = pipe.recv()
        except EOFError:  # nobody listens any more; Ray's processes end with this one
            os._exit(0)
        begun = time.perf_counter()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=cohort / clients, fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=clients
        )
        start = ArrayRecord(network(sizes["pixels"]).state_dict())
        strategy.start(grid, start, FOREVER, train_config=ConfigRecord(sizes), evaluate_fn=after_a_round)

    torch.set_num_threads(1)
    ray = {"num_cpus": actors, "address": "local", "log_to_driver": False}
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
    try:
        run_simulation(server_app, client_app, clients, backend_config=resources)
    except Exception as error:  # the near end makes a sentence of it
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    import flower_w1  # by its name, so that Ray's actors find it by that and keep what they have made

    flower_w1.serve(Connection(int(sys.argv[1])))
