"""Modules put together at random, beside the plain loop: what nobody thought of listing."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

from zoo.cases import Case, vectors
from zoo.running import compare, shape_of, simulate

WIDTH = 8


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.view(-1, 2, 4)).flatten(1)


class Image(nn.Module):
    """As an image of two channels, with a pooling that keeps the size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x.view(-1, 2, 2, 2))), inplace=True).flatten(1)
        return x + torch.cat([h, h.neg()], 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x.view(-1, 2, 4)
        return self.attention(h, h, h, need_weights=False)[0].flatten(1)


class Lookup(nn.Module):
    """Features by the bin that a value falls into."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table((x.detach()[:, 0] * 2).long().clamp(-2, 2) + 2)


class Gate(nn.Module):
    """A parameter without dimensions and a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(0.3))
        self.register_buffer("ramp", torch.linspace(-1, 1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.strength + self.ramp)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(2, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x.view(-1, 4, 2))[0][:, -1]


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) if self.training else x


class Branch(nn.Module):
    """The sign of the batch decides."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else 0.5 * x


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "prelu": nn.PReLU,
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.3),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "convolution": Convolution,
    "image": Image,
    "attention": Attention,
    "lookup": Lookup,
    "gate": Gate,
    "recurrent": Recurrent,
    "noise": Noise,
    "branch": Branch,
}


class Composed(nn.Module):
    """Blocks in a row, some in residuals, some frozen, some used for a second time."""

    def __init__(self, plan: list[tuple[str, bool, bool]], again: int | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BLOCKS[name]() for name, _, _ in plan)
        self.residual = [residual for _, residual, _ in plan]
        for block, (_, _, frozen) in zip(self.blocks, plan, strict=True):
            block.requires_grad_(not frozen)
        self.again, self.head = again, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block, residual in zip(self.blocks, self.residual, strict=True):
            x = x + block(x) if residual else block(x)
        if self.again is not None:
            x = self.blocks[self.again % len(self.blocks)](x)
        return self.head(x)


plans = st.lists(st.tuples(st.sampled_from(sorted(BLOCKS)), st.booleans(), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    plan=plans,
    again=st.none() | st.integers(0, 4),
    shape=st.sampled_from(["even", "odd", "whole", "one step"]),
    path=st.sampled_from(["auto", "block", "traced", "eager"]),
)
def test_a_random_module_trains_as_a_plain_loop_trains_it(
    plan: list[tuple[str, bool, bool]], again: int | None, shape: str, path: str
) -> None:
    case = Case("composed", lambda: Composed(plan, again), vectors, buffers="average", tolerance=1e-8)
    compare(case, simulate(case, shape_of(case, shape, torch.float64), path), shape, torch.float64)
