"""Tasks that run by name and come with what is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedvra.core.errors import UsageError
from fedvra.models import MODELS
from fedvra.runs.config import build, configure
from fedvra.studies.execution import execute
from fedvra.tasks import TASKS


def play(task: str, tmp_path: Any, **options: Any) -> Any:
    config = configure({"task": task, "workers": 1, **options})
    records: list[dict[str, Any]] = []
    execute(config, tmp_path / "run", [records.append])
    return records


def test_breast_cancer_is_told_by_figures(tmp_path: Any) -> None:
    assert play("breast-cancer", tmp_path)[-1]["test_accuracy"] > 0.93


def test_diabetes_comes_near_to_least_squares(tmp_path: Any) -> None:
    found = play("diabetes", tmp_path)[-1]
    data = build(configure({"task": "diabetes"})).data
    x, y = data.dataset.inputs.double(), data.dataset.targets.double()
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    best = torch.linalg.lstsq(torch.cat([x, ones], 1), y).solution
    rows = torch.cat([data.dataset.test_inputs.double(), torch.ones(len(data.dataset.test_inputs), 1)], 1)
    known = float((rows @ best - data.dataset.test_targets).square().mean())
    assert found["test_accuracy"] is None
    assert found["test_loss"] < 1.1 * known < 0.7
    ages = [data.dataset.inputs[data.part(i), 0].mean() for i in range(data.clients)]
    assert len(set(np.round(ages, 1))) > 5, "clinics see patients of different ages"


def test_texts_are_of_topics_and_the_test_does_not_overlap() -> None:
    data = build(configure({"task": "pydoc"})).data
    assert data.clients == 20
    inputs, targets = data.dataset.inputs, data.dataset.targets
    assert inputs.shape[1] == 40
    assert int(targets.max()) < data.dataset.classes == 97
    known = {tuple(row) for row in inputs.tolist()}
    seen = [tuple(row) in known for row in data.dataset.test_inputs.tolist()]
    assert np.mean(seen) < 0.05, "texts repeat each other a little"
    assert build(configure({"task": "pydoc", "split": "iid"})).data.sizes.std() < 1


def test_a_language_model_learns(tmp_path: Any) -> None:
    records = play("pydoc", tmp_path, algorithm="fedavg", rounds=3, cohort=2, steps=8)
    assert records[-1]["test_loss"] < records[0]["test_loss"] < 5
    assert records[0]["path"] != "eager"


def test_a_residual_network_runs(tmp_path: Any) -> None:
    records = play("digits", tmp_path, model="resnet18-gn", rounds=1, cohort=1, steps=1, batch_size=2, eval_every=0)
    assert np.isfinite(records[0]["train_loss"])
    assert TASKS.get("cifar10-resnet").defaults["model"] == "resnet18-gn"


def test_models_say_what_they_need() -> None:
    with pytest.raises(UsageError, match="sequences of symbols"):
        MODELS.get("lstm")((3, 8, 8), 10)
    with pytest.raises(UsageError, match="needs images"):
        MODELS.get("resnet18-gn")((64,), 10)
