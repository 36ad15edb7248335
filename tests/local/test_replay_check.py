"""The check against autograd: every way of breaking a recording is noticed, and a right one is not held up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fedvra.core.torch_private import memory
from fedvra.local.looking import look
from fedvra.local.replay import CannotReplayError, Program, trace_step
from fedvra.local.replay import program as programs
from fedvra.local.replay.compile import Recording
from fedvra.local.replay.record import Call, aten
from fedvra.local.subject import Subject


class Net(nn.Module):
    """Square layers, so that mistakes have the right shape."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        h = self.norm(h - 0.5 * self.b(h))
        h.mul_(1.5)
        return self.out(F.gelu(h))


def trace(dtype: torch.dtype = torch.float32) -> Program:
    torch.manual_seed(0)
    module = Net().to(dtype)
    batches = [(torch.randn(5, 6, dtype=dtype), torch.randint(3, (5,))) for _ in range(2)]
    subject = Subject(module, F.cross_entropy, look(module, F.cross_entropy, batches[0], 0).findings)
    subject.lend()
    x = subject.gather()
    return trace_step(subject, (batches[0], batches[1]), (x.clone(), x + 0.05 * torch.randn_like(x)), x)


def index(calls: list[Call], name: str, which: int = 0) -> int:
    return [k for k, c in enumerate(calls) if c.name == name][which]


def without(recording: Recording, name: str, which: int = 0) -> Recording:
    calls = list(recording.calls)
    del calls[index(calls, name, which)]
    return recording._replace(calls=calls)


def changed(recording: Recording, name: str, change: Callable[[Call], Call], which: int = 0) -> Recording:
    calls = list(recording.calls)
    k = index(calls, name, which)
    calls[k] = change(calls[k])
    return recording._replace(calls=calls)


def frozen(recording: Recording, memories: set[int]) -> Recording:
    """What lies in this memory keeps the value it has."""
    copies: dict[int, Tensor] = {}

    def copy(t: Tensor) -> Tensor:
        return copies.setdefault(id(t), t.detach().clone()) if memory(t) in memories else t

    calls = [dataclasses.replace(c, args=tree_map_only(Tensor, copy, c.args)) for c in recording.calls]
    return recording._replace(calls=calls)


def permuted(recording: Recording, i: int, j: int) -> Recording:
    gradients = list(recording.gradients)
    gradients[i], gradients[j] = gradients[j], gradients[i]
    return recording._replace(gradients=gradients)


def replaced(recording: Recording, k: int, value: Any) -> Recording:
    return recording._replace(gradients=[value if i == k else g for i, g in enumerate(recording.gradients)])


WEIGHT_A, BIAS_A, WEIGHT_B, BIAS_B, BIAS_OUT = 0, 1, 2, 3, 5
BROKEN: dict[str, Callable[[Recording], Recording]] = {
    "a call is dropped": lambda r: without(r, "tanh"),
    "a call of the backward pass is dropped": lambda r: without(r, "tanh_backward"),
    "an in-place call is dropped": lambda r: without(r, "mul_"),
    "an in-place call runs twice": lambda r: r._replace(
        calls=[c for call in r.calls for c in ([call, call] if call.name == "mul_" else [call])]
    ),
    "two parameters are swapped": lambda r: permuted(r, WEIGHT_A, WEIGHT_B),
    "two biases are swapped": lambda r: permuted(r, BIAS_A, BIAS_B),
    "a bias gets no gradient": lambda r: replaced(r, BIAS_OUT, None),
    "a gradient is transposed": lambda r: replaced(r, WEIGHT_B, r.gradients[WEIGHT_B].T.contiguous()),  # type: ignore[union-attr]
    "the targets are frozen": lambda r: frozen(r, {memory(r.batch[1])}),
    "the inputs are frozen": lambda r: frozen(r, {memory(r.batch[0])}),
    "the parameters are frozen": lambda r: frozen(r, {memory(r.x)}),
    "a number is another": lambda r: changed(r, "mul", lambda c: dataclasses.replace(c, args=(c.args[0], 0.49))),
    "another function is called": lambda r: changed(
        r, "tanh", lambda c: dataclasses.replace(c, func=aten.sigmoid.default)
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_recording_is_noticed(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_step = programs.compile_step
    monkeypatch.setattr(programs, "compile_step", lambda recording, *rest: compile_step(BROKEN[name](recording), *rest))
    with pytest.raises(CannotReplayError, match="does not follow autograd"):
        trace(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_whole_recording_passes(dtype: torch.dtype) -> None:
    assert trace(dtype).places[0].shape == (5, 6)


def test_one_wrong_bias_among_large_gradients_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by one per cent, in the smallest of the gradients."""
    compile_step = programs.compile_step

    def off(recording: Recording, *rest: Any) -> Any:
        gradient = recording.gradients[BIAS_A]
        assert gradient is not None
        return compile_step(replaced(recording, BIAS_A, None), *rest) if gradient.norm() > 0 else None

    monkeypatch.setattr(programs, "compile_step", off)
    with pytest.raises(CannotReplayError, match=r"the gradient of a\.bias"):
        trace()
