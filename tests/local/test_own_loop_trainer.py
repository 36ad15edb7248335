"""A HuggingFace Trainer keeps its loop too: the optimiser that it is given is hooked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvra as fv

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.out(torch.tanh(self.hidden(inputs)))
        return outputs


class ForTrainer(nn.Module):
    """As a Trainer wants it: the loss comes with the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {"inputs": torch.stack([x for x, _ in samples]), "labels": torch.stack([y for _, y in samples])}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trainer_gives_the_x0_of_the_librarys_own_steps(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    split = fv.split((inputs, targets), fv.IID(), clients=3, seed=0)

    def train(work: fv.LocalWork) -> Tensor:
        model = work.model(ForTrainer())
        optimizer = work.hook(torch.optim.SGD(model.parameters(), lr=work.eta, momentum=0.9))
        constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            num_train_epochs=3,
            per_device_train_batch_size=100,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer: Any = transformers.Trainer(model, arguments, collate, work.dataset(), optimizers=(optimizer, constant))
        trainer.train()
        return work.move()

    own, known = (
        fv.simulate(
            fv.Scaffold(),
            problem=fv.Supervised(Net, weight_decay=1e-2),
            data=split,
            sampler=fv.Uniform(2),
            work=fv.Steps(3),
            lr=0.05,
            rounds=2,
            workers=1,
            local=local,
        )
        for local in (fv.Loop(train), fv.SGD(momentum=0.9))
    )
    assert torch.allclose(own.x0, known.x0, rtol=0, atol=1e-5)
    assert torch.allclose(own.lam, known.lam, rtol=0, atol=1e-4)
