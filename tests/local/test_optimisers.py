"""Momentum, clipping, Adam and the like on the paths of a model: all agree with each other and with torch.optim itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.core.streams import Purpose, stream
from fedvra.data.batches import batch_schedule
from fedvra.local.protocol import SolverSettings

CLIENTS, DECAY, ETA = 8, 1e-2, 0.05
SGD = [
    fv.SGD(momentum=0.9),
    fv.SGD(momentum=0.9, nesterov=True),
    fv.SGD(clip=0.2),
    fv.SGD(momentum=0.8, clip=0.2, cosine=True),
    fv.SGD(warmup=3, lr_decay=0.9),
]
OTHERS = [fv.Adam(), fv.Adam(clip=0.1, cosine=True), fv.Torch(torch.optim.RMSprop)]
PENALTY = fv.FedVRA(gamma=0.5, a=2, d=1)


def data(partition: fv.Partition | None = None) -> fv.FederatedData:
    rng = np.random.default_rng(0)
    inputs, targets = torch.as_tensor(rng.normal(size=(240, 6))), torch.as_tensor(rng.integers(0, 3, 240))
    return fv.split((inputs, targets), partition or fv.IID(), clients=CLIENTS, seed=1)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def run(path: str, local, algorithm: fv.Algorithm = PENALTY, split=None, block=None, **changes) -> fv.History:
    settings = {
        "sampler": fv.Uniform(5),
        "work": fv.Epochs(2),
        "lr": ETA,
        "batch_size": 8,
        "rounds": 3,
        "seed": 3,
        "workers": 1,
    }
    return fv.simulate(
        algorithm,
        problem=fv.Supervised(mlp(), weight_decay=DECAY),
        data=split or data(),
        local=local,
        solver=SolverSettings(path=path, block=block),
        **{**settings, **changes},
    )


@pytest.mark.parametrize("lr", [ETA, [ETA + 0.001 * i for i in range(CLIENTS)]], ids=["one rate", "a rate each"])
@pytest.mark.parametrize("work", [fv.Steps(1), fv.RandomEpochs(1, 3)], ids=str)
@pytest.mark.parametrize("local", SGD, ids=lambda local: local.text())
def test_the_paths_agree(local, work, lr):
    eager, traced, block = (
        run(path, local, fv.Scaffold(), block=width, work=work, lr=lr)
        for path, width in (("eager", 1), ("traced", 1), ("block", 3))
    )
    assert block.path.name == "block"
    for other in (traced, block):
        assert torch.allclose(eager.x0, other.x0, rtol=0, atol=1e-12)
        assert torch.allclose(eager.lam, other.lam, rtol=0, atol=1e-11)
    assert (
        eager.x0 - run("eager", fv.SGD(), fv.Scaffold(), work=work, lr=lr).x0
    ).abs().max() > 1e-7 or work == fv.Steps(1)


@pytest.mark.parametrize("local", OTHERS, ids=lambda local: local.text())
def test_optimisers_of_torch_go_one_client_at_a_time_and_say_so(local):
    runs = [run(path, local, block=width) for path, width in (("eager", 1), ("traced", 1), ("block", 3))]
    assert all(torch.allclose(runs[0].x0, other.x0, rtol=0, atol=1e-12) for other in runs)
    chosen = run("auto", local)
    assert chosen.path.name == "traced"
    assert "one client at a time" in chosen.metrics[0]["path_reason"]
    assert all("path_reason" not in record for record in chosen.metrics[1:])
    assert torch.equal(chosen.x0, run("auto", local, workers=1).x0)


MAKERS = {
    "sgd": (fv.SGD(momentum=0.9), lambda p: torch.optim.SGD(p, ETA, momentum=0.9)),
    "nesterov": (fv.SGD(momentum=0.7, nesterov=True, clip=0.3), lambda p: torch.optim.SGD(p, ETA, 0.7, nesterov=True)),
    "adam": (fv.Adam(clip=0.3), lambda p: torch.optim.Adam(p, ETA)),
    "rmsprop": (fv.Torch(lambda p: torch.optim.RMSprop(p, lr=7.0)), lambda p: torch.optim.RMSprop(p, ETA)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_round_is_that_of_a_plain_torch_loop(name):
    """FedProx with one client: the gradient g + decay*x + mu*(x - x0) handed to torch.optim, clipped by torch."""
    local, make = MAKERS[name]
    split, mu, steps = data(), 0.3, 7
    found = run("auto", local, fv.FedProx(mu=mu), sampler=fv.Replay([[2]]), work=fv.Steps(steps), rounds=1, split=split)
    model = mlp()
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = make(list(model.parameters()))
    part = split.part(2)
    for index in batch_schedule(len(part), 8, steps, stream(3, Purpose.BATCHES, 0, 2), False):
        inputs, targets = split.dataset.take(part[index])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        for p, x0 in zip(model.parameters(), start, strict=True):
            p.grad += DECAY * p.detach() + mu * (p.detach() - x0)
        if local.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), local.clip)
        optimizer.step()
    wanted = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert torch.allclose(found.x0, wanted, rtol=0, atol=1e-12)


def test_a_named_default_is_what_there_was_before_to_the_bit():
    for path, width in (("eager", 1), ("traced", 1), ("block", 3)):
        with_it, without = run(path, fv.SGD(), block=width), run(path, fv.SGD(momentum=0.0), block=width)
        assert torch.equal(with_it.x0, without.x0)
        assert with_it.path.name == path


def test_models_with_statistics_and_odd_batches_keep_to_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    split = data(fv.QuantitySkew(alpha=2.0))
    both = [
        fv.simulate(
            fv.FedAvg(),
            problem=fv.Supervised(model, buffers="average"),
            data=split,
            sampler=fv.Uniform(3),
            work=fv.Epochs(1),
            batch_size=8,
            drop_last=True,
            rounds=2,
            lr=ETA,
            local=fv.SGD(momentum=0.9, clip=1.0),
            workers=1,
            solver=SolverSettings(path=path),
        )
        for path in ("eager", "traced")
    ]
    assert torch.allclose(both[0].x0, both[1].x0, rtol=0, atol=1e-11)
    assert torch.allclose(both[0].aux, both[1].aux, rtol=0, atol=1e-11)


@pytest.mark.parametrize("local", [fv.SGD(momentum=0.9), fv.Adam()], ids=lambda local: local.text())
def test_workers_do_not_matter(local):
    one, two = run("auto", local, workers=1), run("auto", local, workers=2)
    assert torch.equal(one.x0, two.x0)


@pytest.mark.parametrize(
    "local", [fv.AdamW(), fv.Torch(lambda p: torch.optim.SGD(p, weight_decay=0.1))], ids=lambda local: local.text()
)
def test_two_weight_decays_are_refused(local):
    with pytest.raises(fv.UsageError, match="weight decay of its own"):
        run("auto", local)


def test_adamw_decays_where_the_problem_does_not():
    free = fv.Supervised(mlp())
    found = [
        fv.simulate(
            fv.FedAvg(),
            problem=free,
            data=data(),
            sampler=fv.Full(),
            work=fv.Steps(3),
            rounds=1,
            lr=ETA,
            local=local,
            workers=1,
        ).x0
        for local in (fv.AdamW(weight_decay=0.5), fv.AdamW(weight_decay=0.0), fv.Adam())
    ]
    assert found[0].norm() < found[1].norm()
    assert torch.allclose(found[1], found[2], rtol=0, atol=1e-12)
