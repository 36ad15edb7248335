"""What was learned, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedvra as fv

INPUTS = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
DATA = fv.split((INPUTS, np.arange(60) % 3), fv.IID(), clients=6)


class Tied(nn.Module):
    """BatchNorm's statistics and counters, a frozen layer, one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.decode(self.encode(self.norm(self.frozen(x)))))


def learned() -> fv.History:
    usual: dict[str, Any] = {"sampler": fv.Full(), "work": fv.Steps(2), "lr": 0.1, "rounds": 2, "workers": 1}
    return fv.simulate(fv.FedVRA(), problem=fv.Supervised(Tied, buffers="average"), data=DATA, **usual)


def test_a_model_is_saved_under_its_own_names(tmp_path: Path) -> None:
    history = learned()
    path = history.save(tmp_path / "deep" / "model.safetensors")
    trained = history.model().eval()
    assert set(load_file(path)) == set(trained.state_dict())
    x = torch.from_numpy(INPUTS)
    for into in (Tied, Tied()):
        again = fv.load_model(path, into).eval()
        assert torch.equal(again(x), trained(x))
    assert again.decode.weight is again.encode.weight
    fv.save_model(trained.state_dict(), tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_what_does_not_fit_is_said_in_a_sentence(tmp_path: Path) -> None:
    history = learned()
    path = history.save(tmp_path / "model.safetensors")
    with pytest.raises(fv.UsageError, match=r"name a file that ends in .safetensors, got model.pt"):
        history.save("model.pt")
    with pytest.raises(
        fv.UsageError, match=r"holds another model: it lacks bias, weight; it has decode.weight, .* and 8 more"
    ):
        fv.load_model(path, nn.Linear(4, 3))
    wider = Tied()
    wider.head = nn.Linear(4, 5)
    with pytest.raises(fv.UsageError, match=r"its head.weight is of shape \[3, 4\], not \[5, 4\]"):
        fv.load_model(path, wider)
    with pytest.raises(fv.UsageError, match=r"cannot be read \(No such file or directory\)"):
        fv.load_model(tmp_path / "other.safetensors", Tied)
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(fv.UsageError, match="is no file of safetensors"):
        fv.load_model(tmp_path / "junk.safetensors", Tied)
    with pytest.raises(fv.UsageError, match=r"an nn.Module or its state_dict, got list"):
        fv.save_model([1], path)  # type: ignore[arg-type]
    with pytest.raises(fv.UsageError, match="a function that makes one, got int"):
        fv.load_model(path, lambda: 3)  # type: ignore[arg-type,return-value]
    costs = fv.Quadratic(torch.ones(3, 1, 1), torch.ones(3, 1))
    bare = fv.simulate(fv.FedAvg(), problem=costs, sampler=fv.Full(), work=fv.Steps(1), rounds=1, workers=1)
    with pytest.raises(fv.UsageError, match="Quadratic has no model"):
        bare.save(path)
