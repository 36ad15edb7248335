"""Problems with two blocks in the engine: workers, checkpoints, lost replies, and what is refused."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedvra as fv
from boxed import Boxed, N, W
from crashes import untimed
from fedvra.engines import checkpoint
from fedvra.engines.federation import Experiment, Federation
from fedvra.local.protocol import SolverSettings

# --- The engine's promises ---------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {"sampler": fv.Uniform(3), "work": fv.Steps(3), "lr": 0.02, "seed": 5}


class Stochastic(Boxed):
    def gradient_x(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
        noise = 0.0 if rng is None else torch.from_numpy(rng.normal(size=tuple(x.shape)))
        return super().gradient_x(client, x, y, None) + noise


def test_the_number_of_workers_does_not_change_a_bit() -> None:
    runs = [
        fv.simulate(
            fv.FedVRAU(gamma=2), problem=Stochastic(), rounds=5, workers=w, drop=0.3, observers=[fv.StationarityGap(2)],
            **SETTINGS,
        )
        for w in (1, 2, 3)
    ]  # fmt: skip
    for other in runs[1:]:
        assert torch.equal(runs[0].x0, other.x0)
        assert untimed(runs[0].metrics) == untimed(other.metrics)
        assert runs[0].y.keys() == other.y.keys()
        assert all(torch.equal(row, other.y[i]) for i, row in runs[0].y.items())
    assert sum("stationarity_gap" in m for m in runs[0].metrics) == 2


def test_noise_comes_from_keyed_streams() -> None:
    one, other = (
        fv.simulate(fv.FedVRAU(gamma=2), problem=Stochastic(), rounds=3, workers=1, **{**SETTINGS, "seed": s}).x0
        for s in (5, 6)
    )
    exact = fv.simulate(fv.FedVRAU(gamma=2), problem=Boxed(), rounds=3, workers=1, **SETTINGS).x0
    assert not torch.equal(one, exact)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_lost_reply_leaves_y_as_it_was(workers: int) -> None:
    with_loss = Experiment(fv.FedVRAU(gamma=2), Boxed(), drop=0.5, **{**SETTINGS, "sampler": fv.Full()})
    federation = Federation(with_loss, workers=workers)
    try:
        lost = moved = 0
        for _ in range(6):
            before = {i: row.clone() for i, row in federation.second_block().items()}
            record = federation.round()
            after = federation.second_block()
            for i in range(N):
                if i in record.get("lost", []):
                    lost += 1
                    assert (i in before) == (i in after)
                    assert i not in before or torch.equal(before[i], after[i])
                elif i in before:
                    moved += not torch.equal(before[i], after[i])
        assert lost > 5
        assert moved > 2
    finally:
        federation.close()


def test_a_checkpoint_carries_y(tmp_path: Path) -> None:
    def start() -> Federation:
        return Federation(Experiment(fv.FedVRAU(gamma=2), Stochastic(), **SETTINGS), workers=1)

    whole, first, second = start(), start(), start()
    try:
        for _ in range(7):
            whole.round()
        for _ in range(3):
            first.round()
        checkpoint.save(first, tmp_path)
        assert checkpoint.restore(second, tmp_path) == 3
        for _ in range(4):
            second.round()
        assert torch.equal(second.state.x0, whole.state.x0)
        ours, theirs = second.second_block(), whole.second_block()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[i], theirs[i]) for i in ours)
        assert len(ours) > 3
    finally:
        for federation in (whole, first, second):
            federation.close()


def test_a_checkpoint_with_y_of_another_size_is_refused(tmp_path: Path) -> None:
    class Wider(Boxed):
        def y_start(self, client: int) -> Tensor:
            return torch.zeros(W + 3, 1, dtype=torch.float64)

    saved, other = (Federation(Experiment(fv.FedVRAU(), kind(), **SETTINGS), workers=1) for kind in (Boxed, Wider))
    try:
        saved.round()
        checkpoint.save(saved, tmp_path)
        with pytest.raises(fv.FedvraError, match=f"holds y of {W + 1} numbers per client, and the run needs {W + 3}"):
            checkpoint.restore(other, tmp_path)
    finally:
        saved.close()
        other.close()


def test_power_of_choice_sees_the_cost_at_the_clients_own_y() -> None:
    settings = {**SETTINGS, "sampler": fv.PowerOfChoice(2, candidates=N)}
    problem = Boxed()
    record = fv.simulate(fv.FedAvg(), problem=problem, rounds=1, workers=1, **settings).metrics[0]
    x = problem.x_start()
    costs = [problem.cost(i, x, problem.best_response(i, x, problem.y_start(i))) for i in range(N)]
    assert record["cohort"] == sorted(np.argsort(costs)[-2:].tolist())


def test_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples" / "two_block.py"
    assert len(path.read_text().splitlines()) < 80
    spec = importlib.util.spec_from_file_location("two_block_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.main(clients=10, rounds=60)
    assert found["FedVRA-U"] < found["FedAvg"] / 2
    assert "gap" in capsys.readouterr().out


# --- Bad input ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    method: str
    replacement: Any
    message: str


FAULTS = [
    Fault("project_y", lambda self, client, y: y[:-1], r"project_y was given shape \[3, 1\] and returned \[2, 1\]"),
    Fault("project_y", lambda self, client, y: y.clamp(0, 0.5) * 0.9, "project_y returned a point outside its set"),
    Fault("project_x", lambda self, x: x.reshape(-1), r"project_x was given shape \[2, 2\] and returned \[4\]"),
    Fault("project_x", lambda self, x: x.clamp(-0.3, 0.3) + 0.01, "project_x returned a point outside its set"),
    Fault("gradient_y", lambda self, client, x, y, rng: y[:2], r"gradient_y of client \d has shape \[2, 1\]"),
    Fault("gradient_x", lambda self, client, x, y, rng: x.reshape(-1), r"gradient_x of client \d has shape \[4\]"),
    Fault(
        "y_start",
        lambda self, client: torch.full((W, 1), 0.7, dtype=torch.float64),
        "y_start\\(0\\) is outside its set",
    ),
    Fault("y_start", lambda self, client: torch.zeros(W, 1), "use one dtype"),
    Fault("y_start", lambda self, client: torch.full((W, 1), torch.nan).double(), "NaN"),
    Fault("x_start", lambda self: torch.ones(2, 2, dtype=torch.float64), "x_start is outside its set"),
    Fault("x_start", lambda self: torch.ones(2, 2, dtype=torch.int64), "floating-point"),
    Fault("lr_y", 0.0, "lr_y must be > 0"),
    Fault("steps_y", 0, "steps_y must be at least 1"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.method}: {fault.message[-22:]}")
def test_what_is_wrong_with_a_problem_is_said(fault: Fault) -> None:
    problem = type("Faulty", (Boxed,), {fault.method: fault.replacement})()
    with pytest.raises(fv.UsageError, match=fault.message):
        fv.simulate(fv.FedVRAU(), problem=problem, rounds=1, workers=1, **SETTINGS)


def test_a_gradient_of_the_wrong_size_mid_run_is_said_too() -> None:
    class Shrinks(Boxed):
        def gradient_y(self, client: int, x: Tensor, y: Tensor, rng: Any) -> Tensor:
            return super().gradient_y(client, x, y, rng)[: 2 if client == 3 else None]

    with pytest.raises(fv.UsageError, match="gradient_y of client 3"):
        fv.simulate(fv.FedVRAU(), problem=Shrinks(), rounds=1, workers=2, **{**SETTINGS, "sampler": fv.Full()})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": 1}, "carries its own data"),
        ({"batch_size": 8}, "draws its own batches"),
        ({"solver": SolverSettings(device="meta")}, "computes on the CPU"),
        (
            {"observers": [fv.StationarityGap(every=1)], "problem": fv.Quadratic(torch.eye(2)[None], torch.ones(1, 2))},
            "no exact",
        ),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    given = {"problem": Boxed(), "workers": 1, **SETTINGS, "sampler": fv.Full(), **options}
    with pytest.raises(fv.UsageError, match=message):
        fv.simulate(fv.FedVRAU(), rounds=1, **given)


@pytest.mark.parametrize(("every", "beta", "message"), [(0, 1.0, "every"), (1, 0.0, "beta")])
def test_a_gap_that_cannot_be_measured(every: int, beta: float, message: str) -> None:
    with pytest.raises(fv.UsageError, match=message):
        fv.StationarityGap(every, beta)
