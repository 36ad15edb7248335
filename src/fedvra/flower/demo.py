"""What ``fedvra federation demo`` runs: FedVRA on handwritten digits, each node with a file of its own.

The functions here are those of an ordinary Flower app. A copy of the app that refers to them is written to the demo's
folder, because ``flwr run`` takes a folder; ``examples/flower`` is one to start from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedvra.algorithms.fedvra import FedVRA
from fedvra.core.errors import FedvraError
from fedvra.data.dataset import Dataset, FederatedData, split
from fedvra.data.partitions import Dirichlet
from fedvra.data.sources import load
from fedvra.flower.launcher import LocalFederation
from fedvra.flower.mask_keys import make_key
from fedvra.flower.mask_table import MaskedSum
from fedvra.flower.masked_node import MASK_KEY, PEERS
from fedvra.flower.node import client_app
from fedvra.flower.strategy import Strategy
from fedvra.models.mlp import mlp
from fedvra.problems.supervised import Supervised
from fedvra.samplers import Full
from fedvra.samplers.work import Epochs

PREFIX = "fedvra: "
"""How the lines of the ServerApp begin that are for the user."""
PROJECT = """\
[project]
name = "fedvra-digits"
version = "1.0.0"
description = "FedVRA on handwritten digits."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedvra"

[tool.flwr.app.components]
serverapp = "digits:server"
clientapp = "digits:client"

[tool.flwr.app.config]
nodes = 3
rounds = 5
folder = ""
masked = false
"""
MODULE = """\
from fedvra.flower.demo import make_client, make_server

server = make_server()
client = make_client()
"""
SHAPE, CLASSES = (1, 8, 8), 10


def problem() -> Supervised:
    return Supervised(lambda: mlp(SHAPE, CLASSES), weight_decay=1e-3)


def divided(nodes: int) -> FederatedData:
    """Digits, partitioned among the nodes by Dirichlet(0.2): each sees mostly a few of the ten."""
    return split(load("digits"), Dirichlet(0.2), clients=nodes, seed=0)


def load_shard(context: Context) -> Dataset:
    with np.load(str(context.node_config["data-file"])) as file:
        inputs, targets = torch.from_numpy(file["inputs"]), torch.from_numpy(file["targets"])
    return Dataset("digits", inputs, targets, transform=load("digits").transform, classes=CLASSES)


def make_client() -> ClientApp:
    return client_app(problem=problem(), data=load_shard)


def make_server() -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        strategy = Strategy(
            FedVRA(gamma=0.2, a=1.5),  # (a + d)*lr*gamma*Q is at most 0.9 with two nodes or more: Remark 1
            problem=problem(),
            clients=int(config["nodes"]),
            sampler=Full(),
            work=Epochs(1),
            lr=0.05,
            batch_size=20,
            weights="samples",
            folder=str(config["folder"]),
            secure=MaskedSum() if config["masked"] else None,
        )
        strategy.start(
            grid, num_rounds=int(config["rounds"]), timeout=300, evaluate_fn=report(strategy, int(config["rounds"]))
        )
        found = strategy.audit(grid)
        print(f"{PREFIX}audit: |lam - sum omega_i lam_i| is {found.relative:.1e} of |lam|", flush=True)

    return app


def report(strategy: Strategy, rounds: int) -> Any:
    """An ``evaluate_fn`` that measures the accuracy on the test digits and tells the user."""
    digits = load("digits")
    assert digits.test_inputs is not None
    assert digits.test_targets is not None
    inputs, targets = digits.transform(digits.test_inputs, None), digits.test_targets

    begun = [time.monotonic()]

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = problem().module()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            accuracy = float((model(inputs).argmax(1) == targets).double().mean())
        last = strategy.records[-1]
        begun.append(time.monotonic())
        left = max(0, rounds - number) * (begun[-1] - begun[0]) / (len(begun) - 1)
        print(
            f"{PREFIX}round {number} of {rounds}: {len(last['counted'])} of {len(last['cohort'])} nodes counted, "
            f"train loss {last['train_loss'] or float('nan'):.3f}, test accuracy {accuracy:.1%}, "
            f"{begun[-1] - begun[-2]:.1f} s{f'; about {left:.0f} s left' if left else ''}",
            flush=True,
        )
        return MetricRecord({"accuracy": accuracy})

    return evaluate


class DigitsFederation(LocalFederation):
    """A federation on this machine in which node i holds ``shard<i>.npz``."""

    preload = ("fedvra.flower.demo", "sklearn.datasets")

    def node_config(self, i: int) -> str:
        masks = self.folder / "masks"
        keys = f' {MASK_KEY}="{masks / f"client-{i}.key"}" {PEERS}="{masks / "peers.txt"}"' if masks.exists() else ""
        return f'data-file="{self.folder / f"shard{i}.npz"}"{keys}'


def run(
    nodes: int, rounds: int, secure: bool, folder: Path, workers: bool = True, masked: bool = False
) -> Iterator[str]:
    """Start everything, run, stop everything; yields lines for the user as they come."""
    app = folder / "app"
    app.mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "digits.py").write_text(MODULE)
    data = divided(nodes)
    for i in range(nodes):
        rows = data.part(i)
        np.savez(folder / f"shard{i}.npz", inputs=data.dataset.inputs[rows], targets=data.dataset.targets[rows])
        held = np.unique(data.dataset.targets[rows].numpy(), return_counts=True)
        most = ", ".join(str(held[0][k]) for k in np.argsort(-held[1])[:3])
        yield f"node {i} holds {len(rows)} digits, most of them {most}"
    yield f"starting a SuperLink and {nodes} SuperNodes{' behind a gate (TLS, keys, a signed app)' if secure else ''}"
    if masked:
        public = [make_key(i, folder / "masks")[1].read_text() for i in range(nodes)]
        (folder / "masks" / "peers.txt").write_text("".join(public))
    with DigitsFederation(nodes, folder, secure=secure, workers=workers) as federation:
        given = {"nodes": nodes, "rounds": rounds, "folder": folder / "books", "masked": masked}
        heard = []
        with federation.submit(app, given) as process:
            assert process.stdout is not None
            for line in process.stdout:
                heard.append(line)
                if line.startswith(PREFIX):
                    yield line.removeprefix(PREFIX).rstrip()
    (folder / "serverapp.log").write_text("".join(heard))
    if not any("audit:" in line for line in heard):
        last = " ".join("".join(heard[-12:]).split())
        raise FedvraError(f"the run did not finish; the ServerApp's log ends: {last}")
