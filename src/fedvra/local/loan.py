"""How a module was when it was lent to a run, and how it is given back like that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from fedvra.local.python_state import PythonState

Loss = Callable[[Any, Any], Tensor]
Batch = tuple[Any, Any]
"""(inputs, targets): trees of tensors."""


@dataclass(frozen=True)
class Held:
    """A tensor of the module, and where the module keeps it: a forward pass may put another one in its place."""

    name: str
    holder: dict[str, Any]
    key: str
    tensor: Tensor

    def now(self) -> Tensor | None:
        """What the module keeps in its place at the moment."""
        found: Tensor | None = self.holder[self.key]
        return found

    def put_back(self) -> None:
        if self.now() is not self.tensor:
            self.holder[self.key] = self.tensor


class Loan:
    """How a module was when it was lent, and how to give it back like that."""

    def __init__(self, module: nn.Module, others: list[Held], python: PythonState, loss: Loss) -> None:
        self.python, self.loss, self.borrowers = python, loss, 0
        self.data = {id(t): t.data for t in (*module.parameters(), *(held.tensor for held in others))}
        self._parameters = [(p, p.data, p.grad) for p in module.parameters()]
        self._others = [(held, held.tensor.data) for held in others]
        self._modes = [(m, m.training) for m in module.modules()]
        python.restart()  # from here on with copies, where what is there cannot be put back

    def end(self) -> None:
        self.python.restore()
        for module, training in self._modes:
            module.training = training
        for held, data in self._others:
            held.put_back()
            held.tensor.data = data
        for p, data, grad in self._parameters:
            p.grad = None  # before the data, whose dtype it must have
            p.data = data
            p.grad = grad


def holders(module: nn.Module) -> list[Held]:
    """Every place in which the module keeps a parameter or a buffer."""
    return [
        Held(f"{prefix}.{key}".lstrip("."), holder, key, tensor)
        for prefix, owner in module.named_modules()
        for holder in (owner._parameters, owner._buffers)
        for key, tensor in holder.items()
        if tensor is not None
    ]


def others(module: nn.Module) -> list[Held]:
    """Buffers and frozen parameters, each once, under the first name that it goes by."""
    found: dict[int, Held] = {}
    for held in holders(module):
        if not (isinstance(held.tensor, nn.Parameter) and held.tensor.requires_grad):
            found.setdefault(id(held.tensor), held)
    return list(found.values())
