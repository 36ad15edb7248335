"""Large results take the place of arguments that nobody else reads: the same numbers to the bit, in less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedvra as fv
from fedvra.local.replay import tape


class Residual(nn.Module):
    """Sums and relus whose arguments are read again, and others whose are not."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.one(torch.relu(x))))
        return torch.relu(self.two(hidden) + hidden + x)


class Turned(nn.Module):
    """Adds a matrix to its own transpose, and a result to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        z = torch.tanh(y + y.transpose(2, 3))
        return torch.relu(z + z)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "turned": Turned,
    "shared sum": lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.GroupNorm(3, 3), nn.ReLU(), Residual()),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_bits(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(12, 3, 6, 6, generator=generator), torch.randint(0, 4, (12,), generator=generator)
    data = fv.split((images, labels), fv.IID(), clients=2)
    found: list[bool] = []
    may = tape.Tape._overwrites

    def noted(self: tape.Tape, *given: Any) -> bool:
        found.append(may(self, *given))
        return found[-1]

    monkeypatch.setattr(tape.Tape, "_overwrites", noted)

    def learn(large: int) -> tuple[fv.History, int]:
        monkeypatch.setattr(tape, "LARGE", large)
        found.clear()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(NETWORKS[network](), nn.Flatten(), nn.Linear(108, 4))
        history = fv.simulate(
            fv.FedVRA(gamma=0.1, a=2, d=2),
            problem=fv.Supervised(model, weight_decay=0.01, buffers="average"),
            data=data,
            sampler=fv.Full(),
            work=fv.Epochs(2),
            lr=0.05,
            batch_size=3,
            rounds=3,
            workers=1,
            solver=fv.SolverSettings(path="traced"),
        )
        return history, sum(found)

    (small, many), (apart, few) = learn(0), learn(1 << 40)
    assert "traced" in str(small.path)
    assert many > few
    assert torch.equal(small.x0, apart.x0)
    assert torch.equal(small.lam, apart.lam)
    assert small.aux is None or torch.equal(small.aux, apart.aux)


def test_large_tensors_are_given_up_after_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the step ends, and only those that nobody needs any more."""
    monkeypatch.setattr(tape, "LARGE", 1)
    at_the_end: list[int] = []
    step = tape.Tape.step

    def counted(self: tape.Tape, *given: Any) -> Callable[..., None]:
        self.calls.append(lambda: at_the_end.append(sum(t is not None for t in self.frame)))
        return step(self, *given)

    monkeypatch.setattr(tape.Tape, "step", counted)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4))
    data = fv.split((torch.randn(8, 3, 6, 6), torch.arange(8) % 4), fv.IID(), clients=2)
    solver = fv.Supervised(module).solver(data, fv.SolverSettings(batch_size=4, path="traced"))
    try:
        assert solver.path.name == "traced"
        assert 0 < at_the_end[0] <= len(list(module.parameters()))
    finally:
        solver.close()
