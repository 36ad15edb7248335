"""Modules that look at themselves: at the identity, the kind and the attributes of their own parameters and layers."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass

import numpy as np
import torch
import torch.fx
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from zoo.cases import Case, Loss, mlp, vectors
from zoo.collection_python import Net


class Attribute(Net):
    """A number kept on the parameter itself."""

    def setup(self) -> None:
        self.a.weight.gain = 1.7

    def between(self, h: Tensor) -> Tensor:
        return h * self.a.weight.gain


class Kind(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * (2.0 if isinstance(self.a.weight, nn.Parameter) else 1.0)


class Identity(Net):
    def setup(self) -> None:
        self.gains = {id(self.a.weight): 1.7}

    def between(self, h: Tensor) -> Tensor:
        return h * self.gains.get(id(self.a.weight), 1.0)


class Leaf(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * (2.0 if self.a.weight.is_leaf and self.a.weight.requires_grad else 1.0)


class OwnState(Net):
    """Through the state dict, without gradients, and through the list of parameters, with them."""

    def between(self, h: Tensor) -> Tensor:
        size = sum(p.pow(2).sum() for p in self.parameters())
        return h * (1 + self.state_dict()["b.weight"].abs().mean()) / (1 + size)


class Trainable(Net):
    """A penalty on what is trained, in the forward pass."""

    def setup(self) -> None:
        self.a.bias.requires_grad_(False)

    def between(self, h: Tensor) -> Tensor:
        return h * (1 + 0.01 * sum(p.sum() for p in self.parameters() if p.requires_grad))


class Switched(Net):
    """A layer that is put into evaluation mode while it works."""

    def setup(self) -> None:
        self.drop = nn.Dropout(0.5)

    def between(self, h: Tensor) -> Tensor:
        self.drop.eval()
        return self.drop(h)


class Unregistered(nn.Module):
    """Layers in a plain list: they work, but nobody trains them, and their statistics are nobody's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 10), nn.BatchNorm1d(10)]
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Saved(Net):
    """Written to a file in memory and read back."""

    def between(self, h: Tensor) -> Tensor:
        file = io.BytesIO()
        torch.save(h.detach().mean(0), file)
        file.seek(0)
        return h + torch.load(file)


class Applied(Net):
    """Python, called for every number."""

    def between(self, h: Tensor) -> Tensor:
        return h + h.detach().clone().apply_(lambda value: 0.3 if value > 0 else -0.1)


class Storage(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * (1 + abs(float(np.frombuffer(bytes(h.detach().untyped_storage()), dtype=_numpy(h))[0])))


def _numpy(t: Tensor) -> type[np.floating]:
    return np.float64 if t.dtype == torch.float64 else np.float32


class Contains(Net):
    def between(self, h: Tensor) -> Tensor:
        return h * 2 if 1.0 in h.detach().round() else h


class NodeHook(Net):
    """A hook on the node of the graph, where no tensor knows of it."""

    def between(self, h: Tensor) -> Tensor:
        h.grad_fn.register_hook(lambda inward, _outward: tuple(g * 2 if g is not None else None for g in inward))
        return h


class SavedHooks(Net):
    """Activations kept in half the precision for the way back."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(_shorter, lambda packed: packed[1].to(packed[0])):
            return super().forward(x)


def _shorter(t: Tensor) -> tuple[torch.dtype, Tensor]:
    return t.dtype, t.to(torch.float32) if t.dtype == torch.float64 else t


class InnerBackward(Net):
    """A whole backward pass inside the forward one, on a leaf of its own."""

    def between(self, h: Tensor) -> Tensor:
        probe = torch.ones(10, dtype=h.dtype, requires_grad=True)
        (h.detach() * probe).pow(2).sum().backward()
        return h * probe.grad.tanh()


class Cubic(torch.autograd.Function):
    """By NumPy, both ways."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.power(x.detach().numpy(), 3))

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(3 * np.square(x.detach().numpy()) * grad.detach().numpy())


class ByNumpy(Net):
    def between(self, h: Tensor) -> Tensor:
        return Cubic.apply(h)


class Trainer(Net):
    """A model with a loss of its own."""

    def training_loss(self, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) + 0.1 * self.a.weight.pow(2).sum()


def balanced(out: Tensor, y: Tensor) -> Tensor:
    """Two terms, weighed by their values as Python numbers."""
    first, second = F.cross_entropy(out, y), out.pow(2).mean()
    return first + second * first.item() / (second.item() + 1e-3)


def jittered(out: Tensor, y: Tensor) -> Tensor:
    weight = np.random.uniform(0.5, 1.5)  # noqa: NPY002
    return weight * F.cross_entropy(out + 0.1 * torch.randn_like(out), y)


def partial(_: nn.Module) -> Loss:
    return functools.partial(F.cross_entropy, label_smoothing=0.2)


@dataclass
class Answer:
    logits: Tensor
    names: tuple[str, ...] = ("a", "b", "c")


class Answering(Net):
    def forward(self, x: Tensor) -> Answer:
        return Answer(super().forward(x))


class Itself(Net):
    """The output is the loss; the labels are among the inputs."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(super().forward(x), y)


def with_labels(n: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    inputs, labels = vectors(n)
    return (inputs, labels), labels


def graph() -> nn.Module:
    return torch.fx.symbolic_trace(Net())


CASES = [
    Case("parameter-attribute", Attribute, vectors),
    Case("parameter-isinstance", Kind, vectors),
    Case("parameter-id", Identity, vectors),
    Case("parameter-is-leaf", Leaf, vectors),
    Case("own-state-dict", OwnState, vectors),
    Case("own-trainable", Trainable, vectors),
    Case("mode-switched", Switched, vectors),
    Case("unregistered-layers", Unregistered, vectors),
    Case("saved-and-loaded", Saved, vectors, eager=True),
    Case("apply-python", Applied, vectors, eager=True),
    Case("storage-bytes", Storage, vectors, eager=True),
    Case("contains", Contains, vectors, eager=True),
    Case("hook-node", NodeHook, vectors),
    Case("saved-tensors-hooks", SavedHooks, vectors),
    Case("backward-inside", InnerBackward, vectors),
    Case("custom-function-numpy", ByNumpy, vectors, eager=True),
    Case("loss-bound-method", Trainer, vectors, loss_of=lambda module: module.training_loss),
    Case("loss-item", mlp, vectors, balanced, eager=True),
    Case("loss-random", mlp, vectors, jittered, eager=True),
    Case("loss-partial", mlp, vectors, loss_of=partial, fast=True),
    Case("outputs-dataclass", Answering, vectors, lambda out, y: F.cross_entropy(out.logits, y)),
    Case("outputs-loss", Itself, with_labels, lambda out, _: out),
    Case("fx-graph", graph, vectors, fast=True),
]
