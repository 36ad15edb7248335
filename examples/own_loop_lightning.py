"""The same with Lightning: a LightningModule and a Trainer as they are, and one callback that hooks their optimiser.

pip install pytorch-lightning
python examples/own_loop_lightning.py
"""

import logging
import warnings

import pytorch_lightning as pl
import torch
from own_model_and_data import Net, patients
from torch.nn.functional import cross_entropy

import fedvra as fv


class Diagnosis(pl.LightningModule):
    """Nothing in it knows of federated learning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class Federated(pl.Callback):
    def __init__(self, work: fv.LocalWork) -> None:
        self.work = work

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.work.hook(trainer.optimizers[0])

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, outputs: dict, *_: object) -> None:
        self.work.report(outputs["loss"])


def train(work: fv.LocalWork) -> torch.Tensor:
    model = work.model(Diagnosis())
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", callbacks=[Federated(work)], **quiet)
    trainer.fit(model, torch.utils.data.DataLoader(work.dataset(), batch_size=20, shuffle=True))
    return work.move()


def main(rounds: int = 5) -> fv.History:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    inputs, targets, hospital = patients(800, seed=1)
    history = fv.simulate(
        fv.Scaffold(),
        problem=fv.Supervised(Net),
        data=fv.split((inputs, targets), fv.ByColumn(hospital), test=patients(1000, seed=2)[:2]),
        sampler=fv.Uniform(3),
        work=fv.Epochs(2),
        lr=0.02,
        batch_size=20,
        rounds=rounds,
        workers=1,
        local=fv.Loop(train),
    )
    for record in history.metrics:
        print(f"round {record['round']}  accuracy {record['test_accuracy']:.1%}")
    return history


if __name__ == "__main__":
    main()
