"""What is frozen stays frozen, is not sent, and is the same when a run is resumed or done elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.core.errors import FedvraError
from fedvra.engines import checkpoint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.flower import Strategy, client_app
from fedvra.runs.config import configure
from fedvra.state.frozen import frozen_hash
from fedvra.studies.execution import execute
from flower_grid import FakeGrid, Node

RNG = np.random.default_rng(0)
INPUTS, TARGETS = RNG.normal(size=(60, 6)).astype(np.float32), RNG.integers(0, 3, 60)


class Adapted(nn.Module):
    """A frozen backbone with a constant mask, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, 3)
        self.register_buffer("mask", torch.arange(8) % 2 == 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.backbone(x)).masked_fill(self.mask, 0.0))


def experiment(model: nn.Module | type[nn.Module] = Adapted) -> Experiment:
    return Experiment(
        algorithm=fv.FedVRA(gamma=0.1, a=5, d=2),
        problem=fv.Supervised(model, weight_decay=0.1),
        data=fv.split((INPUTS, TARGETS), fv.IID(), clients=6, seed=0),
        sampler=fv.Uniform(3),
        work=fv.Steps(2),
        lr=0.1,
        batch_size=5,
        seed=4,
    )


def test_a_checkpoint_keeps_what_is_frozen_by_its_hash(tmp_path: Path) -> None:
    first = Federation(experiment(), workers=1)
    for _ in range(2):
        first.round()
    assert len(first.state.x0) == 27, "only the head is trained"
    checkpoint.save(first, tmp_path / "checkpoint")
    first.close()
    (kept,) = tmp_path.glob("frozen-*.safetensors")
    frozen = first.experiment.problem.frozen(4)
    assert set(frozen) == {"backbone.weight", "backbone.bias", "mask"}
    assert frozen_hash(frozen).startswith(kept.stem.removeprefix("frozen-"))

    again = Federation(experiment(), workers=1)
    assert checkpoint.restore(again, tmp_path / "checkpoint") == 2, "made under the same seed, it is the same"
    again.close()
    torch.manual_seed(11)
    other = Federation(experiment(Adapted()), workers=1)
    with pytest.raises(FedvraError, match=f"is not what the run was started with.*{kept.name}"):
        checkpoint.restore(other, tmp_path / "checkpoint")
    other.close()


def test_a_node_whose_frozen_part_differs_does_not_work(tmp_path: Path) -> None:
    def run(folder: Path, strange: set[int]) -> Strategy:
        apps = []
        for client in range(3):
            torch.manual_seed(7 if client in strange else 8)
            problem = fv.Supervised(Adapted(), weight_decay=0.1)
            data = fv.Dataset("own", torch.as_tensor(INPUTS), torch.as_tensor(TARGETS))
            apps.append(client_app(problem=problem, data=data))
        nodes = {100 + i: Node(i, folder / f"node{i}", app) for i, app in enumerate(apps)}
        torch.manual_seed(8)
        strategy = Strategy(
            fv.FedVRA(gamma=0.5, a=2), problem=fv.Supervised(Adapted(), weight_decay=0.1), clients=3,
            sampler=fv.Full(), work=fv.Steps(2), lr=0.1, batch_size=5, folder=folder / "books", wait=0,
        )  # fmt: skip
        strategy.start(FakeGrid(nodes), num_rounds=2, timeout=0.01)
        return strategy

    good = run(tmp_path / "good", set())
    assert [r["counted"] for r in good.records] == [[0, 1, 2]] * 2
    assert len(good.books.x0) == 27
    assert len(list((tmp_path / "good").rglob("frozen-*.safetensors"))) == 3
    bad = run(tmp_path / "bad", {1})
    assert [r["counted"] for r in bad.records] == [[0, 2]] * 2


def test_a_runs_summary_says_which_path_it_took(tmp_path: Path) -> None:
    summary = execute(
        configure({"task": "digits", "rounds": 1, "clients": 20, "cohort": 4, "workers": 1}), tmp_path / "a"
    )
    assert (summary.path, summary.path_reason) == ("block", "")
