"""The model that a run is for: equal to what is worked out by hand, the same whoever computes, and of no influence on x0."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.core.deploy import parse_deploy
from fedvra.core.errors import UsageError
from fedvra.engines import checkpoint
from fedvra.engines.experiment import Experiment
from fedvra.engines.federation import Federation
from small_nets import SETTINGS, batch_norm, mlp, small_data

N, P, ETA = 6, 3, 0.1
RNG = np.random.default_rng(4)
ROOTS, B = RNG.normal(size=(N, P, P)), RNG.normal(size=(N, P))
A = ROOTS @ ROOTS.transpose(0, 2, 1) / P + 0.3 * np.eye(P)
OMEGA = np.array([1, 2, 3, 1, 2, 3]) / 12
COHORTS = [[0, 2, 5], [1, 2], [0, 1, 3, 4], [2, 3, 5]]
STEPS = np.array([[1, 2, 3, 2, 1, 4]] * len(COHORTS))
GAMMAS, DS, AS = (
    np.array([0.5, 0.2, 0.4, 0.3, 0.6, 0.1]),
    np.array([2.0, 1, 3, 2, 1, 2]),
    np.array([3.0, 2, 1, 2, 3, 1]),
)
USUAL: dict[str, Any] = {
    "problem": fv.Quadratic(torch.from_numpy(A), torch.from_numpy(B)),
    "sampler": fv.Replay(COHORTS),
    "work": fv.Steps(STEPS),
    "lr": ETA,
    "weights": OMEGA,
    "rounds": len(COHORTS),
    "workers": 1,
}


def by_hand(gamma: Any, a: Any, d: Any) -> tuple[np.ndarray, np.ndarray]:
    """FedVRA as the paper writes it, with one gamma, a and d per client: x0 and the mean of the clients' models at the end."""
    gamma, a, d = (np.broadcast_to(np.asarray(each, dtype=float), N) for each in (gamma, a, d))
    beta = 1 / (OMEGA @ gamma)
    x0, lam, lams, mean = np.zeros(P), np.zeros(P), np.zeros((N, P)), np.zeros(P)
    for r, cohort in enumerate(COHORTS):
        models = {}
        for i in cohort:
            x = x0.copy()
            for _ in range(STEPS[r, i]):
                x = x - ETA * (A[i] @ x - B[i] - lams[i] + gamma[i] * (x - x0))
            models[i] = x
            lams[i] = lams[i] + a[i] * gamma[i] * (x0 - x)
        mean = np.average(list(models.values()), axis=0, weights=OMEGA[list(models)])
        lam = OMEGA @ lams
        moves = sum(OMEGA[i] * d[i] * gamma[i] * (models[i] - x0) for i in cohort)
        x0 = x0 + beta * moves - beta * lam
    return x0, mean


CASES = {  # which of the sums the plain one is a multiple of
    "of the sum of step 20": (0.5, 2.0, 2.0),
    "of the sum of step 19": (0.5, 2.0, DS),
    "of neither": (GAMMAS, AS, DS),
    "of neither, one sum for both": (GAMMAS, 2.0, 2.0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_mean_of_the_clients_models_is_that_worked_out_by_hand(case: str) -> None:
    gamma, a, d = CASES[case]
    x0, mean = by_hand(gamma, a, d)
    found = fv.simulate(fv.FedVRA(gamma=gamma, a=a, d=d), deploy="mean", **USUAL)
    np.testing.assert_allclose(found.x0, x0, rtol=1e-12)
    np.testing.assert_allclose(found.deployed, mean, rtol=1e-12)


def test_it_is_x0_plus_kappa_lam_where_d_is_one_over_p() -> None:
    """And all weights are equal: the identity by which one could tell it from x0 and lam alone, and no other case."""
    usual = {**USUAL, "sampler": fv.Uniform(2), "weights": "equal"}
    found = fv.simulate(fv.FedVRA(gamma=0.5, a=2, d=N / 2), deploy="mean", **usual)
    np.testing.assert_allclose(found.deployed, found.x0 + found.lam / 0.5, rtol=1e-12)


def test_a_running_mean_weighs_every_x0_by_its_age() -> None:
    found = fv.simulate(fv.FedDyn(alpha=0.5), deploy="ema:0.6", keep="x0", **USUAL)
    assert found.trajectory is not None
    weights = 0.6 ** np.arange(len(COHORTS))[::-1]
    np.testing.assert_allclose(found.deployed, weights @ found.trajectory.numpy() / weights.sum(), rtol=1e-12)


def test_of_fedavg_the_mean_is_x0_itself() -> None:
    found = fv.simulate(fv.FedAvg(), deploy="mean", **USUAL)
    assert torch.equal(found.deployed, found.x0)


class _Offsets(fv.TwoBlock):
    """f_i(x, y_i) = (x + y_i - i)^2/2 + y_i^2/2 on x <= 0.6; without the bound x = 1 is best."""

    lr_y, clients = 0.5, 3

    def x_start(self) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.float64)

    def y_start(self, client: int) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.float64)

    def cost(self, client: int, x: torch.Tensor, y: torch.Tensor) -> float:
        return float(((x + y - client) ** 2 + y**2) / 2)

    def gradient_x(self, client: int, x: torch.Tensor, y: torch.Tensor, rng: Any) -> torch.Tensor:
        return x + y - client

    def gradient_y(self, client: int, x: torch.Tensor, y: torch.Tensor, rng: Any) -> torch.Tensor:
        return x + 2 * y - client

    def project_x(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=0.6)

    def project_y(self, client: int, y: torch.Tensor) -> torch.Tensor:
        return y


@pytest.mark.parametrize("deploy", ["mean", "ema:0.5"])
def test_of_two_blocks_it_is_projected_as_x0_is(deploy: str) -> None:
    given = {"sampler": fv.Full(), "work": fv.Steps(5), "lr": 0.1, "rounds": 40, "workers": 1}
    found = fv.simulate(fv.FedVRAU(), problem=_Offsets(), deploy=deploy, **given)
    assert float(found.deployed) == pytest.approx(0.6)
    assert float(found.deployed) <= 0.6
    assert len(found.y) == 3


ALGORITHMS = [
    fv.FedAvg(), fv.FedAvg(averaging="unbiased"), fv.FedNova(), fv.Scaffold(), fv.FedADMM(gamma=0.5), fv.FedDyn(alpha=0.5),
    fv.FedVRA(), fv.FedVRA(gamma=0.5, a=3, d=2), fv.FedVRA(gamma=list(GAMMAS) * 2, a=list(AS) * 2, d=list(DS) * 2),
]  # fmt: skip
NET: dict[str, Any] = {**SETTINGS, "rounds": 4}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_x0_goes_on_as_it_would_whichever_model_is_deployed(algorithm: fv.Algorithm) -> None:
    given = {**NET, "problem": fv.Supervised(mlp), "data": small_data(), "drop": 0.2, "workers": 1}
    plain = fv.simulate(algorithm, deploy="x0", **given)
    for deploy in ("mean", "ema:0.5"):
        found = fv.simulate(algorithm, deploy=deploy, **given)
        assert torch.equal(found.x0, plain.x0)
        assert torch.equal(found.lam, plain.lam)
        assert [m["test_accuracy"] for m in found.metrics] == [m["test_accuracy"] for m in plain.metrics]
        assert all("model_accuracy" in m for m in found.metrics)
    assert not any(name.startswith("model") for record in plain.metrics for name in record)
    assert plain.deployed is plain.x0


UNEVEN = fv.FedVRA(gamma=list(GAMMAS) * 2, a=list(AS) * 2, d=list(DS) * 2)


@pytest.mark.parametrize(
    "more",
    [{}, {"compress": "quantize:4"}, {"refuse": fv.MedianNorm(3)}, {"compress_down": "bfloat16"}, {"drop": 0.3}],
    ids=str,
)
@pytest.mark.parametrize("deploy", ["mean", "ema:0.9"])
@pytest.mark.parametrize("algorithm", [UNEVEN, fv.FedNova()], ids=lambda a: a.name)
def test_it_is_the_same_to_the_bit_whatever_the_number_of_workers(
    algorithm: fv.Algorithm, deploy: str, more: dict[str, Any]
) -> None:
    given = {
        **NET,
        "problem": fv.Supervised(batch_norm, buffers="average"),
        "data": small_data(),
        "deploy": deploy,
        **more,
    }
    one, three = (fv.simulate(algorithm, workers=workers, **given) for workers in (1, 3))
    assert torch.equal(one.deployed, three.deployed)
    assert one.other is not None
    assert one.other.aux is not None
    assert torch.equal(one.model().state_dict()["1.running_mean"], three.model().state_dict()["1.running_mean"])
    assert one.metrics[-1]["model_accuracy"] == three.metrics[-1]["model_accuracy"]
    assert one.metrics[-1]["model_loss"] != one.metrics[-1]["test_loss"]


def test_single_uploads_make_the_same_mean() -> None:
    """Where each is looked at before it counts, and a rule refuses none."""
    given = {**USUAL, "deploy": "mean"}
    usual, singly = (fv.simulate(fv.FedVRA(gamma=GAMMAS, a=AS, d=DS), **given, refuse=r) for r in (None, _Nobody()))
    np.testing.assert_allclose(singly.deployed, usual.deployed, rtol=1e-12)


class _Nobody(fv.MedianNorm):
    """Refuses nobody."""

    def __init__(self) -> None:
        super().__init__(1e9)


def test_a_round_without_communication_leaves_it_as_it_was() -> None:
    """And the next with communication is of the models that are then sent, wherever their clients had got to."""
    gamma = 0.5
    federation = _federation(fv.FedPD(gamma=gamma, skip=0.6), "mean", sampler=fv.Full(), work=fv.Steps(2))
    state, talked = federation.state, []
    for _ in range(12):
        before, model = state.x0, state.deployed
        federation.round()
        talked.append(not torch.equal(state.x0, before))
        if talked[-1]:  # x0 is the mean of x_i - lam_i/gamma over all clients
            assert state.deployed is not None
            np.testing.assert_allclose(state.deployed.x, state.x0 + state.lam / gamma, rtol=1e-9)
        else:
            assert state.deployed is model
    federation.close()
    assert any(now and not last for last, now in pairwise(talked))


def _federation(algorithm: fv.Algorithm, deploy: str, **changes: Any) -> Federation:
    given = {name: value for name, value in USUAL.items() if name not in ("rounds", "workers")}
    return Federation(Experiment(algorithm, **{**given, **changes}, deploy=parse_deploy(deploy)), workers=1)


@pytest.mark.parametrize("deploy", ["mean", "ema:0.9"])
def test_a_checkpoint_holds_it(deploy: str, tmp_path: Path) -> None:
    problem = fv.Supervised(batch_norm, buffers="average")
    given = {**{k: v for k, v in NET.items() if k != "rounds"}, "problem": problem, "data": small_data()}

    def new() -> Federation:
        return Federation(Experiment(fv.FedVRA(), **given, deploy=parse_deploy(deploy)), workers=1)

    whole, part = new(), new()
    for _ in range(5):
        whole.round()
    for _ in range(3):
        part.round()
    checkpoint.save(part, tmp_path)
    resumed = new()
    assert checkpoint.restore(resumed, tmp_path) == 3
    assert resumed.state.deployed is not None
    for _ in range(2):
        resumed.round()
    assert whole.state.deployed is not None
    assert torch.equal(resumed.state.deployed.x, whole.state.deployed.x)
    assert torch.equal(resumed.state.deployed.aux, whole.state.deployed.aux)  # type: ignore[arg-type]
    assert resumed.state.deployed.weight == whole.state.deployed.weight
    for federation in (whole, part, resumed):
        federation.close()


def test_buffers_have_a_running_mean_too() -> None:
    seen: list[torch.Tensor] = []

    class Look(fv.Observer):
        def before(self, federation: Federation) -> None:
            return None

        def after(self, federation: Federation, _: Any) -> dict[str, Any]:
            assert federation.state.aux is not None
            seen.append(federation.state.aux.clone())
            return {}

    given = {**NET, "problem": fv.Supervised(batch_norm, buffers="average"), "data": small_data(), "workers": 1}
    found = fv.simulate(fv.FedAvg(), deploy="ema:0.5", callbacks=[Look()], **given)
    weights = torch.tensor([0.125, 0.25, 0.5, 1.0]).double()
    expected = weights @ torch.stack(seen).double() / weights.sum()
    assert found.other is not None
    torch.testing.assert_close(found.other.aux.double(), expected, rtol=1e-5, atol=1e-7)  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", ["x1", "ema", "ema:1", "ema:0", "ema:often", "mean:0.9", ""])
def test_what_is_no_model_is_refused_in_a_sentence(wrong: str) -> None:
    with pytest.raises(
        UsageError, match=r"deploy must be x0, mean, or ema with a factor between 0 and 1 such as ema:0.9"
    ):
        fv.simulate(fv.FedAvg(), deploy=wrong, **USUAL)


def test_what_is_saved_is_the_model_to_deploy(tmp_path: Path) -> None:
    given = {**NET, "problem": fv.Supervised(mlp), "data": small_data(), "workers": 1}
    found = fv.simulate(fv.FedVRA(), deploy="mean", **given)
    read = fv.load_model(found.save(tmp_path / "model.safetensors"), mlp)
    flat = torch.cat([p.detach().reshape(-1) for p in read.parameters()])
    assert torch.equal(flat, found.deployed)
    assert not torch.equal(flat, found.x0)
