"""The engine: same bits for any number of workers, workers that die, replies that are lost, buffers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.engines.federation import Experiment, Federation
from fedvra.engines.pool import ProcessPool
from fedvra.local.protocol import SolverSettings
from small_nets import SETTINGS, batch_norm, mlp, small_data

ALGORITHMS = [fv.FedAvg(), fv.FedVRA(gamma=0.1, a=5), fv.Scaffold(), fv.FedNova(), fv.FedDyn(alpha=0.1)]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.label)
def test_the_number_of_workers_does_not_change_a_bit(algorithm: fv.Algorithm) -> None:
    problem, data = fv.Supervised(mlp, weight_decay=1e-3), small_data()
    runs = [fv.simulate(algorithm, problem=problem, data=data, rounds=4, workers=w, **SETTINGS) for w in (1, 2, 3)]
    for other in runs[1:]:
        assert torch.equal(runs[0].x0, other.x0)
        assert torch.equal(runs[0].lam, other.lam)
        assert all(torch.equal(row, other.duals[c]) for c, row in runs[0].duals.items())
        for a, b in zip(runs[0].metrics, other.metrics, strict=True):
            assert {k: v for k, v in a.items() if "seconds" not in k} == {
                k: v for k, v in b.items() if "seconds" not in k
            }


def test_own_anchors_do_not_depend_on_the_workers() -> None:
    problem, data = fv.Supervised(mlp), small_data()
    settings = {**SETTINGS, "sampler": fv.Full()}
    runs = [
        fv.simulate(fv.FedPD(gamma=0.5, skip=0.5), problem=problem, data=data, rounds=6, workers=w, **settings)
        for w in (1, 2)
    ]
    assert torch.equal(runs[0].x0, runs[1].x0)
    assert any(m["bytes_up"] == 0 for m in runs[0].metrics), "the coin never skipped: choose another seed"
    assert any(m["bytes_up"] > 0 for m in runs[0].metrics)


def test_a_worker_that_dies_is_replaced_and_the_result_is_the_same() -> None:
    problem, data = fv.Supervised(mlp), small_data()
    expected = fv.simulate(fv.FedVRA(), problem=problem, data=data, rounds=6, workers=1, **SETTINGS)
    federation = Federation(Experiment(fv.FedVRA(), problem, data=data, **SETTINGS), workers=2)
    try:
        for r in range(6):
            if r in (2, 4):
                victim = federation.engine.processes()[r % 2]  # type: ignore[union-attr]
                assert victim.pid is not None
                os.kill(victim.pid, signal.SIGKILL)
            federation.round()
        assert torch.equal(federation.state.x0, expected.x0)
    finally:
        federation.close()


class DiesOnce(nn.Module):
    """Kills the worker process it runs in, in the middle of local work, once."""

    def __init__(self, flag: str) -> None:
        super().__init__()
        self.net, self.flag, self.server = mlp(), flag, os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and os.getpid() != self.server and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.net(x)  # type: ignore[no-any-return]


def test_a_worker_that_dies_in_the_middle_of_local_work(tmp_path: Any) -> None:
    flag = tmp_path / "died"
    problem = fv.Supervised(DiesOnce(str(flag)))

    def run() -> fv.History:
        eager = SolverSettings(path="eager")
        return fv.simulate(
            fv.FedVRA(), problem=problem, data=small_data(), rounds=3, workers=2, solver=eager, **SETTINGS
        )

    interrupted = run()
    assert flag.exists()
    assert torch.equal(interrupted.x0, run().x0)


SLEEPY = """
import os, time, torch, fedvra as fv

class Sleeps(torch.nn.Linear):
    server = os.getpid()

    def forward(self, x):
        if os.getpid() != self.server:
            time.sleep(60)
        return super().forward(x)

data = fv.split((torch.randn(40, 8), torch.arange(40) % 3), fv.IID(), clients=4)
fv.simulate(fv.FedAvg(), problem=fv.Supervised(Sleeps(8, 3)), data=data, sampler=fv.Full(), work=fv.Steps(1),
            rounds=1, workers=2, solver=fv.SolverSettings(path="eager"))
"""


def test_workers_die_with_the_server_even_in_the_middle_of_their_work() -> None:
    server = subprocess.Popen([sys.executable, "-c", SLEEPY])
    deadline = time.monotonic() + 60
    while len(workers := _children(server.pid)) < 2 and time.monotonic() < deadline and server.poll() is None:
        time.sleep(0.05)
    server.kill()
    server.wait()
    alive = workers
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in workers if not _is_gone(pid)]
        time.sleep(0.05)
    assert len(workers) == 2
    assert not alive


def _children(pid: int) -> list[str]:
    return subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()


def _is_gone(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_an_error_in_a_worker_reaches_the_user() -> None:
    server = os.getpid()

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if os.getpid() != server:
                raise RuntimeError("no such luck")
            return self.net(x)  # type: ignore[no-any-return]

    with pytest.raises(RuntimeError, match="no such luck"):
        fv.simulate(fv.FedAvg(), problem=fv.Supervised(Fails), data=small_data(), rounds=1, workers=2, **SETTINGS)


def test_answers_that_were_on_their_way_when_a_task_failed_are_not_taken_for_later_ones() -> None:
    class Numbers:
        def do(self, task: int) -> int:
            if task < 0:
                raise ValueError("a bad number")
            time.sleep(0.01)
            return 10 * task

    pool = ProcessPool(Numbers, 2)  # type: ignore[arg-type]
    try:
        for _ in range(3):
            with pytest.raises(ValueError, match="a bad number"):
                pool.map([1, -1, 2, 3, 4, 5])  # type: ignore[list-item]
            assert pool.map([6, 7, 8, 9]) == [60, 70, 80, 90]  # type: ignore[list-item]
    finally:
        pool.close()


@pytest.mark.parametrize("algorithm", [fv.FedVRA(gamma=0.2, a=3), fv.Scaffold(), fv.FedDyn()], ids=lambda a: a.label)
@pytest.mark.parametrize("workers", [1, 2])
def test_lost_replies_leave_the_invariant(algorithm: fv.Algorithm, workers: int) -> None:
    data = small_data(dtype=torch.float64)
    problem = fv.Supervised(lambda: mlp().double())
    history = fv.simulate(algorithm, problem=problem, data=data, rounds=8, drop=0.4, workers=workers, **SETTINGS)
    assert sum(len(m.get("lost", [])) for m in history.metrics) > 5
    total = sum(history.duals.values(), torch.zeros_like(history.lam)) / data.clients
    assert torch.allclose(history.lam, total, atol=1e-14)
    assert float(history.lam.norm()) > 1e-3


def test_a_round_in_which_all_replies_are_lost_changes_nothing() -> None:
    settings = {**SETTINGS, "sampler": fv.Replay([[1, 2], [3]])}
    data, problem = small_data(), fv.Supervised(mlp)
    one = fv.simulate(fv.FedVRA(), problem=problem, data=data, rounds=1, keep="x0", drop=0.999999, **settings)
    assert torch.equal(one.x0, problem.initial(SETTINGS["seed"]))
    assert one.metrics[0]["lost"] == [1, 2]
    assert one.metrics[0]["bytes_up"] == 0


def test_an_empty_round_is_legal_and_changes_nothing() -> None:
    settings = {**SETTINGS, "sampler": fv.Replay([[0, 1, 2], [], [3, 4]])}
    history = fv.simulate(fv.FedVRA(), problem=fv.Supervised(mlp), data=small_data(), rounds=3, keep="x0", **settings)
    assert history.trajectory is not None
    assert torch.equal(history.trajectory[0], history.trajectory[1])
    assert not torch.equal(history.trajectory[1], history.trajectory[2])


def test_buffers_are_refused_by_name_unless_a_policy_is_given() -> None:
    with pytest.raises(fv.UsageError, match=r"'1' \(BatchNorm1d\)"):
        fv.simulate(fv.FedAvg(), problem=fv.Supervised(batch_norm), data=small_data(), rounds=1, **SETTINGS)


@pytest.mark.parametrize("policy", ["average", "local"])
def test_buffer_policies(policy: Any) -> None:
    problem, data = fv.Supervised(batch_norm, buffers=policy), small_data()
    runs = [fv.simulate(fv.FedAvg(), problem=problem, data=data, rounds=3, workers=w, **SETTINGS) for w in (1, 2)]
    assert runs[0].aux is not None
    assert runs[1].aux is not None
    assert torch.equal(runs[0].aux, runs[1].aux)
    model = runs[0].model()
    assert isinstance(model, nn.Sequential)
    assert not torch.equal(model[1].running_mean, torch.zeros(16))  # type: ignore[arg-type]


def test_buffer_policies_differ() -> None:
    x0 = {
        policy: fv.simulate(
            fv.FedAvg(), problem=fv.Supervised(batch_norm, buffers=policy), data=small_data(), rounds=3, **SETTINGS
        ).aux
        for policy in ("average", "local")
    }
    assert not torch.equal(x0["average"], x0["local"])  # type: ignore[arg-type]


def test_dropout_is_keyed_too() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 3))

    runs = [
        fv.simulate(fv.FedAvg(), problem=fv.Supervised(model), data=small_data(), rounds=2, workers=w, **SETTINGS)
        for w in (1, 2)
    ]
    assert torch.equal(runs[0].x0, runs[1].x0)


def test_bytes_are_counted_here_and_as_published() -> None:
    problem, data = fv.Supervised(mlp), small_data()
    vector = problem.initial(0).numel() * 4
    for algorithm, up, down, original in [(fv.FedVRA(), 1, 1, (1, 1)), (fv.Scaffold(), 1, 2, (2, 2))]:
        record = fv.simulate(algorithm, problem=problem, data=data, rounds=1, **SETTINGS).metrics[0]
        assert record["bytes_up"] == 5 * (up * vector + 8)
        assert record["bytes_down"] == 5 * down * vector
        assert record["bytes_up_original"] == 5 * original[0] * vector
        assert record["bytes_down_original"] == 5 * original[1] * vector


def test_a_batch_of_one_can_be_dropped() -> None:
    """BatchNorm cannot train on one sample: 13 of them in batches of 4 need drop_last."""
    data = fv.split((torch.rand(26, 3), torch.arange(26) % 2), fv.IID(), 2)
    problem = fv.Supervised(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), buffers="average")
    usual = {"problem": problem, "data": data, "sampler": fv.Full(), "work": fv.Epochs(2), "batch_size": 4, "rounds": 2}
    history = fv.simulate(fv.FedAvg(), drop_last=True, workers=1, **usual)
    assert [record["local_steps"] for record in history.metrics] == [12, 12]
    shared = fv.simulate(fv.FedAvg(), drop_last=True, workers=2, **usual)
    assert torch.equal(history.x0, shared.x0)
