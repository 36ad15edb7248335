"""What happens between one client's steps and the next one's is quick, and still sees and does all that it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.local import programs
from fedvra.local.python_state import PythonState
from fedvra.local.randomness import seed_torch


class Keeper(nn.Module):
    """Keeps one thing of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.name, self.pair = 3, "a", (1, (2.5, None))
        self.empty: list[int] = []
        self.full = [1]
        self.table: dict[str, Any] = {}
        self.nested = ({"deep": 1},)
        self.tensor, self.array = torch.zeros(2), np.zeros(2)
        self.loss: Callable[..., Any] = nn.functional.cross_entropy


def setting(name: str, value: Any) -> Callable[[Keeper], None]:
    return lambda keeper: setattr(keeper, name, value)


CHANGES: dict[str, tuple[str, Callable[[Keeper], Any]]] = {
    "another number": ("count", setting("count", 4)),
    "another word": ("name", setting("name", "b")),
    "another tuple": ("pair", setting("pair", (1, (2.5, 0)))),
    "another function": ("loss", setting("loss", nn.functional.mse_loss)),
    "a list that was empty": ("empty", lambda keeper: keeper.empty.append(1)),
    "a list that is empty now": ("full", lambda keeper: keeper.full.clear()),
    "a dict that was empty": ("table", lambda keeper: keeper.table.update(a=1)),
    "a dict inside a tuple": ("nested", lambda keeper: keeper.nested[0].update(deep=2)),
    "a tensor": ("tensor", lambda keeper: keeper.tensor.add_(1)),
    "an array": ("array", lambda keeper: keeper.array.fill(1)),
    "a new attribute": ("fresh", setting("fresh", 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen_and_undone(change: str) -> None:
    keeper = Keeper()
    state = PythonState(keeper)
    assert state.changed() == []
    name, apply = CHANGES[change]
    apply(keeper)
    assert state.changed() == [name]
    state.restart()
    fresh = vars(Keeper())
    assert vars(keeper).keys() == fresh.keys()
    assert name == "fresh" or repr(vars(keeper)[name]) == repr(fresh[name])
    apply(keeper)
    assert state.changed() == [name]


@pytest.mark.parametrize("known", [True, False])
def test_an_equal_value_is_no_change(known: bool) -> None:
    keeper = Keeper()
    state = PythonState(keeper, known=[keeper.tensor] if known else [])
    keeper.pair, keeper.full, keeper.table = (1, (2.5, None)), [1], {}
    assert state.changed() == []
    keeper.tensor.add_(1)  # a parameter or a buffer may change
    assert state.changed() == ([] if known else ["tensor"])


def test_the_generator_starts_where_torch_would_start_it() -> None:
    with torch.random.fork_rng(devices=[]):
        for key in (0, 5, 2**62 - 1):
            seed_torch(key)
            ours = torch.rand(4)
            torch.manual_seed(key)
            assert torch.equal(ours, torch.rand(4))


@pytest.mark.parametrize("path", ["eager", "traced"])
def test_samples_made_ready_at_once_or_batch_by_batch(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with more samples than fit is fed batch by batch, and learns the same to the bit."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, size=(24, 3, 4, 4), dtype=np.uint8))
    data = fv.split(
        (pixels, torch.from_numpy(rng.integers(0, 3, 24))),
        fv.IID(),
        clients=3,
        transform=fv.Transform((0.5, 0.4, 0.3), (0.2, 0.2, 0.2)),
    )

    def learn() -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
        return fv.simulate(
            fv.FedAvg(),
            problem=fv.Supervised(model),
            data=data,
            sampler=fv.Full(),
            work=fv.Epochs(2),
            lr=0.1,
            batch_size=3,
            rounds=2,
            workers=1,
            solver=fv.SolverSettings(path=path),
        ).x0

    made: list[int] = []
    ready = programs.Epoch.__init__
    monkeypatch.setattr(programs.Epoch, "__init__", lambda self, *given: (made.append(1), ready(self, *given))[1])
    at_once = learn()
    assert made
    made.clear()
    monkeypatch.setattr(programs, "PREPARED", 100)
    assert torch.equal(at_once, learn())
    assert not made


class Moving(nn.Module):
    """Clips its weights as one should not: by other memory in their place."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(64)), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.data = self.scale.data.clamp(-0.5, 0.5)
        scores: torch.Tensor = self.layer(x.flatten(1) * self.scale)
        return scores


def test_a_parameter_that_is_put_elsewhere_is_refused() -> None:
    """Its steps would be taken in memory that nobody looks at."""
    with pytest.raises(fv.UsageError, match="parameter scale into other memory"):
        fv.simulate(
            fv.FedAvg(),
            problem=fv.Supervised(Moving()),
            data=fv.split(fv.load("digits"), fv.IID(), clients=100),
            sampler=fv.Uniform(2),
            work=fv.Epochs(1),
            batch_size=10,
            lr=0.1,
            rounds=1,
            workers=1,
        )
