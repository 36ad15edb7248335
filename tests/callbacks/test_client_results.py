"""What single clients see: held-out data, clients who never train, personalisation, training losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.runs.config import configure
from fedvra.runs.files import Record, RunFolder
from fedvra.studies.execution import execute, resume

DIGITS = {"task": "digits", "clients": 20, "cohort": 5, "epochs": 1, "workers": 1, "model": "linear", "rounds": 6}


def arrays(samples: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, samples)
    return (rng.normal(size=(samples, 4)) + targets[:, None]).astype(np.float32), targets


def split(**options: Any) -> fv.FederatedData:
    return fv.split(arrays(), fv.Dirichlet(0.5), clients=20, seed=3, **options)


def simulate(data: fv.FederatedData, **options: Any) -> fv.History:
    torch.manual_seed(0)
    given = {"sampler": fv.Uniform(4), "work": fv.Epochs(1), "lr": 0.05, "batch_size": 8, "rounds": 4, "workers": 1}
    return fv.simulate(fv.FedVRA(), problem=fv.Supervised(nn.Linear(4, 3)), data=data, **{**given, **options})


# -- setting data aside ---------------------------------------------------------------------------------------------------


def test_shares_are_disjoint_and_complete() -> None:
    whole, data = split(), split(validation=0.1, test_share=0.25)
    for i in range(20):
        own, kept, test = set(whole.part(i)), set(data.part(i)), set(data.own_test(i))
        apart = own & set(data.validation)
        assert own == kept | test | apart
        assert len(own) == len(kept) + len(test) + len(apart)
        assert kept
        after = len(own) - len(apart)
        assert len(test) == min(int(0.25 * after + 0.5), after - 1)
        assert np.all(np.diff(data.part(i)) > 0)
        assert np.all(np.diff(data.own_test(i)) > 0)
    assert split(test_share=0.25) == split(test_share=0.25)
    assert data.sizes.sum() == len(data.trained)


def test_unseen_clients_come_last_and_hold_what_they_held() -> None:
    whole, data = fv.split(arrays(), fv.Dirichlet(0.5), clients=25, seed=3), split(unseen=5)
    assert (data.clients, len(data.sizes)) == (20, 20)
    parts = {tuple(data.part(i)) for i in range(25)}
    assert parts == {tuple(whole.part(i)) for i in range(25)}
    assert not set(data.trained) & {row for i in range(20, 25) for row in data.part(i)}
    history = simulate(data, sampler=fv.Full(), rounds=1)
    assert history.metrics[0]["cohort"] == list(range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_share": 1.0}, "test_share must be a share in"),
        ({"validation": -0.1}, "validation must be a share in"),
        ({"unseen": 1.5}, "unseen must be a whole number"),
        ({"test_share": 1e-4}, "take a larger share"),
    ],
)
def test_shares_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(**options)


def test_the_validation_part_is_measured_and_not_trained_on() -> None:
    data = split(validation=0.2)
    history = simulate(data)
    record = history.metrics[-1]
    inputs, targets = arrays()
    with torch.no_grad():
        outputs = history.model()(torch.from_numpy(inputs[data.validation]))
    labels = torch.from_numpy(targets[data.validation])
    assert record["model_validation_accuracy"] == pytest.approx(float((outputs.argmax(1) == labels).double().mean()))
    assert record["model_validation_loss"] == pytest.approx(
        float(nn.functional.cross_entropy(outputs, labels)), rel=1e-5
    )


# -- clients' own results ---------------------------------------------------------------------------------------------------


def accuracy_on(model: nn.Module, data: fv.FederatedData, client: int) -> float:
    inputs, targets = arrays()
    rows = data.own_test(client)
    with torch.no_grad():
        return float((model(torch.from_numpy(inputs[rows])).argmax(1).numpy() == targets[rows]).mean())


def test_every_client_is_tested_on_its_own() -> None:
    data = split(test_share=0.3, unseen=4)
    history = simulate(data, callbacks=[fv.ClientResults(every=2)], metrics=None)
    assert ["clients" in m for m in history.metrics] == [False, True, False, True]
    found = history.metrics[-1]["clients"]
    tested = [i for i in range(20) if len(data.own_test(i))]
    values = np.array([accuracy_on(history.model(), data, i) for i in tested])
    weights = [len(data.own_test(i)) for i in tested]
    assert found["count"] == len(tested)
    accuracy = found["accuracy"]
    assert accuracy["mean"] == pytest.approx(values.mean())
    assert accuracy["std"] == pytest.approx(values.std())
    assert accuracy["by_samples"] == pytest.approx(np.average(values, weights=weights))
    assert accuracy["worst_tenth"] == pytest.approx(np.sort(values)[: -(-len(values) // 10)].mean())
    assert accuracy["q90"] == pytest.approx(np.quantile(values, 0.9))
    assert found["loss"]["worst_tenth"] >= found["loss"]["mean"]
    newcomers = [accuracy_on(history.model(), data, i) for i in range(20, 24) if len(data.own_test(i))]
    assert history.metrics[-1]["unseen"]["accuracy"]["mean"] == pytest.approx(np.mean(newcomers))


def test_looking_changes_nothing_and_depends_on_no_worker() -> None:
    data = split(test_share=0.3)
    f1 = {"right": lambda o, t: (o.argmax(1) == t).double().mean()}
    looking = {"callbacks": [fv.ClientResults(2, tune=3), fv.TrainLosses()], "metrics": None}
    plain, one, two = simulate(data), simulate(data, **looking), simulate(data, **looking, workers=2)
    assert torch.equal(plain.x0, one.x0)
    assert torch.equal(plain.x0, two.x0)
    assert one.metrics[-1]["clients"] == two.metrics[-1]["clients"]
    assert one.metrics[-1]["train_losses"] == two.metrics[-1]["train_losses"]
    tested = fv.split(arrays(), fv.Dirichlet(0.5), clients=20, seed=3, test_share=0.3, test=arrays(50))
    record = simulate(tested, callbacks=[fv.ClientResults(2)], metrics=f1).metrics[-1]
    assert record["clients"]["right"] == record["clients"]["accuracy"]


def test_personalisation_is_plain_steps_on_ones_own_data() -> None:
    data = split(test_share=0.3)
    history = simulate(data, callbacks=[fv.ClientResults(4, tune=2)], batch_size=None, work=fv.Steps(1))
    inputs, targets = (torch.from_numpy(a) for a in arrays())
    values = []
    for client in range(20):
        if not len(data.own_test(client)):
            continue
        model = history.model()
        for _ in range(2):
            rows = data.part(client)
            loss = nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), gradients, strict=True):
                    p -= 0.05 * g
        values.append(accuracy_on(model, data, client))
    assert history.metrics[-1]["clients"]["tuned_accuracy"]["mean"] == pytest.approx(np.mean(values), abs=0.02)


def test_some_of_them() -> None:
    history = simulate(split(test_share=0.5), callbacks=[fv.ClientResults(1, clients=5)])
    counts = {m["clients"]["count"] for m in history.metrics}
    assert len(counts) == 1
    assert counts <= {4, 5}


def test_training_losses_are_those_that_are_averaged() -> None:
    history = simulate(split(), callbacks=[fv.TrainLosses()])
    for record in history.metrics:
        assert len(record["train_losses"]) == len(record["cohort"])
        assert min(record["train_losses"]) <= record["train_loss"] <= max(record["train_losses"])


@pytest.mark.parametrize(
    ("data", "message"), [({}, "clients' own results need data of their own"), ({"validation": 0.1}, "test_share=0.2")]
)
def test_without_data_of_their_own(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulate(split(**data), callbacks=[fv.ClientResults()])


# -- every algorithm, folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [fv.FedAvg(), fv.Scaffold(), fv.FedDyn(), fv.FedPD(), fv.FedVRAU()])
def test_with_every_kind_of_algorithm(algorithm: fv.Algorithm) -> None:
    torch.manual_seed(0)
    history = fv.simulate(
        algorithm, problem=fv.Supervised(nn.Linear(4, 3)), data=split(test_share=0.3, validation=0.1, unseen=2),
        sampler=fv.Full(), work=fv.Steps(2), lr=0.02, rounds=2, workers=1,
        callbacks=[fv.ClientResults(1, tune=1), fv.TrainLosses(), fv.Patience(5)],
    )  # fmt: skip
    assert {"clients", "unseen", "validation_accuracy", "train_losses"} <= set(history.metrics[-1])


def test_on_the_command_line_and_resumed_to_the_bit(tmp_path: Path, no_picture: None) -> None:
    options = {
        "validation": 0.1,
        "test_share": 0.2,
        "unseen": 3,
        "client_results": 2,
        "tune_steps": 2,
        "train_losses": True,
    }
    config = configure(DIGITS, options, {"checkpoint_every": 2, "patience": 50})
    execute(config, tmp_path / "whole")

    def crash(record: Record) -> None:
        if record["round"] == 5:
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        execute(config, tmp_path / "again", [crash])
    resume(tmp_path / "again", workers=2)
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "again")
    assert "tuned_accuracy" in RunFolder(tmp_path / "whole").metrics()[-1]["unseen"]
    with pytest.raises(UsageError, match="need data of their own"):
        execute(configure(DIGITS, {"client_results": 2}), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def untimed(folder: Path) -> list[Record]:
    return [{k: v for k, v in m.items() if not k.startswith("seconds")} for m in RunFolder(folder).metrics()]
