"""Losses that hold on to the model or keep something, targets of every kind, outputs and inputs that are trees."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from zoo.cases import Case, Loss, bits, mlp, numbers, padded_words, vectors


def l1(module: nn.Module) -> Loss:
    return lambda out, y: F.cross_entropy(out, y) + 0.05 * sum(p.abs().sum() for p in module.parameters())


def elastic_weights(module: nn.Module) -> Loss:
    """Pulled to where it started, entry by entry: the start and the strengths are plain tensors."""
    start = {name: p.detach().clone() + 0.1 for name, p in module.named_parameters()}
    strength = {name: torch.linspace(0, 1, p.numel()).view_as(p) for name, p in module.named_parameters()}

    def loss(out: Tensor, y: Tensor) -> Tensor:
        pull = sum((strength[n] * (p - start[n]) ** 2).sum() for n, p in module.named_parameters())
        return F.cross_entropy(out, y) + 0.3 * pull

    return loss


def orthogonality(module: nn.Module) -> Loss:
    """Through the layer rather than through the list of parameters."""
    layer = module[0]

    def loss(out: Tensor, y: Tensor) -> Tensor:
        gram = layer.weight.t() @ layer.weight
        return F.cross_entropy(out, y) + 0.1 * (gram - torch.eye(8, dtype=gram.dtype)).pow(2).sum()

    return loss


class Remembered(nn.Module):
    """The loss looks at an activation that the last forward pass left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = torch.tanh(self.a(x))
        return self.b(self.hidden)


def sparse_activity(module: nn.Module) -> Loss:
    return lambda out, y: F.cross_entropy(out, y) + 0.1 * module.hidden.abs().mean()


def adversarial(module: nn.Module) -> Loss:
    """The loss calls the model once more."""
    return lambda out, y: F.cross_entropy(out, y) + (module(torch.full((2, 8), 0.3, dtype=out.dtype)) ** 2).mean()


def weighted(_: nn.Module) -> Loss:
    return nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))


def learnt_outside(_: nn.Module) -> Loss:
    """A parameter of the loss: no part of the model, so it stays what it is."""
    noise = nn.Parameter(torch.tensor(0.3))
    return lambda out, y: F.cross_entropy(out, y) * torch.exp(-noise) + noise


def smoothed(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, label_smoothing=0.1)


def focal(out: Tensor, y: Tensor) -> Tensor:
    logp = F.log_softmax(out, 1).gather(1, y[:, None])[:, 0]
    return -((1 - logp.exp()) ** 2 * logp).mean()


def soft_labels(n: int) -> tuple[Tensor, Tensor]:
    inputs, _ = vectors(n)
    return inputs, inputs[:, :3].softmax(1)


def classes_2d(n: int) -> tuple[Tensor, Tensor]:
    """Integer targets of shape [n, 4]: four labels for each sample."""
    inputs, _ = vectors(n)
    return inputs, (inputs[:, :4] > 0).long() + (inputs[:, 4:] > 0).long()


def four_labels(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.view(len(out), 3, 4), y)


class Heads(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body = kind, nn.Linear(8, 10)
        self.label, self.amount = nn.Linear(10, 3), nn.Linear(10, 1)

    def forward(self, x: Tensor) -> object:
        h = torch.tanh(self.body(x))
        label, amount = self.label(h), self.amount(h)[:, 0]
        match self.kind:
            case "tuple":
                return label, amount
            case "dict":
                return {"label": label, "amount": amount}
            case "nested":
                return {"heads": [label, (amount, None)], "size": len(x)}
            case _:
                return Output(label, amount)


class Output(NamedTuple):
    label: Tensor
    amount: Tensor


class ModelOutput(OrderedDict):
    """As transformers has it: a dict whose entries are attributes too."""

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Described(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor) -> ModelOutput:
        return ModelOutput(logits=self.body(x))


def two_tasks(n: int) -> tuple[Tensor, dict[str, Tensor]]:
    inputs, labels = vectors(n)
    return inputs, {"label": labels, "amount": inputs[:, 0] * 2}


def tupled_tasks(n: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    inputs, wanted = two_tasks(n)
    return inputs, (wanted["label"], wanted["amount"])


def both(out: object, y: object) -> Tensor:
    label, amount = out.values() if isinstance(out, dict) else out
    wanted = y.values() if isinstance(y, dict) else y
    label_wanted, amount_wanted = wanted
    return F.cross_entropy(label, label_wanted) + F.mse_loss(amount, amount_wanted)


def only_label(out: dict[str, list[Tensor]], y: Tensor) -> Tensor:
    return F.cross_entropy(out["heads"][0], y) + out["heads"][1][0].pow(2).mean()


class Pair(nn.Module):
    """Two inputs of different shapes and dtypes, by position."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(5, 4), nn.Linear(12, 3)

    def forward(self, category: Tensor, values: Tensor) -> Tensor:
        return self.body(torch.cat([self.table(category), values], 1))


def pairs(n: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    inputs, labels = vectors(n)
    return (torch.arange(n) % 5, inputs), labels


class Named(nn.Module):
    """A dict of inputs, one of them optional and one a flag for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        h = self.embed(input_ids)
        keep = torch.ones_like(h[..., :1]) if attention_mask is None else attention_mask[..., None]
        return self.head((h * keep).sum(1) / keep.sum(1)) * scale


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 3), nn.Linear(1, 3)

    def forward(self, features: dict[str, Tensor], extra: tuple[Tensor, ...]) -> Tensor:
        return self.a(features["x"]) + self.b(extra[0][:, None])


def nested_inputs(n: int) -> tuple[dict[str, object], Tensor]:
    inputs, labels = vectors(n)
    return {"features": {"x": inputs}, "extra": (inputs[:, 0] * 3,)}, labels


def squared(out: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(out, y)


def regressor() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))


def four() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


def float_bits(n: int) -> tuple[Tensor, Tensor]:
    inputs, answers = bits(n)
    return inputs, answers.double()


CASES = [
    Case("l1-penalty", mlp, vectors, loss_of=l1),
    Case("elastic-weights", mlp, vectors, loss_of=elastic_weights),
    Case("orthogonality-penalty", mlp, vectors, loss_of=orthogonality),
    Case("activity-penalty", Remembered, vectors, loss_of=sparse_activity),
    Case("loss-calls-model", mlp, vectors, loss_of=adversarial),
    Case("class-weights", mlp, vectors, loss_of=weighted),
    Case("loss-with-parameter", mlp, vectors, loss_of=learnt_outside),
    Case("label-smoothing", mlp, vectors, smoothed, fast=True),
    Case("focal", mlp, vectors, focal),
    Case("soft-labels", mlp, soft_labels, fast=True),
    Case("labels-of-a-sample", lambda: nn.Linear(8, 12), classes_2d, four_labels),
    Case("bce-integer-targets", four, bits, F.binary_cross_entropy_with_logits, float_targets=True),
    Case("bce-float64-targets", four, float_bits, F.binary_cross_entropy_with_logits),
    Case("bce-module", four, float_bits, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))),
    Case("mse-float64-targets", regressor, numbers, squared),
    Case("huber", regressor, numbers, F.smooth_l1_loss),
    Case("outputs-tuple", lambda: Heads("tuple"), tupled_tasks, both),
    Case("outputs-dict", lambda: Heads("dict"), two_tasks, both),
    Case("outputs-named-tuple", lambda: Heads("named"), tupled_tasks, both),
    Case("outputs-nested", lambda: Heads("nested"), vectors, only_label),
    Case("outputs-model-output", Described, vectors, lambda out, y: F.cross_entropy(out.logits, y)),
    Case("inputs-tuple", Pair, pairs),
    Case("inputs-dict", Named, padded_words),
    Case("inputs-nested", Nested, nested_inputs),
]
