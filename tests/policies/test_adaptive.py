"""FedVRA with nothing set: it follows its formulas, is the same on every route, and holds where FedAvg holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.core.adaptive import Memory
from fedvra.core.cohort import Cohort
from fedvra.core.errors import UsageError
from fedvra.engines import checkpoint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from fedvra.policies import Auto, Pace, Stepwise, auto, inverse_p, over_rounds, parse_setting, remark1
from fedvra.policies.pace import visits
from quadratics import case, quadratic


def cohort(p: Any = 0.5, steps: Any = (4, 2), eta: Any = 0.1, round: int = 0, omega: Any = 0.25) -> Cohort:
    ones = np.ones(2)
    return Cohort(round, 4, np.array([1, 3]), p * ones, np.array(steps), np.ones(2, int), omega * ones, eta * ones)


def row(algorithm: fv.Algorithm, *args: Any, **options: Any) -> Any:
    c = cohort(*args, **options)
    return algorithm.coefficients(c, lambda: c)


# -- policies -----------------------------------------------------------------------------------------------------------


def test_a_schedule_gives_each_round_its_number() -> None:
    schedule = parse_setting("10:5@3:1@5")
    assert isinstance(schedule, Stepwise)
    found = [row(fv.FedVRA(gamma=0.5, a=schedule, d=1), round=r).alpha[0] / 0.5 for r in range(6)]
    assert found == [10, 10, 5, 5, 1, 1]
    halving = fv.FedVRA(gamma=0.5, a=over_rounds(lambda r: 8 / 2**r), d=1)
    assert [row(halving, round=r).alpha.tolist() for r in range(2)] == [[4, 4], [2, 2]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("10:5", "neither a number"),
        ("10@3", "is not a schedule: write VALUE"),
        ("10:5@0", "later and later rounds"),
        ("10:5@7:1@7", "later and later rounds"),
        ("10:x@3", "is not a schedule: write VALUE"),
        ("10:5@-3", "is not a schedule: write VALUE"),
        ("1e:2@3", "not a number"),
        ("10:-5@2", "finite and >= 0"),
        ("10:1e999@2", "finite and >= 0"),
        ("@", "is not a schedule: write VALUE"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_setting(text)


@pytest.mark.parametrize("given", [{"a": "auto"}, {"d": "1/p"}, {"gamma": [[1.0], [1.0, 2.0]]}])
def test_text_is_for_the_command_line(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be a number, a table of numbers, a policy or a function"):
        fv.FedVRA(**given)


def test_remark_1_is_its_formula() -> None:
    """(a + d)*eta*gamma*Q~ = 1 with Q~ summed term by term; 0 where d alone is too much."""
    made = row(fv.FedVRA(gamma=0.5, a=remark1, d=inverse_p))
    for k, Q in enumerate((4, 2)):
        discounted = sum((1 - 0.1 * 0.5) ** q for q in range(Q))
        assert (made.alpha[k] / 0.5 + 2) * 0.1 * 0.5 * discounted == pytest.approx(1, rel=1e-12)
    assert row(fv.FedVRA(gamma=9, a=remark1, d=inverse_p)).alpha.tolist() == [0, 0]
    assert row(fv.FedVRA(gamma=0, a=remark1, d=inverse_p)).alpha.tolist() == [0, 0]


@pytest.mark.parametrize("policy", [auto, remark1])
def test_what_only_fedvra_can_work_out_is_refused_elsewhere(policy: Any) -> None:
    with pytest.raises(UsageError, match="for FedVRA"):
        row(fv.FedProx(mu=policy))


# -- the formulas of auto -------------------------------------------------------------------------------------------------


def test_the_first_row_of_auto() -> None:
    made = row(fv.FedVRA())
    T, n = np.array([0.4, 0.2]), 10 * 0.5
    np.testing.assert_allclose(made.alpha, 1 / (n * T))
    np.testing.assert_allclose(made.w, 2.0)
    assert made.kappa == pytest.approx(n * 1 / 0.5 / ((1 / 0.4 + 1 / 0.2) / 2))  # n * sigma / p / mean of 1/T
    assert 0.5 * np.mean(made.alpha / made.gamma) == pytest.approx(1)  # sigma = p * mean of a
    np.testing.assert_allclose(made.gamma, 1 / made.kappa)


def test_means_are_over_all_clients_not_over_those_drawn() -> None:
    """One drawn with p = 0.1 stands for ten, one with p = 1 for itself."""
    made = row(fv.FedVRA(), p=np.array([0.1, 1.0]))
    mean_p, mean_rate = 2 / 11, (10 / 0.4 + 1 / 0.2) / 11
    sigma = Pace.first(auto, mean_p).sigma
    assert made.kappa == pytest.approx(visits(auto, mean_p) * sigma / mean_p / mean_rate)


def test_clients_count_by_their_weight() -> None:
    """sigma is the multiplier of lam = sum omega_i*lam_i: who has no weight has no say in it."""
    made = row(fv.FedVRA(), omega=np.array([0.75, 0.25]))
    assert made.kappa == pytest.approx(5 / 0.5 / (0.75 / 0.4 + 0.25 / 0.2))
    assert np.isfinite(row(fv.FedVRA(), omega=np.array([0.0, 0.0])).kappa)


def test_numbers_given_are_used_as_given() -> None:
    paper = row(fv.FedVRA(gamma=0.1, a=10, d=10))
    assert (paper.gamma.tolist(), paper.kappa) == ([0.1, 0.1], 10)
    np.testing.assert_allclose(paper.alpha, 1)
    np.testing.assert_allclose(paper.w, 10)
    assert not fv.FedVRA(gamma=0.1, a=10).adapts
    assert row(fv.FedVRA(d=3)).w.tolist() == [3, 3]
    assert row(fv.FedVRA(gamma=0.2)).kappa == 5
    np.testing.assert_allclose(row(fv.FedVRA(a=7)).alpha, 7 * row(fv.FedVRA(a=7)).gamma)


def test_with_gamma_given_the_servers_momentum_is_bounded() -> None:
    """a = 1/(gamma*T), but a*p at most sigma: what Remark 1 alone does not ensure."""
    loose, tight = row(fv.FedVRA(gamma=4.0)), row(fv.FedVRA(gamma=0.02))
    np.testing.assert_allclose(loose.alpha, [1 / 0.4, 1 / 0.2])
    np.testing.assert_allclose(tight.alpha / 0.02 * 0.5, Pace.first(auto, 0.5).sigma)


# -- the same everywhere ----------------------------------------------------------------------------------------------------


def experiment(seed: int = 0, **options: Any) -> Experiment:
    A, b = quadratic(8, 4, seed=seed)
    given = {"sampler": fv.Uniform(3), "work": fv.Steps(3), "lr": 0.05, "seed": seed, "eval_every": 0, **options}
    return Experiment(fv.FedVRA(), fv.Quadratic(A, b), **given)


def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, half, rest = (Federation(experiment(), workers=1) for _ in range(3))
    for _ in range(9):
        whole.round()
    for _ in range(4):
        half.round()
    checkpoint.save(half, tmp_path)
    assert checkpoint.restore(rest, tmp_path) == 4
    assert rest.state.memory.numbers == half.state.memory.numbers != {}
    for _ in range(5):
        rest.round()
    assert torch.equal(whole.state.x0, rest.state.x0)
    assert whole.state.memory.numbers == rest.state.memory.numbers
    for federation in (whole, half, rest):
        federation.close()


def test_any_number_of_workers_gives_the_same_bits() -> None:
    e = experiment()
    options = {"problem": e.problem, "sampler": e.sampler, "work": e.work, "lr": e.lr, "rounds": 6}
    one, two = (fv.simulate(fv.FedVRA(), workers=workers, **options) for workers in (1, 2))
    assert torch.equal(one.x0, two.x0)


def test_the_books_of_a_real_federation_keep_the_memory(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra fedvra[flower] is not installed")
    from fedvra.core.members import Members
    from fedvra.flower.server_books import Books

    def books() -> Books:
        counts, samples = np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)
        return Books({}, torch.zeros(3), torch.zeros(3), None, counts, samples, Members.founders(2))

    before, after = books(), books()
    before.memory = Memory(Pace.first(auto, 0.1).numbers())
    before.save(tmp_path)
    assert after.resume(tmp_path)
    assert Pace(**after.memory.numbers).sigma == 1
    np.testing.assert_equal(after.memory.numbers, before.memory.numbers)  # NaN included


def test_records_say_which_multiplier_a_round_was_played_with() -> None:
    federation = Federation(experiment(), workers=1)
    record = federation.round()
    assert (record["multiplier"], record["multiplier_reason"]) == (1, "start")
    for _ in range(4):
        expected = Pace(**federation.state.memory.numbers)
        record = federation.round()
        assert (record["multiplier"], record["multiplier_reason"]) == (expected.sigma, expected.reason)
    federation.close()


def test_rounds_without_replies_leave_the_memory_alone() -> None:
    c = case(R=4, empty=(2,))
    federation = Federation(
        Experiment(fv.FedVRA(), fv.Quadratic(c.A, c.b), fv.Replay(c.cohorts), fv.Steps(c.Q), lr=0.05), workers=1
    )
    memories = []
    for _ in range(4):
        federation.round()
        memories.append(federation.state.memory)
    federation.close()
    assert memories[1] is memories[2]
    assert memories[0].numbers != memories[1].numbers != memories[3].numbers


def test_those_that_do_not_adapt_keep_nothing() -> None:
    A, b = quadratic(4, 3)
    given = Experiment(fv.FedVRA(gamma=0.1, a=2), fv.Quadratic(A, b), fv.Full(), fv.Steps(2))
    federation = Federation(given, workers=1)
    record = federation.round()
    federation.close()
    assert federation.state.memory == Memory()
    assert "multiplier" not in record


# -- what it is good for ------------------------------------------------------------------------------------------------------


def gaps(algorithm: fv.Algorithm, m: int, steps: int, lr: float, rounds: int, high: float = 5.0) -> list[float]:
    """Relative distance to the minimiser after each round, 20 clients that differ."""
    A, b = quadratic(20, 6, 0.1, high, seed=3)
    best = np.linalg.solve(A.mean(0), b.mean(0))
    history = fv.simulate(
        algorithm, problem=fv.Quadratic(A, b), sampler=fv.Uniform(m), work=fv.Steps(steps), lr=lr, rounds=rounds, seed=1,
        keep="x0", workers=1,
    )  # fmt: skip
    return [float(np.linalg.norm(x - best) / np.linalg.norm(best)) for x in np.asarray(history.trajectory)]


def test_auto_is_exact_where_fedavg_stalls() -> None:
    ours, averaging = gaps(fv.FedVRA(), 5, 10, 0.05, 100), gaps(fv.FedAvg(), 5, 10, 0.05, 100)
    assert ours[-1] < 0.02 < 0.5 < min(averaging)


@pytest.mark.parametrize(
    ("m", "steps", "lr", "high"),
    [(20, 5, 0.05, 5.0), (2, 1, 0.1, 5.0), (1, 40, 0.05, 30.0), (20, 100, 0.06, 30.0), (10, 1, 0.06, 30.0)],
    ids=["everyone", "single steps", "one client, stiff", "everyone, to the end", "near the limit of eta"],
)
def test_corners_where_fedavg_does_not_diverge(m: int, steps: int, lr: float, high: float) -> None:
    ours, averaging = (gaps(algorithm, m, steps, lr, 60, high) for algorithm in (fv.FedVRA(), fv.FedAvg()))
    assert max(averaging) < 100
    assert max(ours) < 10 * max(averaging)  # it may overshoot at first
    assert ours[-1] < averaging[-1]


def test_checkpoints_name_each_number() -> None:
    federation = Federation(experiment(), workers=1)
    federation.round()
    federation.close()
    memory = federation.state.memory
    assert list(memory.numbers) == list(Pace.__dataclass_fields__)
    assert {f"memory.{name}" for name in Pace.__dataclass_fields__} < memory.tensors().keys()
    np.testing.assert_equal(Memory.of(memory.tensors()).numbers, memory.numbers)


def test_constants_given_are_those_that_count() -> None:
    """gamma's, and a's where gamma is given."""
    assert row(fv.FedVRA(gamma=Auto(first=0.5))).kappa == pytest.approx(5 * 0.5 / 0.5 / ((1 / 0.4 + 1 / 0.2) / 2))
    assert fv.FedVRA(gamma=Auto(first=0.5)).rule.first == 0.5 == fv.FedVRA(gamma=0.1, a=Auto(first=0.5)).rule.first
    tight = row(fv.FedVRA(gamma=0.02, a=Auto(first=0.5)))
    np.testing.assert_allclose(tight.alpha / 0.02 * 0.5, 0.5)


def test_what_another_version_remembers_is_refused_in_a_sentence() -> None:
    memory = Memory(Pace.first(auto, 0.1).numbers())
    with pytest.raises(UsageError, match=r"the checkpoint holds numbers without names where .* start over"):
        Memory.of({"memory": torch.ones(2), "memory_move": torch.ones(3)})
    with pytest.raises(UsageError, match="the checkpoint holds version 9 of them"):
        Memory.of({**memory.tensors(), "memory_version": torch.tensor(9)})
    with pytest.raises(UsageError, match=r"auto goes by sigma, move, .*, and what it remembers is sigma: "):
        Pace.of(auto, replace(cohort(), memory={"sigma": 1.0}))
