"""Replayed steps against autograd, for modules of many kinds; and what must be refused is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedvra.local.flat import FlatSpec
from fedvra.local.looking import look
from fedvra.local.replay import CannotReplayError, FirstStep, Program, trace_block, trace_first, trace_step
from fedvra.local.subject import Subject

Batch = tuple[Tensor, Tensor]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(20, 20), nn.LayerNorm(20), nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.norm(x + self.a(x)), approximate="tanh"))


class Factorised(nn.Module):
    """A weight that is a product of two parameters: its factors must not be updated before both gradients are known."""

    def __init__(self) -> None:
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(3, 20))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.A @ self.B)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 16), nn.Linear(16, 5)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.embed(x)).mean(1))


class InPlace(nn.Module):
    """Grouped convolutions, in-place activations, chunks and concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=2)
        self.norm, self.out = nn.GroupNorm(2, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.d(F.relu(self.c(x), inplace=True))).relu_()
        h = F.avg_pool2d(h, 2) + 0
        h *= 0.5
        a, b = h.chunk(2, 1)
        return self.out(torch.cat([b, a], 1).mean((2, 3)))


class UnusedAndBuffer(nn.Module):
    """A parameter without a gradient still decays; a constant buffer is read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.unused = nn.Linear(20, 5), nn.Linear(3, 3)
        self.register_buffer("scale", torch.linspace(0, 1, 20))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x * self.scale)


class Steered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) if x.sum() > 0 else -self.a(x)


class Masked(Steered):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).clone()
        h[h < 0] = 0
        return h


class PythonRandom(Steered):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * random.random()


def stack(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def vectors(size: int = 7) -> Batch:
    return torch.randn(size, 20), torch.randint(5, (size,))


def words() -> Batch:
    return torch.randint(11, (7, 6)), torch.randint(5, (7,))


def images() -> Batch:
    return torch.randn(7, 3, 9, 9), torch.randint(5, (7,))


def images_channels_last() -> Batch:
    return torch.randn(7, 3, 9, 9).contiguous(memory_format=torch.channels_last), torch.randint(5, (7,))


def regression() -> Batch:
    return torch.randn(7, 20), torch.rand(7, 1).round()


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, label_smoothing=0.1)


activations = (nn.LeakyReLU(), nn.ELU(), nn.SiLU(), nn.Softplus(), nn.Tanh())
deep = [layer for activation in activations for layer in (nn.Linear(20, 20), activation)]
ACCEPTED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch], Any]] = {
    "mlp": (stack(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), vectors, F.cross_entropy),
    "residual": (Residual, vectors, F.cross_entropy),
    "label smoothing": (Residual, vectors, smoothed),
    "factorised": (Factorised, vectors, F.cross_entropy),
    "attention": (Attention, words, F.cross_entropy),
    "in place": (InPlace, images, F.cross_entropy),
    "channels last": (InPlace, images_channels_last, F.cross_entropy),
    "unused parameter": (UnusedAndBuffer, vectors, F.cross_entropy),
    "squares": (stack(nn.Linear(20, 9), nn.Tanh(), nn.Linear(9, 1)), regression, F.mse_loss),
    "logits": (stack(nn.Linear(20, 9), nn.Sigmoid(), nn.Linear(9, 1)), regression, F.binary_cross_entropy_with_logits),
    "activations": (stack(*deep, nn.Linear(20, 5)), vectors, F.cross_entropy),
    "one sample": (stack(nn.Linear(20, 5, bias=False)), lambda: vectors(1), F.cross_entropy),
    "dropout off": (stack(nn.Linear(20, 5), nn.Dropout(0.0)), vectors, F.cross_entropy),
}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "steered by data": (Steered, "__bool__"),
    "masked": (Masked, "mask"),
    "Python's own randomness": (PythonRandom, "draws random numbers"),
}


def subject_of(module: nn.Module, loss: Any, batch: Batch) -> Subject:
    """As the solver sees it: looked at, and lent."""
    subject = Subject(module, loss, look(module, loss, batch, 0).findings)
    subject.lend()
    return subject


def step(
    module: nn.Module, loss: Any, batch: Callable[[], Batch], x: Tensor, compute: torch.dtype | None = None
) -> Program:
    batches = (batch(), batch())
    subject = subject_of(module, loss, batches[0])
    if compute is not None:
        batches = tuple((inputs.to(compute), targets) for inputs, targets in batches)
    return trace_step(subject, batches, (x.clone(), x + 0.01), x, subject.gather_aux(), compute=compute)


def filled(program: Program | FirstStep, *batch: Tensor) -> None:
    for place, values in zip(program.places, batch, strict=True):
        place.copy_(values)


def gradient(module: nn.Module, loss: Any, x: Tensor, batch: Batch) -> Tensor:
    for p, view in zip(module.parameters(), FlatSpec.of_parameters(module).views(x).values(), strict=True):
        p.data = view
    parameters = list(module.parameters())
    found = torch.autograd.grad(loss(module(batch[0]), batch[1]), parameters, allow_unused=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(parameters, found, strict=True)]
    )


def prepare(name: str, dtype: torch.dtype) -> tuple[nn.Module, Callable[[], Batch], Any, Tensor]:
    make, data, loss = ACCEPTED[name]
    torch.manual_seed(1)
    module = make().to(dtype)

    def batch() -> Batch:
        inputs, targets = data()
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in (inputs, targets))  # type: ignore[return-value]

    return module, batch, loss, FlatSpec.of_parameters(module).gather(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_replayed_step_is_autograds_step(name: str, dtype: torch.dtype) -> None:
    module, batch, loss, x = prepare(name, dtype)
    start = x.clone()
    program = step(module, loss, batch, x)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for k, (rho, with_c) in enumerate(((1.0, False), (0.9, False), (0.95, True))):
        inputs, targets = batch()
        c = torch.randn_like(x) if with_c else None
        x.copy_(start + 0.1 * k)
        before = x.clone()
        filled(program, inputs, targets)
        program(rho, 0.1, c)
        expected = rho * before - 0.1 * gradient(module, loss, before, (inputs, targets)) + (0 if c is None else c)
        assert float((x - expected).norm() / expected.norm()) < tolerance
        assert float(program.loss) == pytest.approx(loss(module(inputs), targets).item(), rel=1e-5)


@pytest.mark.parametrize("name", ["mlp", "residual", "factorised", "squares", "unused parameter", "one sample"])
@pytest.mark.parametrize("each", [True, False], ids=["a rate each", "one rate"])
def test_a_block_steps_as_its_clients_would(name: str, each: bool) -> None:
    module, batch, loss, x = prepare(name, torch.float64)
    batches = [batch() for _ in range(3)]
    inputs, targets = (torch.stack(parts) for parts in zip(*batches, strict=True))
    out = torch.stack([x + 0.01 * k for k in range(3)])
    before, c = out.clone(), torch.randn_like(out)
    subject = subject_of(module, loss, batches[0])
    others = torch.stack([batch()[0] for _ in range(3)]), targets
    program = trace_block(subject, ((inputs.flip(0), targets.flip(0)), others), (before, before + 0.01), out, out)
    out.copy_(before)
    filled(program, inputs, targets)
    rho, eta = [0.9, 0.8, 1.0] if each else [0.9] * 3, [0.1, 0.2, 0.0] if each else [0.1] * 3
    program(torch.tensor(rho, dtype=x.dtype) if each else 0.9, torch.tensor(eta, dtype=x.dtype) if each else 0.1, c)
    for k in range(3):
        expected = rho[k] * before[k] - eta[k] * gradient(module, loss, before[k], batches[k]) + c[k]
        assert float((out[k] - expected).norm() / expected.norm()) < 1e-12
        assert float(program.loss[k]) == pytest.approx(loss(module(batches[k][0]), batches[k][1]).item(), rel=1e-9)


@pytest.mark.parametrize("name", ["mlp", "residual", "factorised", "squares", "unused parameter", "one sample"])
def test_a_first_step_gives_every_gradient_and_their_weighted_sum(name: str) -> None:
    module, batch, loss, x = prepare(name, torch.float64)
    batches = [batch() for _ in range(3)]
    inputs, targets = (torch.stack(parts) for parts in zip(*batches, strict=True))
    subject = subject_of(module, loss, batches[0])
    others = torch.stack([batch()[0] for _ in range(3)]), targets
    first = trace_first(subject, ((inputs.flip(0), targets.flip(0)), others), (x.clone(), x + 0.01), x)
    x.mul_(1.1)  # it is bound to x, not to the values that x had
    filled(first, inputs, targets)
    first.run()
    expected = torch.stack([gradient(module, loss, x, one) for one in batches])
    rows, total, weights = torch.ones_like(expected), torch.ones_like(x), torch.tensor([0.2, 0.0, 1.5], dtype=x.dtype)
    for k in range(3):
        first.add_row_(k, rows[k], -0.5)
    first.add_sum_(total, weights, 0.1)
    assert float((rows - (1 - 0.5 * expected)).norm() / expected.norm()) < 1e-12
    assert float((total - (1 + 0.1 * weights @ expected)).norm() / expected.norm()) < 1e-12


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_replay_would_get_wrong_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    torch.manual_seed(1)
    module = make()
    x = FlatSpec.of_parameters(module).gather(module)
    with pytest.raises(CannotReplayError, match=reason):
        step(module, F.cross_entropy, vectors, x)


def test_dropout_draws_what_autograd_would_draw() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(20, 9), nn.Dropout(), nn.Linear(9, 5)).double()
    x = FlatSpec.of_parameters(module).gather(module)
    batch = (torch.randn(7, 20).double(), torch.randint(5, (7,)))
    program = step(module, F.cross_entropy, lambda: batch, x)
    assert program.draws
    for key in (1, 2):
        before = x.clone()
        filled(program, *batch)
        torch.manual_seed(key)
        program(1.0, 0.1)
        torch.manual_seed(key)
        expected = before - 0.1 * gradient(module, F.cross_entropy, before.clone(), batch)
        assert torch.allclose(x, expected, rtol=0, atol=1e-14)


def test_batch_norm_updates_its_running_statistics() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(20, 9), nn.BatchNorm1d(9), nn.Linear(9, 5)).double()
    batches = [(torch.randn(7, 20).double(), torch.randint(5, (7,))) for _ in range(2)]
    subject = subject_of(module, F.cross_entropy, batches[0])
    assert subject.aux_spec.names == ("1.running_mean", "1.running_var")
    x, aux = subject.gather(), subject.gather_aux()
    assert aux is not None
    start, statistics = x.clone(), aux.clone()
    program = trace_step(subject, (batches[0], batches[1]), (x.clone(), x + 0.01), x, aux)
    assert torch.equal(aux, statistics), "tracing must leave the statistics as they were"
    x.copy_(start)
    filled(program, *batches[1])
    program(1.0, 0.1)
    expected, after = subject.gradients(start, statistics, batches[1], 0)
    assert after is not None
    assert torch.allclose(aux, after, rtol=0, atol=1e-14)
    assert torch.allclose(x, start - 0.1 * torch.cat([g.flatten() for g in expected if g is not None]), atol=1e-14)


def test_a_matrix_gradient_never_exists_but_is_added_by_the_product() -> None:
    module, batch, loss, x = prepare("mlp", torch.float32)
    program, seen = step(module, loss, batch, x), []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        program(1.0, 0.1)
    assert seen.count("addmm_") == 2  # one per weight matrix
    assert not any(t.requires_grad for t in program.tensors)


def test_bfloat16_arithmetic_updates_float32_parameters() -> None:
    module, batch, loss, x = prepare("mlp", torch.float32)
    start, (inputs, targets) = x.clone(), batch()
    program = step(module, loss, lambda: (inputs, targets), x, compute=torch.bfloat16)
    x.copy_(start)
    filled(program, inputs, targets)
    program(1.0, 0.1)
    moved, expected = start - x, 0.1 * gradient(module, loss, start, (inputs, targets))
    assert x.dtype == torch.float32
    assert float(F.cosine_similarity(moved, expected, dim=0)) > 0.99
