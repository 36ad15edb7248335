"""Metrics of one's own: what they are given, what they come to, and that it depends on no worker."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch import Tensor, nn

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.local import metrics as metrics_room
from fedvra.show.comparison import Run
from fedvra.show.tuning import Trial

torchmetrics = pytest.importorskip("torchmetrics")


def arrays(samples: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 3, samples)
    return (rng.normal(size=(samples, 4)) + targets[:, None]).astype(np.float32), targets


def f1(outputs: Tensor, targets: Tensor) -> float:
    return float(f1_score(targets.numpy(), outputs.argmax(1).numpy(), average="macro"))


def data(test: int = 2500, **options: Any) -> fv.FederatedData:
    return fv.split(arrays(), fv.IID(), clients=6, test=arrays(test, 1), **options)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def simulate(problem: Any = None, rounds: int = 3, **options: Any) -> fv.History:
    given = {"data": data(), "sampler": fv.Uniform(3), "work": fv.Epochs(1), "lr": 0.1, "batch_size": 10, "workers": 1}
    return fv.simulate(fv.FedVRA(), problem=problem or fv.Supervised(linear()), rounds=rounds, **{**given, **options})


def test_functions_and_objects_see_the_whole_test_set() -> None:
    """2500 samples are three parts; the textbook computes on the final model."""
    given = {"f1": f1, "f1_torch": torchmetrics.F1Score("multiclass", num_classes=3, average="macro")}
    history = simulate(metrics=given)
    inputs, targets = arrays(2500, 1)
    with torch.no_grad():
        outputs = history.model()(torch.from_numpy(inputs))
    expected = f1(outputs, torch.from_numpy(targets))
    assert history.metrics[-1]["model_f1"] == pytest.approx(expected)
    assert history.metrics[-1]["model_f1_torch"] == pytest.approx(expected)
    assert given["f1_torch"].update_count == 0  # the user's object is as it was


def test_they_change_nothing_and_depend_on_no_worker() -> None:
    given = {"f1": f1, "auroc": torchmetrics.AUROC("multiclass", num_classes=3), "n": lambda o, t: len(t)}
    plain, one, two = simulate(), simulate(metrics=given), simulate(metrics=given, workers=2)
    for m, a, b in zip(plain.metrics, one.metrics, two.metrics, strict=True):
        for name in ("test_accuracy", "test_loss"):
            assert m[name] == a[name] == b[name]
        for name in given:
            assert a[name] == b[name]
        assert a["n"] == 2500
    assert torch.equal(plain.x0, one.x0)


def test_several_figures_of_one_metric() -> None:
    both = torchmetrics.MetricCollection(
        {
            "p": torchmetrics.Precision("multiclass", num_classes=3),
            "r": torchmetrics.Recall("multiclass", num_classes=3),
        }
    )
    record = simulate(metrics={"mine": both}, rounds=1).metrics[0]
    assert 0 < record["mine_p"] <= 1
    assert 0 < record["mine_r"] <= 1


def test_every_so_many_rounds() -> None:
    history = simulate(metrics={"f1": f1}, eval_every=2)
    assert ["f1" in m for m in history.metrics] == [False, True, False]


def test_rmse_and_perplexity() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = (x @ np.ones((3, 1), np.float32)) + 1
    held = fv.split((x, y), fv.IID(), clients=4, test=(x, y))
    problem = fv.Supervised(nn.Linear(3, 1), loss=nn.functional.mse_loss)
    record = simulate(problem, data=held, metrics={"rmse": fv.RMSE()}, rounds=2).metrics[-1]
    assert record["rmse"] == pytest.approx(math.sqrt(record["test_loss"]), rel=1e-5)
    assert record["test_accuracy"] is None
    record = simulate(metrics={"perplexity": fv.Perplexity()}, rounds=2).metrics[-1]
    assert record["perplexity"] == pytest.approx(math.exp(record["test_loss"]), rel=1e-5)
    with pytest.raises(UsageError, match="RMSE compares outputs with targets of the same shape"):
        simulate(metrics={"rmse": fv.RMSE()}, rounds=1)


def test_perplexity_leaves_out_what_is_ignored_and_takes_both_orders() -> None:
    scores, targets = torch.randn(4, 5, 7), torch.randint(0, 7, (4, 5))
    targets[0, 2:] = -100
    expected = torch.exp(nn.functional.cross_entropy(scores.movedim(-1, 1).double(), targets)).item()
    for outputs in (scores, scores.movedim(-1, 1)):
        metric = fv.Perplexity()
        metric.update(outputs[:3], targets[:3])
        metric.update(outputs[3:], targets[3:])
        assert metric.compute() == pytest.approx(expected)


class Dicts(nn.Module):
    """Outputs that are no single tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.linear(x), "norm": x.norm(dim=1)}


def test_outputs_of_several_tensors() -> None:
    problem = fv.Supervised(Dicts(), loss=lambda o, t: nn.functional.cross_entropy(o["scores"], t))
    record = simulate(
        problem, rounds=1, metrics={"norm": lambda o, t: o["norm"].mean(), "f1": lambda o, t: f1(o["scores"], t)}
    )
    assert set(record.metrics[0]) >= {"norm", "f1"}


def test_semi_supervised_learning_has_them_too() -> None:
    problem = fv.SemiSupervised(linear(), hidden=0.5)
    record = simulate(problem, rounds=1, metrics={"f1": f1}).metrics[0]
    assert 0 <= record["f1"] <= 1


def test_there_is_a_bound_to_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_room, "MOST_BYTES", 20_000)
    with pytest.raises(UsageError, match="the metric 'f1' is a function of all outputs, which take more than"):
        simulate(metrics={"f1": f1}, rounds=1)
    accumulating = simulate(metrics={"f1": torchmetrics.F1Score("multiclass", num_classes=3)}, rounds=1)
    assert "f1" in accumulating.metrics[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metrics": [f1]}, "metrics must map names to functions"),
        ({"metrics": {"f 1": f1}}, "a metric's name is a word such as f1"),
        ({"metrics": {"test_loss": f1}}, "'test_loss' is a name that records use themselves"),
        ({"metrics": {"f1": "f1"}}, "the metric 'f1' must be a function of outputs and targets"),
        ({"metrics": {"rmse": fv.RMSE}}, "got the class RMSE"),
        ({"metrics": {"all": lambda o, t: o}}, r"the metric 'all' must come to one number.*\[2500, 3\]"),
        ({"metrics": {"f1": f1}, "data": fv.split(arrays(), fv.IID(), clients=6)}, "there are none: name some"),
    ],
)
def test_misuse(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate(rounds=1, **given)


def test_problems_without_outputs_say_so() -> None:
    quadratic = fv.Quadratic(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2))
    with pytest.raises(UsageError, match="look at the outputs of a model, which this problem does not have"):
        simulate(quadratic, data=None, sampler=fv.Full(), work=fv.Steps(1), batch_size=None, metrics={"f1": f1})


# -- tables, targets, tune -------------------------------------------------------------------------------------------------

TASK = """
import torch, fedvra as fv
from functools import partial
from test_metrics import arrays, f1

def make(options):
    data = fv.split(arrays(), options.split, clients=6, test=arrays(300, 1), seed=options.seed, validation=options.validation)
    return fv.Supervised(partial(torch.nn.Linear, 4, 3)), data

defaults = {"clients": 6, "cohort": 3, "split": "iid", "lr": 0.3, "rounds": 4, "workers": 1}
task = fv.Task("points", make, defaults, metrics={"f1": f1})
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    (tmp_path / "mine.py").write_text(TASK)
    return f"{tmp_path / 'mine.py'}:task"


def test_they_are_in_tables_targets_and_reports(task: str, tmp_path: Path) -> None:
    from fedvra.show.gather import gather
    from fedvra.studies.comparing import compare

    found = compare("fedvra,fedavg", {"task": task, "targets": "60,f1=0.3"}, seeds=[0, 1], out=tmp_path / "out")
    assert found.header() == ["algorithm", "final %", "best %", "f1", "rounds to 60%", "rounds to f1 0.3", "seconds"]
    summary = found.runs[0].summary
    assert summary.metrics == {"f1": found.runs[0].metrics[-1]["model_f1"]}
    first = next(m["round"] for m in found.runs[0].metrics if m["model_f1"] >= 0.3)
    assert summary.rounds_to["f1=0.3"] == first
    row = found.rows()[0]
    assert row.metrics["f1"] is not None
    assert row.cells()[3].startswith(f"{row.metrics['f1'].mean:.4f} ±")
    (experiment,) = gather([tmp_path / "out"])
    assert experiment.groups[0].row(experiment.targets).metrics == row.metrics
    assert "F1" in found.report_file.read_text()


def test_tune_ranks_by_them(task: str, tmp_path: Path) -> None:
    from fedvra.studies.tuning import tune

    options = {"task": task, "algorithm": "fedavg"}
    found = tune({"lr": [1e-4, 0.3]}, options, out=tmp_path / "by", metric="f1")
    assert found.best.given == {"lr": 0.3}
    assert "f1" in found.header()
    assert found.to_dict()["judged_by"] == "f1"
    sooner = tune({"lr": [1e-4, 0.3]}, options, out=tmp_path / "target", target="f1=0.3")
    assert sooner.best.given == {"lr": 0.3}
    assert "rounds to f1 0.3" in sooner.header()
    with pytest.raises(UsageError, match="tune goes by 'auc', which the records do not have"):
        tune({"lr": [0.05]}, options, out=tmp_path / "no", metric="auc")


def test_validation_data_choose_where_there_are_some(task: str, tmp_path: Path) -> None:
    from fedvra.studies.tuning import tune

    found = tune({"lr": [1e-4, 0.3]}, {"task": task, "algorithm": "fedavg", "validation": 0.2}, out=tmp_path / "out")
    assert found.to_dict()["judged_by"] == "validation_accuracy"
    assert "validation %" in found.header()
    better = [{"round": 1, "test_accuracy": 0.1, "validation_accuracy": 0.9, "train_loss": 1.0}]
    worse = [{"round": 1, "test_accuracy": 0.9, "validation_accuracy": 0.1, "train_loss": 1.0}]
    summary = found.best.runs[0].summary
    trials = [Trial({}, "", [Run("", summary, metrics)]) for metrics in (worse, better)]
    assert min(trials, key=lambda trial: trial.rank(None)) is trials[1]
    assert min(trials, key=lambda trial: trial.rank(50)) is trials[1]
    assert min(trials, key=lambda trial: trial.rank(None, "test_accuracy")) is trials[0]
