"""Tables inside scikit-learn: tumours seen at hospitals, and the progress of diabetes by age group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedvra.tasks.base import TASKS, Task, set_aside

if TYPE_CHECKING:
    from fedvra.data.dataset import Dataset
    from fedvra.problems.base import Problem
    from fedvra.runs.options import RunConfig

TEST_SHARE = 0.2
AGE = 0
"""The column of diabetes that holds the age."""


def table(name: str, inputs: Any, targets: Any) -> tuple[Dataset, Any]:
    """A data set of standardised columns, a fifth for testing, the same on every machine; and which rows are for training."""
    import numpy as np
    import torch

    from fedvra.core.streams import Purpose, stream
    from fedvra.data.dataset import Dataset

    order = stream(0, Purpose.PARTITION).permutation(len(inputs))
    test, train = np.split(order, [round(TEST_SHARE * len(inputs))])
    scaled = (inputs - inputs[train].mean(0)) / inputs[train].std(0)
    rows = [torch.tensor(scaled[part], dtype=torch.float32) for part in (train, test)]
    held = [torch.as_tensor(targets[part]) for part in (train, test)]
    return Dataset(name, rows[0], held[0], rows[1], held[1]), train


def breast_cancer(config: RunConfig) -> tuple[Problem, Any]:
    from functools import partial

    import numpy as np
    from sklearn.datasets import load_breast_cancer

    from fedvra.data.dataset import split
    from fedvra.models import MODELS
    from fedvra.problems.supervised import Supervised

    inputs, labels = load_breast_cancer(return_X_y=True)
    dataset, _ = table("breast-cancer", inputs, labels.astype(np.int64))
    data = split(dataset, config.split, clients=config.clients, seed=config.seed, **set_aside(config))
    return Supervised(partial(MODELS.get(config.model), (30,), 2), weight_decay=config.weight_decay), data


def diabetes(config: RunConfig) -> tuple[Problem, Any]:
    """The target in units of its own deviation, so that a loss of 1 is that of the mean."""
    from functools import partial

    import numpy as np
    from sklearn.datasets import load_diabetes
    from torch import nn

    from fedvra.data.dataset import split
    from fedvra.models import MODELS
    from fedvra.problems.supervised import Supervised

    inputs, progress = load_diabetes(return_X_y=True)
    scaled = ((progress - progress.mean()) / progress.std())[:, None].astype(np.float32)
    dataset, train = table("diabetes", inputs, scaled)
    age = np.argsort(np.argsort(inputs[train, AGE], kind="stable"), kind="stable")
    groups = age * config.clients // len(train)  # as many age groups as clients
    data = split(dataset, config.split, clients=config.clients, seed=config.seed, by=groups, **set_aside(config))
    model = partial(MODELS.get(config.model), (10,), 1)
    return Supervised(model, loss=nn.functional.mse_loss, weight_decay=config.weight_decay), data


def _rmse() -> dict[str, Any]:
    from fedvra.local.metrics import RMSE

    return {"rmse": RMSE()}


TASKS.add(
    "breast-cancer",
    Task(
        "tumours, benign or malignant, from 30 figures at ten hospitals; comes with scikit-learn",
        breast_cancer,
        defaults={
            "clients": 10,
            "cohort": 5,
            "rounds": 30,
            "batch_size": 16,
            "lr": 0.05,
            "model": "linear",
            "split": "dirichlet:0.5",
            "targets": (90, 95, 97),
        },
    ),
)
TASKS.add(
    "diabetes",
    Task(
        "regression: the progress of diabetes, one age group per clinic; comes with scikit-learn",
        diabetes,
        metrics=_rmse,
        defaults={
            "clients": 10,
            "cohort": 5,
            "rounds": 40,
            "batch_size": 16,
            "lr": 0.02,
            "model": "linear",
            "split": "shards:1",
            "targets": (),
        },
    ),
)
