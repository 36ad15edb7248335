"""Lightning computes gradients within ``optimizer.step(closure)``: they are corrected there, and nothing else is different."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvra as fv

pl = pytest.importorskip("pytorch_lightning")


class Lit(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class Hooked(pl.Callback):  # type: ignore[misc, name-defined]
    def __init__(self, work: fv.LocalWork) -> None:
        self.work = work

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.work.hook(trainer.optimizers[0])


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("algorithm", [fv.Scaffold(), fv.FedDyn(alpha=0.5)], ids=repr)
def test_a_trainer_gives_the_x0_of_the_librarys_own_steps(algorithm: fv.Algorithm) -> None:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    rng = np.random.default_rng(0)
    split = fv.split((rng.normal(size=(60, 4)), rng.integers(0, 3, 60)), fv.IID(), clients=3, seed=0)

    def train(work: fv.LocalWork) -> Tensor:
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        trainer = pl.Trainer(max_epochs=3, accelerator="cpu", callbacks=[Hooked(work)], **dict.fromkeys(quiet, False))
        model = work.model(Lit(net()))
        trainer.fit(model, torch.utils.data.DataLoader(work.dataset(), batch_size=100))
        return work.move()

    own, known = (
        fv.simulate(
            algorithm,
            problem=fv.Supervised(net(), weight_decay=1e-2),
            data=split,
            sampler=fv.Uniform(2),
            work=fv.Steps(3),
            lr=0.05,
            rounds=3,
            workers=1,
            local=local,
        )
        for local in (fv.Loop(train), fv.SGD(momentum=0.9))
    )
    assert torch.allclose(own.x0, known.x0, rtol=0, atol=1e-12)
    assert torch.allclose(own.lam, known.lam, rtol=0, atol=1e-11)
