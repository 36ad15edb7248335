"""On Flower: nodes test the model on their own data, callbacks look on, and a run may end early, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import Tensor, nn

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.flower import Strategy, client_app
from fedvra.flower.protocol import Errand, Order
from flower_grid import FakeGrid, Node

CLIENTS = 4


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)
    monkeypatch.setattr("fedvra.flower.exchange.POLL_SECONDS", 0.0)


def arrays(samples: int = 160) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, samples)
    return (rng.normal(size=(samples, 4)) + targets[:, None]).astype(np.float32), targets


def data() -> fv.FederatedData:
    return fv.split(arrays(), fv.Dirichlet(0.5), clients=CLIENTS, seed=1, test_share=0.3)


def problem() -> fv.Supervised:
    torch.manual_seed(0)
    return fv.Supervised(nn.Linear(4, 3))


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).double().mean()


def grid(folder: Path, given: Any = None, metrics: Any = None, **options: Any) -> FakeGrid:
    app = client_app(problem=problem(), data=data() if given is None else given, metrics=metrics)
    return FakeGrid({100 + i: Node(i, folder / f"node{i}", app) for i in range(CLIENTS)}, **options)


def strategy(folder: Path, **options: Any) -> Strategy:
    given = {"clients": CLIENTS, "sampler": fv.Full(), "work": fv.Steps(2), "lr": 0.05, "wait": 0, **options}
    return Strategy(fv.FedVRA(gamma=0.5, a=2), problem=problem(), folder=folder / "server", **given)


def test_nodes_test_the_model_on_their_own(tmp_path: Path) -> None:
    server = strategy(tmp_path, evaluate_every=2, metrics={"right": right})
    result = server.start(grid(tmp_path, metrics={"right": right}), num_rounds=4, timeout=0.01)
    assert [("clients" in record) for record in server.records] == [False, True, False, True]
    model, held = server.experiment.problem.to_module(server.books.model.x, None), data()
    inputs, targets = arrays()
    tested = [i for i in range(CLIENTS) if len(held.own_test(i))]
    with torch.no_grad():
        outputs = [model(torch.from_numpy(inputs[held.own_test(i)])).argmax(1).numpy() for i in tested]
    values = np.array([(o == targets[held.own_test(i)]).mean() for o, i in zip(outputs, tested, strict=True)])
    weights = [len(held.own_test(i)) for i in tested]
    found = server.records[-1]["clients"]
    assert found["accuracy"]["by_samples"] == pytest.approx(np.average(values, weights=weights))
    assert found["accuracy"]["mean"] == pytest.approx(values.mean())
    assert found["right"] == pytest.approx(found["accuracy"])
    shown = result.evaluate_metrics_clientapp[4]
    assert shown["right_mean_over_nodes"] == found["right"]["by_samples"]  # a mean over nodes is called one
    assert shown["nodes"] == len(tested)


def test_it_is_what_the_simulator_has(tmp_path: Path) -> None:
    server = strategy(tmp_path, evaluate_every=3)
    server.start(grid(tmp_path), num_rounds=3, timeout=0.01)
    history = fv.simulate(
        fv.FedVRA(gamma=0.5, a=2), problem=problem(), data=data(), sampler=fv.Full(), work=fv.Steps(2), lr=0.05,
        rounds=3, workers=1, callbacks=[fv.ClientResults(3)],
    )  # fmt: skip
    simulated, real = history.metrics[-1]["clients"], server.records[-1]["clients"]
    assert real["count"] == simulated["count"]
    for name in ("accuracy", "loss"):
        assert real[name] == pytest.approx(simulated[name], rel=1e-4)


def test_test_data_that_a_node_brings(tmp_path: Path) -> None:
    inputs, targets = arrays()
    own = fv.Dataset(
        "own",
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        torch.from_numpy(inputs[:9]),
        torch.from_numpy(targets[:9]),
    )
    server = strategy(tmp_path, evaluate_every=1)
    server.start(grid(tmp_path, given=own), num_rounds=1, timeout=0.01)
    assert server.records[0]["clients"]["samples"] == 9 * CLIENTS


def test_those_who_do_not_answer_or_have_nothing_are_left_out(tmp_path: Path) -> None:
    def fault(order: Order) -> str:
        return "silent" if order.errand == Errand.EVALUATE and order.client == 2 else ""

    server = strategy(tmp_path, evaluate_every=1)
    server.start(grid(tmp_path, fault=fault), num_rounds=1, timeout=0.01)
    whole = strategy(tmp_path / "all", evaluate_every=1)
    whole.start(grid(tmp_path / "all"), num_rounds=1, timeout=0.01)
    assert server.records[0]["clients"]["count"] == whole.records[0]["clients"]["count"] - 1
    assert torch.equal(server.books.x0, whole.books.x0)  # evaluation leaves training alone
    inputs, targets = arrays()
    nothing = strategy(tmp_path / "none", evaluate_every=1)
    bare = fv.Dataset("own", torch.from_numpy(inputs), torch.from_numpy(targets))
    result = nothing.start(grid(tmp_path / "none", given=bare), num_rounds=1, timeout=0.01)
    assert "clients" not in nothing.records[0]
    assert not result.evaluate_metrics_clientapp


def test_some_of_the_nodes(tmp_path: Path) -> None:
    server, net = strategy(tmp_path, evaluate_every=1, evaluate_clients=2), grid(tmp_path)
    server.start(net, num_rounds=2, timeout=0.01)
    assert sum(order.errand == Errand.EVALUATE for order in net.sent) == 4


# -- callbacks --------------------------------------------------------------------------------------------------------------


def test_callbacks_look_on_and_may_stop(tmp_path: Path) -> None:
    seen: list[int] = []

    class Noting(fv.Callback):
        def on_round(self, run: Any, record: dict[str, Any]) -> None:
            record["norm"] = float(run.server.x0.norm())
            seen.append(record["round"])
            if record["round"] == 3:
                raise fv.StopRun("enough")

    server = strategy(tmp_path, callbacks=[Noting()])
    server.start(grid(tmp_path), num_rounds=9, timeout=0.01)
    assert seen == [1, 2, 3]
    assert server.records[-1]["stopped"] == "enough"
    assert all("norm" in record for record in server.records)
    again = strategy(tmp_path, callbacks=[Noting()])
    again.start(grid(tmp_path), num_rounds=9, timeout=0.01)
    assert seen == [1, 2, 3]
    assert again.books.round == 3


def test_patience_counts_over_a_restart(tmp_path: Path) -> None:
    """The figure is made to improve until round 3: whoever is patient for three rounds stops after the sixth."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"score": float(min(number, 3))})

    patient = {"callbacks": [fv.Patience(3, metric="score")]}
    straight = strategy(tmp_path / "a", **patient)
    straight.start(grid(tmp_path / "a"), num_rounds=20, timeout=0.01, evaluate_fn=evaluate)
    assert straight.books.round == 6
    first = strategy(tmp_path / "b", **patient)
    first.start(grid(tmp_path / "b"), num_rounds=4, timeout=0.01, evaluate_fn=evaluate)
    second = strategy(tmp_path / "b", **patient)
    second.start(grid(tmp_path / "b"), num_rounds=20, timeout=0.01, evaluate_fn=evaluate)
    assert second.books.round == 6
    assert second.records[-1]["stopped"] == "score has not improved since round 3."
    assert torch.equal(straight.books.x0, second.books.x0)


def test_observers_need_the_simulator(tmp_path: Path) -> None:
    server = strategy(tmp_path, callbacks=[fv.StationarityGap()])
    with pytest.raises(UsageError, match="nobody but the simulator can"):
        server.start(grid(tmp_path), num_rounds=1, timeout=0.01)


def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="evaluate_every must be at least 0"):
        strategy(tmp_path, evaluate_every=-1)
    with pytest.raises(UsageError, match="a callback is an object"):
        strategy(tmp_path, callbacks=["patience"])
