"""``fedvra check`` and ``fv.check``: yes inside the conditions, no outside, and figures that are those of the theorems."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from torch import nn

import fedvra as fv
from fedvra.cli import main
from fedvra.policies.named import parse_setting
from fedvra.theory.coverage import Coverage, quantiles
from quadratics import quadratic, unequal_weights

N = 6
A, B = quadratic(N)
L = np.linalg.eigvalsh(A).max(1)
OMEGA = unequal_weights(N)


def checked(algorithm: fv.Algorithm, **changes: Any) -> Coverage:
    run: dict[str, Any] = {
        "problem": fv.Quadratic(A, B), "sampler": fv.Uniform(3), "work": fv.Steps(4), "rounds": 30, "weights": OMEGA,
    }  # fmt: skip
    return fv.check(algorithm, **{**run, **changes})


def by_name(coverage: Coverage) -> dict[str, Any]:
    return {condition.name: condition for condition in coverage.conditions}


# -- quadratics, whose constants are exact --------------------------------------------------------------------------------


def test_inside_it_says_yes_and_the_figures_are_the_theorems() -> None:
    setting = fv.Theorem1.feasible(L=L, p=0.5, steps=4, a=9.0, d=2.0, omega=OMEGA)
    found = checked(fv.FedVRA(gamma=setting.gamma, a=9.0, d=2.0), lr=list(setting.eta))
    assert found.covered
    assert found.estimates.exact
    assert list(found.estimates.L) == pytest.approx(list(L))
    for name, condition in by_name(found).items():
        direct = next(each for each in setting.conditions() if each.name == name)
        assert list(condition.left) == pytest.approx(list(direct.left))
        assert list(condition.right) == pytest.approx(list(direct.right))
    best = np.linalg.solve(np.einsum("n,npq->pq", OMEGA, A), OMEGA @ B)
    lowest = OMEGA @ ((A @ best - 2 * B) @ best) / 2
    potential = setting.potential(0.0, (B**2).sum(1))  # x0 = 0, where f = 0 and the gradients are -b
    promised = found.to_dict()["promise"]
    assert promised["potential"] == pytest.approx(potential)
    assert promised["lower"] == pytest.approx(lowest)
    assert promised["D1"] == pytest.approx(setting.d1)
    assert promised["D2"] == pytest.approx(setting.d2())
    assert promised["bound"] == pytest.approx(setting.bound(potential - lowest, 30))
    assert promised["bound_printed"] == pytest.approx(setting.bound(potential - lowest, 30, d1=setting.d1))
    assert promised["corollary"] is None  # gamma differs between clients
    assert found.start.norm2 == pytest.approx(((OMEGA @ B) ** 2).sum())


@pytest.mark.parametrize(
    ("algorithm", "lr", "fails"),
    [
        (fv.FedVRA(gamma=1.0, a=9.0, d=2.0), 0.01, {"gamma, as printed", "gamma, as proved"}),
        (fv.FedVRA(gamma=1e4, a=9.0, d=2.0), 1e-4, {"eta, a and d"}),
        (fv.FedVRA(gamma=0.01, a=9.0, d=2.0), 0.2, {"eta, smoothness, as printed", "eta, smoothness, as proved"}),
    ],
)
def test_outside_it_says_no(algorithm: fv.Algorithm, lr: float, fails: set[str]) -> None:
    found = checked(algorithm, lr=lr)
    assert not found.covered
    assert not found.reasons
    failed = {name for name, condition in by_name(found).items() if not condition.holds}
    assert fails <= failed
    assert all(name in repr(found) for name in failed)
    assert found.to_dict()["promise"] is None


@pytest.mark.parametrize(
    "algorithm", [fv.FedVRA(gamma=1.0, a=9.0, d=2.0), fv.FedAvg(), fv.FedVRA(gamma=1.0, a=0.2, d=0.1)]
)
@pytest.mark.parametrize("work", [fv.Steps(4), fv.Steps([1, 2, 3, 4, 5, 6]), fv.RandomEpochs(1, 5)])
def test_what_it_proposes_is_covered(algorithm: fv.Algorithm, work: fv.Work) -> None:
    proposal = checked(algorithm, work=work, lr=0.01).proposal
    assert isinstance(proposal, fv.Theorem1)
    gamma, eta, a, d = (float(np.unique(values).item()) for values in
                        (proposal.gamma, proposal.eta, proposal.a, proposal.d))  # fmt: skip
    found = checked(fv.FedVRA(gamma=gamma, a=a, d=d), lr=eta, work=work)
    assert found.covered
    assert (found.to_dict()["promise"]["corollary"] is not None) == (
        type(work) is fv.Steps and np.ndim(work.count) == 0
    )


def test_other_instances_of_fedvra() -> None:
    admm, dyn = checked(fv.FedADMM(gamma=300.0), lr=1e-4), checked(fv.FedDyn(alpha=300.0), lr=1e-4)
    same = checked(fv.FedVRA(gamma=300.0, a=1, d=1), lr=1e-4), checked(fv.FedVRA(gamma=300.0, a=1, d=2), lr=1e-4)
    for found, expected in zip((admm, dyn), same, strict=True):
        for name, condition in by_name(found).items():
            assert list(condition.left) == pytest.approx(list(by_name(expected)[name].left))


@pytest.mark.parametrize(
    ("algorithm", "changes", "reason"),
    [
        (fv.FedAvg(), {}, "no duals"),
        (fv.Scaffold(), {}, "sigma = 1"),
        (fv.FedVRA(gamma=0.0, a=10), {}, "no duals"),
        (fv.FedVRA(), {}, "adapts its stepsizes"),
        (fv.FedVRA(gamma=200.0, a=10, d=0), {}, "d = 0"),
        (fv.FedVRA(gamma=200.0, a=10), {"lr": 0.1}, "gamma\\*lr must not exceed 1"),
        (fv.FedPD(gamma=200.0, skip=0.5), {"sampler": fv.Full()}, "skips communication"),
        (fv.FedVRA(gamma=200.0, a=10), {"sampler": fv.Cyclic(2)}, "independent draws"),
        (fv.FedVRA(gamma=200.0, a=10), {"sampler": fv.PowerOfChoice(2, 4)}, "independent draws"),
        (fv.FedVRA(gamma=[[200.0] * N] * 15 + [[300.0] * N] * 15, a=10), {}, "gamma changes"),
        (fv.FedVRA(gamma=200.0, a=10), {"lr": np.linspace(1e-5, 1e-4, 30)[:, None].repeat(N, 1)}, "eta changes"),
        (fv.FedVRA(gamma=200.0, a=10), {"work": fv.Steps([0, 1, 1, 1, 1, 1])}, "no local steps"),
        (fv.FedVRA(gamma=200.0, a=10), {"problem": fv.Quadratic(-A, B)}, "not bounded below"),
        (fv.FedVRA(gamma=200.0, a=10), {"sampler": fv.Replay([[0, 1]] * 30, [[0.5, 0.2]] * 30)}, "not known"),
    ],
)
def test_what_the_theorem_does_not_speak_of(algorithm: fv.Algorithm, changes: dict[str, Any], reason: str) -> None:
    found = checked(algorithm, **{"lr": 1e-5, **changes})
    assert not found.covered
    assert any(re.search(reason, each) for each in found.reasons), found.reasons
    cured = not re.search("independent|no local steps|bounded|not known", reason)
    assert (found.proposal is not None) == cured  # no stepsizes help against what is not about them


def test_every_round_is_looked_at() -> None:
    inside = checked(fv.FedVRA(gamma=200.0, a=10, d=3), lr=0.01).proposal
    assert inside is not None
    gamma, eta = float(inside.gamma[0]), float(inside.eta[0])
    assert checked(fv.FedVRA(gamma=gamma, a=10, d=3), lr=eta, rounds=400).covered
    once = parse_setting("10:1000@77:10@78")
    found = checked(fv.FedVRA(gamma=gamma, a=once, d=3), lr=eta, rounds=400)
    assert not by_name(found)["eta, a and d"].holds
    assert not any("rounds were looked at" in note for note in found.notes)
    long = checked(fv.FedVRA(gamma=gamma, a=10, d=3), lr=eta, rounds=5000)
    assert "the settings of 1000 of the 5000 rounds were looked at." in long.notes


@pytest.mark.parametrize(
    ("changes", "share"),
    [({"sampler": fv.Bernoulli(0.3)}, 0.7**N), ({"drop": 0.1, "sampler": fv.Uniform(1)}, 0.1), ({}, 0)],
)
def test_rounds_without_anybody_are_mentioned(changes: dict[str, Any], share: float) -> None:
    said = [note for note in checked(fv.FedVRA(gamma=200.0, a=10), **changes).notes if "nobody answers" in note]
    assert [note.split()[1] for note in said] == ([f"{share:.2g}"] if share else [])


def test_lost_replies_lower_the_probability() -> None:
    some, all_ = checked(fv.FedVRA(gamma=200.0, a=10), drop=0.25), checked(fv.FedVRA(gamma=200.0, a=10))
    assert some.settings.p.max() == pytest.approx(0.75 * all_.settings.p.max())


def test_many_clients_are_sampled_and_it_is_said() -> None:
    found = checked(fv.FedVRA(gamma=200.0, a=10), clients=4)
    assert len(found.clients) == 4
    assert any("4 of the 6 clients" in note for note in found.notes)
    assert found.to_dict()["clients_looked_at"] == 4
    proposal = found.proposal
    assert isinstance(proposal, fv.Theorem1)
    assert proposal.total == N


# -- networks and two blocks ----------------------------------------------------------------------------------------------


def blobs() -> fv.FederatedData:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    inputs = (rng.normal(size=(3, 6))[labels] + rng.normal(size=(200, 6))).astype(np.float32)
    return fv.split((inputs, labels), fv.Dirichlet(0.5), clients=5, seed=1)


def linear() -> nn.Module:
    return nn.Linear(6, 3)


SUPERVISED: dict[str, Any] = {"sampler": fv.Uniform(2), "work": fv.Epochs(2), "batch_size": 10, "rounds": 5}


def test_a_model_says_what_its_estimates_are() -> None:
    found = fv.check(fv.FedVRA(), problem=fv.Supervised(linear, weight_decay=0.1), data=blobs(), **SUPERVISED)
    assert not found.estimates.exact
    assert any(": a lower bound of the true constant" in note for note in found.notes)
    assert any("cuts of one permutation" in note for note in found.notes)
    some = fv.check(fv.FedVRA(), problem=fv.Supervised(linear), data=blobs(), **SUPERVISED, samples=3)
    assert any("of 3 samples for all that a client has" in note for note in some.notes)
    assert not some.estimates.whole
    assert (found.estimates.noise > 0).all()
    assert (found.estimates.L > 0.1).all()
    full = fv.check(fv.FedVRA(), problem=fv.Supervised(linear), data=blobs(), **{**SUPERVISED, "batch_size": None})
    assert not full.estimates.noise.any()


def test_two_blocks_are_for_theorem_2() -> None:
    run: dict[str, Any] = {
        "problem": fv.SemiSupervised(linear, hidden=0.5),
        "data": blobs(),
        **SUPERVISED,
        "work": fv.Steps(3),
    }
    found = fv.check(fv.FedVRAU(gamma=0.5, a=5, d=2), **run)
    assert found.theorem == 2
    assert not found.covered
    assert {"participation", "lr_y, as proved", "lr_y, as printed"} <= set(by_name(found))
    proposal = found.proposal
    assert isinstance(proposal, fv.Theorem2)
    assert proposal.holds
    made = found.to_dict()["proposal"]
    assert made["bound_without_noise"] > 0
    assert any("for exact gradients" in note for note in found.notes)
    factor = made["lr_y_factor"]
    assert list(found.settings.lr_y * factor) == pytest.approx(list(proposal.lr_y))
    problem = fv.SemiSupervised(linear, hidden=0.5, lr_y=run["problem"].lr_y * factor)
    algorithm = fv.FedVRAU(gamma=made["gamma"], a=made["a"], d=made["d"])
    assert fv.check(algorithm, **{**run, "problem": problem, "lr": made["eta"]}).covered
    everyone = fv.check(fv.FedVRAU(gamma=0.5, a=5, d=2), **{**run, "sampler": fv.Full()})
    assert not by_name(everyone)["participation"].holds
    assert everyone.proposal is None


# -- the command ----------------------------------------------------------------------------------------------------------

SMALL = [
    "--clients",
    "6",
    "--cohort",
    "3",
    "--model",
    "linear",
    "--epochs",
    "1",
    "--batch-size",
    "full",
    "--rounds",
    "2",
]


def ask(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["check", *words])
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_proposes_options_that_it_then_accepts() -> None:
    first = json.loads(ask("digits", *SMALL, "--json"))
    assert first["covered"] is False
    better = first["proposal"]
    options = [f"--set={name}={better[name]}" for name in ("gamma", "a", "d")]
    second = json.loads(ask("digits", *SMALL, *options, "--lr", str(better["eta"]), "--json"))
    assert second["covered"] is True
    assert second["promise"]["bound"] == pytest.approx(better["bound"])
    assert second["L"] == first["L"]


def test_the_command_for_people() -> None:
    text = ask("digits", *SMALL, "--look-at", "3")
    for part in (
        "not covered by Theorem 1",
        "FAILS",
        "as options: --set gamma=",
        "3 of the 6 clients",
        "lower bound",
        "D_1",
    ):
        assert part in text
    assert "no stepsizes would be covered" in ask("digits", *SMALL, "--sampler", "cyclic")
    none = ask("digits", *SMALL, "--algorithm", "fedavg")
    assert "not an instance of FedVRA: it has no duals" in none
    assert "as options" in none


def test_a_folder_is_looked_at_where_it_stands(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = CliRunner().invoke(main, ["run", "digits", *SMALL, "--lr", "0.2", "--workers", "1", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    start = json.loads(ask(str(folder / "config.yaml"), "--json"))
    later = json.loads(ask(str(folder), "--json"))
    assert any("after round 2" in note for note in later["notes"])
    assert not any("after round" in note for note in start["notes"])
    assert all(later["L"][q] >= start["L"][q] for q in ("min", "median", "max"))
    assert later["L"] != start["L"]
    assert later["start"] == start["start"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["digitz"], "did you mean 'digits'"),
        (["no-such.yaml"], "cannot be read"),
        (["digits", "--look-at", "none"], "look-at must be a whole number"),
        (["digits", "--samples", "0"], "samples must be at least 1"),
        (["digits", "--set", "b=1"], "hyper-parameter"),
    ],
)
def test_bad_usage(words: list[str], says: str) -> None:
    assert says in ask(*words, code=2)


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    assert "there is no run in" in ask(str(tmp_path), code=2)


def test_arguments_of_simulate_that_decide_nothing_are_refused() -> None:
    with pytest.raises(fv.UsageError, match="no argument of check 'workers'"):
        checked(fv.FedVRA(), workers=2)


def test_quantiles() -> None:
    assert quantiles(np.array([5.0, 1.0])) == {"min": 1.0, "median": 3.0, "max": 5.0}
