"""The module that is trained, as the user gave it: its hooks, its closures and what it keeps in Python stay attached.

A flat vector stands for its trainable parameters, another for its statistics (what training changes besides them: BatchNorm's
running means, say). The module's own tensors are made views of these vectors while it is lent to a run, and are given back as
they were. Which tensors are statistics is found by looking: two training steps, and what is different afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedvra.core.errors import UsageError
from fedvra.core.torch_private import version
from fedvra.data import trees
from fedvra.local.flat import FlatSpec
from fedvra.local.loan import Batch, Loan, Loss, others
from fedvra.local.python_state import PythonState
from fedvra.local.randomness import kept_generators, seed_all


@dataclass(frozen=True)
class Findings:
    """What two training steps changed besides the trainable parameters."""

    statistics: tuple[str, ...] = ()
    """Float buffers, and frozen parameters that the module itself moves (a teacher that follows its student)."""
    counters: tuple[str, ...] = ()
    """Whole numbers, such as BatchNorm's count of batches: at their start again for every client."""


_LOANS: WeakKeyDictionary[nn.Module, Loan] = WeakKeyDictionary()
"""The modules in use in this process: several solvers may share one."""


class Subject:
    """A module and its loss, ready to be trained on flat vectors."""

    def __init__(self, module: nn.Module, loss: Loss, findings: Findings | None = None) -> None:
        self.module, self.loss, self.findings = module, loss, findings or Findings()
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.spec = FlatSpec.of_parameters(module)
        self.others = others(module)
        """Buffers and frozen parameters."""
        named = {held.name: held for held in self.others}
        self.statistics = [named[name] for name in self.findings.statistics]
        self.aux_spec = FlatSpec.of({held.name: held.tensor for held in self.statistics})
        moving = {*self.findings.statistics, *self.findings.counters}
        self.counters = [(named[name], self._original(named[name].tensor).clone()) for name in self.findings.counters]
        self._constants = [(held, version(held.tensor)) for held in self.others if held.name not in moving]
        loan = _LOANS.get(module)
        self.python = (
            loan.python
            if loan is not None and loan.loss is loss
            else PythonState(module, loss, known=[*module.parameters(), *module.buffers()])
        )
        self._insists = False
        self._window, self._aux_window = self.spec.window(), self.aux_spec.window()

    # -- borrowing --------------------------------------------------------------------------------------------------

    def lend(self, device: torch.device | None = None) -> None:
        """Use the module from now on; :meth:`give_back` puts everything back, the last of several borrowers at last."""
        loan = _LOANS.get(self.module)
        if loan is None:
            loan = _LOANS[self.module] = Loan(self.module, self.others, self.python, self.loss)
            for held, start in self.counters:
                held.tensor.data = start.clone()
            self.module.train()
        loan.borrowers += 1
        for held in self.others:
            if device is not None and held.tensor.device != device:
                held.tensor.data = held.tensor.data.to(device)

    def give_back(self) -> None:
        loan = _LOANS[self.module]
        loan.borrowers -= 1
        if not loan.borrowers:
            del _LOANS[self.module]
            loan.end()

    @property
    def lent(self) -> bool:
        return self.module in _LOANS

    def _original(self, t: Tensor) -> Tensor:
        """What the tensor holds for its owner, whoever uses the module now."""
        loan = _LOANS.get(self.module)
        return (t.data if loan is None else loan.data.get(id(t), t.data)).detach()

    def gather(self) -> Tensor:
        """The user's trainable parameters as one flat vector (a copy)."""
        return torch.cat([self._original(p).reshape(-1) for p in self.parameters]).clone()

    def gather_aux(self) -> Tensor | None:
        """The user's statistics likewise; None where there are none."""
        if not self.statistics:
            return None
        return torch.cat([self._original(h.tensor).reshape(-1).to(self.aux_spec.dtype) for h in self.statistics])

    # -- pointing ---------------------------------------------------------------------------------------------------

    def views(self, x_P: Tensor) -> list[Tensor]:
        """The trainable parameters inside a flat vector."""
        return self._window.views(x_P)

    def point_at(self, x_P: Tensor, aux_K: Tensor | None) -> None:
        """Let the module's parameters and statistics be views of the flat vectors: no copies in either direction."""
        for p, view in zip(self.parameters, self._window.views(x_P), strict=True):
            p.data = view
            p.grad = None
        if aux_K is not None:
            for held, view in zip(self.statistics, self._aux_window.views(aux_K), strict=True):
                held.put_back()
                held.tensor.data = view

    def restart(self, key: int) -> None:
        """Before a client's work: counters and Python's state where they were, generators started from ``key``."""
        for held, start in self.counters:
            held.put_back()
            held.tensor.copy_(start)
        self.python.restart()
        seed_all(key)

    def finish(self, x_P: Tensor, aux_K: Tensor | None) -> None:
        """After a client's work: statistics that a forward pass replaced are taken over; nothing else may have changed."""
        self.take_over(aux_K)
        for name, p, view in zip(self.spec.names, self.parameters, self._window.views(x_P), strict=True):
            if p.data_ptr() != view.data_ptr():
                raise UsageError(
                    f"the model put its parameter {name} into other memory while it was trained, so its steps would be lost: "
                    "write into it in place, as in p.data.clamp_(-1, 1), instead of p.data = ...."
                )
        for held, known in self._constants:
            if held.now() is not held.tensor or version(held.tensor) != known:
                raise UsageError(
                    f"{held.name} was constant in the first steps and has changed since: make it a buffer that changes from "
                    "the first step on (then buffers='average' or 'local' say what becomes of it), or a parameter."
                )
        self.python.changed()

    def constants(self) -> list[int]:
        """Versions of the tensors that must not change: equal before and after."""
        return [version(held.tensor) for held, _ in self._constants]

    def frozen(self) -> dict[str, Tensor]:
        """What is neither trained nor changed by training: frozen parameters and constant buffers, by name."""
        return {held.name: self._original(held.tensor) for held, _ in self._constants}

    def take_over(self, aux_K: Tensor | None) -> None:
        """Statistics for which the forward pass made new tensors, instead of writing into the old ones."""
        if aux_K is not None:
            for held, view in zip(self.statistics, self._aux_window.views(aux_K), strict=True):
                now = held.now()
                if now is not None and (now is not held.tensor or now.data_ptr() != view.data_ptr()):
                    view.copy_(now.detach())
                    held.put_back()

    # -- the gradient, by autograd ------------------------------------------------------------------------------------

    def value(self, batch: Batch, compute: torch.dtype | None = None) -> Tensor:
        """The loss on a batch; with ``compute`` the network's outputs are brought back from that dtype first."""
        outputs = trees.call(self.module, batch[0])
        if compute is not None:
            outputs = trees.map(lambda t: t.to(self.spec.dtype) if t.is_floating_point() else t, outputs)
        return self.loss(outputs, batch[1])

    def outputs(self, inputs: Any) -> Any:
        """What the model gives, without a graph; with one where it insists (a gradient or a hook inside)."""
        if not self._insists:
            try:
                with torch.no_grad():
                    return trees.call(self.module, inputs)
            except Exception:  # the same again with a graph, which says what is really wrong
                self._insists = True
        with torch.enable_grad():
            return trees.map(torch.detach, trees.call(self.module, inputs))

    def backward(self, batch: Batch, compute: torch.dtype | None = None) -> Tensor:
        """Leave the gradient on the parameters (None: no gradient); returns the loss."""
        for p in self.parameters:
            p.grad = None
        with torch.enable_grad():
            loss = self.value(batch, compute)
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @contextmanager
    def evaluating(self, x_P: Tensor, aux_K: Tensor | None) -> Iterator[nn.Module]:
        """The module at x in evaluation mode; training mode afterwards, where it is lent to somebody else as well."""
        self.lend(x_P.device)
        try:
            self.point_at(x_P, aux_K)
            self.module.eval()
            yield self.module
        finally:
            self.module.train()
            self.give_back()

    @contextmanager
    def aside(self, key: int) -> Iterator[None]:
        """Try something on the module without leaving a trace in its Python state or in the global generators."""
        with kept_generators():
            self.restart(key)
            try:
                yield
            finally:
                self.python.changed()
                self.python.restart()
                for held, start in self.counters:
                    held.tensor.copy_(start)
                for p in self.parameters:
                    p.grad = None

    def gradients(
        self,
        x_P: Tensor,
        aux_K: Tensor | None,
        batch: Batch,
        key: int,
        dtype: torch.dtype | None = None,
        compute: torch.dtype | None = None,
    ) -> tuple[list[Tensor | None], Tensor | None]:
        """Each parameter's gradient at x by autograd, and the statistics after the step. Nothing is left behind.

        Args:
            dtype: convert all that the module and the batch hold to this one for the moment.
            compute: likewise but for the loss, which is taken in the module's own.
        """
        dtype = compute or dtype or self.spec.dtype
        x, aux = x_P.to(dtype, copy=True), None if aux_K is None else aux_K.to(dtype, copy=True)

        def converted(t: Tensor) -> Tensor:
            return t.to(dtype) if t.is_floating_point() else t

        others = [held.tensor for held in self.others if held.tensor.is_floating_point()]
        if isinstance(self.loss, nn.Module) and compute is None:
            others += [t for t in (*self.loss.buffers(), *self.loss.parameters()) if t.is_floating_point()]
        kept = [(t, t.data) for t in others] if dtype != self.spec.dtype else []
        with self.aside(key):
            try:
                for t, data in kept:
                    t.data = data.to(dtype)
                self.point_at(x, aux)
                if dtype != self.spec.dtype:
                    targets = batch[1] if compute else trees.map(converted, batch[1])
                    batch = (trees.map(converted, batch[0]), targets)
                self.backward(batch, compute)
                found = [None if p.grad is None else p.grad.detach() for p in self.parameters]
                self.take_over(aux)
            finally:
                for p in self.parameters:
                    p.grad = None  # before the data, whose dtype it must have
                self.point_at(x_P, aux_K)
                for t, data in kept:
                    t.data = data
        return found, aux
