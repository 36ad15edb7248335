"""What happens when a fast path fails in the middle of a run: everybody leaves it together, and nothing else changes."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.engines import checkpoint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.local.protocol import SolverSettings

RNG = np.random.default_rng(0)
INPUTS, TARGETS = RNG.normal(size=(120, 6)), RNG.integers(0, 3, 120)
DATA = fv.split((INPUTS, TARGETS), fv.IID(), clients=12, seed=0, test=(INPUTS, TARGETS))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def experiment(module: nn.Module, path: str = "auto", **more: Any) -> Experiment:
    given = {"sampler": fv.Uniform(6), "work": fv.Steps(2), "lr": 0.1, "batch_size": 5, "seed": 3, **more}
    return Experiment(
        algorithm=fv.FedVRA(gamma=0.1, a=5, d=2),
        problem=fv.Supervised(module),
        data=DATA,
        solver=SolverSettings(path=path),
        **given,
    )


def play(federation: Federation, rounds: int) -> torch.Tensor:
    try:
        for _ in range(rounds):
            federation.round()
        return federation.state.x0.clone()
    finally:
        federation.close()


def break_in_round(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], number: int, how: str) -> None:
    """From this round on the fast paths of these names raise, or compute something else."""
    from fedvra.local.solver import SupervisedSolver

    solve, original = SupervisedSolver._solve, {}

    def broken(self: Any, terms: Any, private: Any, block: Any) -> Any:
        if block.round >= number:
            for program in self.programs._programs.values():
                name = "block" if program is not None and program.out.ndim == 2 else "traced"
                if program is not None and name in names and id(program) not in original:
                    original[id(program)] = run = program.run

                    def wrong(rho: Any, eta: Any, c: Any, program: Any = program, run: Any = run) -> None:
                        if how == "raises":
                            raise RuntimeError("a kernel failed")
                        run(rho, eta, c)
                        program.out.add_(1e-3)

                    program.run = wrong
        return solve(self, terms, private, block)

    monkeypatch.setattr(SupervisedSolver, "_solve", broken)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("names", "path"), [(("block",), "traced"), (("block", "traced"), "eager")], ids=["one step", "two steps"]
)
def test_a_path_that_raises_is_left_by_all_workers(
    names: tuple[str, ...], path: str, workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = play(Federation(experiment(mlp(), path), workers=1), 5)
    break_in_round(monkeypatch, names, 2, "raises")
    federation = Federation(experiment(mlp()), workers=workers)
    assert federation.state.path.name == "block"
    with caplog.at_level(logging.WARNING, logger="fedvra"):
        x0 = play(federation, 5)
    assert federation.state.path.name == path
    assert "a kernel failed" in federation.state.path.reason
    assert [m.message.split(",")[0] for m in caplog.records] == ["round 3 is done again"] * len(names)
    assert torch.allclose(x0, slow, rtol=0, atol=1e-12), "all paths agree up to rounding"


def test_the_result_depends_on_neither_workers_nor_resume(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    break_in_round(monkeypatch, ("block",), 2, "raises")
    one, two = (play(Federation(experiment(mlp()), workers=workers), 6) for workers in (1, 2))
    assert torch.equal(one, two)
    first = Federation(experiment(mlp()), workers=1)
    for _ in range(4):
        first.round()
    checkpoint.save(first, tmp_path / "checkpoint")
    first.close()
    again = Federation(experiment(mlp()), workers=1)
    assert checkpoint.restore(again, tmp_path / "checkpoint") == 4
    assert again.state.path.name == "traced", "the checkpoint remembers"
    assert torch.equal(play(again, 2), one)


@pytest.mark.parametrize("one_step", [False, True], ids=["several steps", "one step"])
def test_a_program_that_goes_wrong_is_found_by_the_checks_of_the_run(
    one_step: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedvra.local.check_schedule.PER_STEP", 1.0)
    changes = {"work": fv.Steps(1)} if one_step else {}
    right = play(Federation(experiment(mlp(), "eager", **changes), workers=1), 3)
    if one_step:
        monkeypatch.setattr("fedvra.local.replay.first.FirstStep.add_row_", lambda self, k, row, scale: row.add_(1e-3))
    else:
        break_in_round(monkeypatch, ("block", "traced"), 1, "goes wrong")
    federation = Federation(experiment(mlp(), **changes), workers=1)
    x0 = play(federation, 3)
    assert federation.state.path.name != "block" or one_step
    assert torch.allclose(x0, right, rtol=0, atol=1e-12)


def test_the_record_the_history_and_the_summary_say_which_path(tmp_path: Path) -> None:
    class Branching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if x.sum().item() > 0 else -x)

    history = fv.simulate(
        fv.FedAvg(),
        problem=fv.Supervised(Branching(6, 3, dtype=torch.float64)),
        data=DATA,
        sampler=fv.Full(),
        work=fv.Steps(1),
        rounds=2,
        workers=1,
    )
    assert history.path.name == "eager"
    assert "item" in str(history.path)
    assert [m["path"] for m in history.metrics] == ["eager", "eager"]
    assert ["path_reason" in m for m in history.metrics] == [True, False]


def test_pythons_generators_are_seeded_per_client_and_given_back() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (random.random() + np.random.rand() + torch.rand(()))  # noqa: NPY002

    def run(workers: int) -> torch.Tensor:
        torch.manual_seed(0)
        return fv.simulate(
            fv.FedAvg(),
            problem=fv.Supervised(Noisy(6, 3, dtype=torch.float64)),
            data=DATA,
            sampler=fv.Uniform(6),
            work=fv.Steps(2),
            rounds=2,
            workers=workers,
            seed=1,
        ).x0

    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    one = run(1)
    assert (random.random(), np.random.rand()) == (0.6229016948897019, 0.22199317108973948)  # noqa: NPY002
    assert torch.equal(one, run(2))


def test_a_buffer_that_changes_late_is_an_error_that_names_it() -> None:
    class Late(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3, dtype=torch.float64)
            self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and float(self.weight.detach().abs().max()) > 0.6:
                self.seen += 1
            return super().forward(x)

    with pytest.raises(fv.UsageError, match="seen was constant in the first steps and has changed since"):
        fv.simulate(
            fv.FedAvg(),
            problem=fv.Supervised(Late()),
            data=DATA,
            sampler=fv.Full(),
            work=fv.Steps(5),
            lr=2.0,
            rounds=20,
            workers=1,
        )
