"""Operations that are hard to record, modules that are not plain Python, and buffers of every kind."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from zoo.cases import Case, images, mlp, numbers, vectors
from zoo.collection_python import Net


class Where(Net):
    def between(self, h: Tensor) -> Tensor:
        return torch.where(h > 0, h * 2, h.abs().sqrt() * 0.1)


class SafeSqrt(Net):
    """The double where, without which the gradient is NaN."""

    def between(self, h: Tensor) -> Tensor:
        positive = h > 0
        return torch.where(positive, torch.sqrt(torch.where(positive, h, torch.ones_like(h))), torch.zeros_like(h))


class Masked(Net):
    def between(self, h: Tensor) -> Tensor:
        h = h.clone()
        h[h < 0] *= 0.25
        return h + h.masked_select(h > 0.5).sum() * 0.01


class TopK(Net):
    def between(self, h: Tensor) -> Tensor:
        values, places = h.topk(4, dim=1)
        return torch.zeros_like(h).scatter(1, places, values)


class Sorted(Net):
    def between(self, h: Tensor) -> Tensor:
        order = h.detach().sum(1).argsort()
        return h.sort(1).values.cumsum(1).gather(1, torch.arange(9, -1, -1).expand(len(h), 10)) + h[order].flip(0) * 0.1


class Experts(Net):
    """Each sample goes to the expert that its gate prefers: batches of every size, also empty ones."""

    def setup(self) -> None:
        self.gate, self.experts = nn.Linear(10, 3), nn.ModuleList(nn.Linear(10, 10) for _ in range(3))

    def between(self, h: Tensor) -> Tensor:
        weight, chosen = self.gate(h).softmax(1).max(1)
        out = torch.zeros_like(h)
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(h[rows]) * weight[rows, None])
        return out


class Einsum(Net):
    def setup(self) -> None:
        self.core = nn.Parameter(torch.randn(10, 10, 10) / 10)

    def between(self, h: Tensor) -> Tensor:
        return torch.einsum("bi,ijk,bj->bk", h, self.core, h)


class Fourier(Net):
    def between(self, h: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(h)
        return torch.fft.irfft(spectrum * torch.linspace(1, 0.1, 6, dtype=h.dtype), 10) + spectrum.abs()[:, :1]


class Vmapped(Net):
    def between(self, h: Tensor) -> Tensor:
        return torch.func.vmap(lambda row: torch.outer(row, row).softmax(1) @ row)(h)


class InnerGradient(Net):
    """A gradient inside the forward pass, as in physics-informed networks."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        energy = super().forward(x).pow(2).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return slope[:, :3]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 1.5 * x * grad  # not the true derivative: nothing but this function knows it


class Custom(Net):
    def between(self, h: Tensor) -> Tensor:
        return Square.apply(h)


class StraightThrough(Net):
    def between(self, h: Tensor) -> Tensor:
        return h + (h.round(decimals=1) - h).detach()


class InPlace(Net):
    def between(self, h: Tensor) -> Tensor:
        out = F.leaky_relu(h * 2, inplace=True).add(1)
        out += h
        out.mul_(0.5)
        out[:, :2].sub_(0.3)
        return out


class BatchShape(Net):
    """What happens depends on the size of the batch."""

    def between(self, h: Tensor) -> Tensor:
        half = len(h) // 2
        return torch.cat([h[:half] * 2, h[half:] - h[:half].mean(0)]) / len(h)


class Graph(nn.Module):
    """A graph convolution with a sparse matrix; every sample's row of features is a node's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 4), nn.Linear(32, 3)
        ring = torch.eye(8).roll(1, 0) + torch.eye(8).roll(-1, 0)
        self.adjacency = (ring / 2).to_sparse()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x.t()[..., None])).flatten(1)  # nodes first
        return self.b(torch.sparse.mm(self.adjacency, h).unflatten(1, (len(x), 4)).transpose(0, 1).flatten(1))


def scripted() -> nn.Module:
    return torch.jit.script(mlp())


def traced() -> nn.Module:
    return torch.jit.trace(mlp(), torch.zeros(2, 8))


class Teacher(nn.Module):
    """Frozen weights that follow the trained ones, in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 3), nn.Linear(8, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                    t.lerp_(s, 0.3)
        return self.student(x) + 0.5 * self.teacher(x).detach()


class Constant(Net):
    """Buffers that nothing changes: floats, an index, one that is not in the state dict."""

    def setup(self) -> None:
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 10))
        self.register_buffer("order", torch.arange(9, -1, -1))
        self.register_buffer("shift", torch.full((10,), 0.1), persistent=False)

    def between(self, h: Tensor) -> Tensor:
        return h[:, self.order] * self.scale + self.shift


class Centre(Net):
    """A float buffer of the module's own that training moves, by assignment."""

    def setup(self) -> None:
        self.register_buffer("centre", torch.zeros(10))

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.centre = 0.8 * self.centre + 0.2 * h.detach().mean(0)
        return h - self.centre


class Late(Net):
    """A buffer that stays still for two steps."""

    def setup(self) -> None:
        self.calls = 0
        self.register_buffer("late_scale", torch.ones(10))

    def between(self, h: Tensor) -> Tensor:
        self.calls += self.training
        if self.training and self.calls > 2:
            self.late_scale.mul_(0.5)
        return h * self.late_scale


class StepBuffer(Net):
    """A whole-number buffer that counts steps, and steers by them."""

    def setup(self) -> None:
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.step += 1
        return h / (1 + 0.2 * self.step)


class ColumnMax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(x, 1, keepdim=True) + torch.amax(x, 1, keepdim=True) - x.std(1, keepdim=True)


JIT = (".*torch.jit.* is deprecated", ".*is not supported in Python 3.14", ".*deprecated.*torch.compile")
CASES = [
    Case("where", Where, vectors),
    Case("where-nan-trap", SafeSqrt, vectors),
    Case("masked", Masked, vectors, eager=True),
    Case("topk-scatter", TopK, vectors),
    Case("sort-cumsum-gather", Sorted, vectors),
    Case("experts", Experts, vectors, eager=True),
    Case("einsum", Einsum, vectors, fast=True),
    Case("fourier", Fourier, vectors),
    Case("vmap-inside", Vmapped, vectors),
    Case("gradient-inside", InnerGradient, vectors, lr=0.02),
    Case("custom-function", Custom, vectors),
    Case("straight-through", StraightThrough, vectors),
    Case("in-place", InPlace, vectors),
    Case("batch-shape", BatchShape, vectors),
    Case("sparse-mm", Graph, vectors),
    Case("reductions", lambda: nn.Sequential(nn.Linear(8, 6), ColumnMax()), numbers, F.mse_loss, lr=0.02),
    Case("scripted", scripted, vectors, warns=JIT),
    Case("traced", traced, vectors, warns=JIT),
    Case("data-parallel", lambda: nn.DataParallel(mlp()), vectors),
    Case("teacher", Teacher, vectors, buffers="average", may_refuse=r"teacher"),
    Case("teacher-unsaid", Teacher, vectors, refused=r"teacher"),
    Case("constant-buffers", Constant, vectors, fast=True),
    Case("own-statistic-average", Centre, vectors, buffers="average"),
    Case("own-statistic-local", Centre, vectors, buffers="local"),
    Case("own-statistic-unsaid", Centre, vectors, refused=r"centre"),
    Case("late-buffer", Late, vectors, buffers="average", may_refuse=r"late_scale", shapes=("odd",)),
    Case("late-buffer-unsaid", Late, vectors, refused=r"late_scale", shapes=("odd",)),
    Case("step-buffer", StepBuffer, vectors, may_refuse=r"step"),
    Case(
        "upsampling",
        lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(3)),
        images,
        lazy=True,
        warns=("Lazy modules",),
    ),
]
