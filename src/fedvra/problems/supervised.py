"""Supervised learning: a model, a loss, and each client's own samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.core.cohort import Ints
from fedvra.core.errors import UsageError, require
from fedvra.core.streams import Purpose, stream
from fedvra.core.torch_private import NormLayer
from fedvra.data.dataset import FederatedData
from fedvra.local.client_batches import ClientBatches
from fedvra.local.looking import Look, check_parameters, fits, forgotten, look
from fedvra.local.measuring import Counted
from fedvra.local.protocol import Solver, SolverSettings
from fedvra.local.randomness import kept_generators, seed_all
from fedvra.local.subject import Findings, Subject
from fedvra.problems.base import HasModel, HasOracle, HasRecords, Parameter, Problem
from fedvra.problems.oracle import Oracle

Loss = Callable[[Any, Any], Tensor]
BufferPolicy = Literal["refuse", "average", "local"]


class Seen(NamedTuple):
    """A model that was looked at on data."""

    subject: Subject
    look: Look
    key: tuple[Any, ...]
    """For what it holds."""

    @property
    def target_cast(self) -> Callable[[Tensor], Tensor] | None:
        dtype = self.look.target_dtype
        return None if dtype is None else lambda t: t.to(dtype)


@dataclass(frozen=True)
class Supervised(Problem[FederatedData], HasModel, HasOracle[FederatedData], HasRecords[FederatedData]):
    r"""f_i(x) = mean over the client's samples of loss(model_x(input), target) + (weight_decay/2)*||x||^2.

    x holds the parameters with ``requires_grad``: what is frozen stays as it is, is never sent, and has no dual.

    Args:
        model: an ``nn.Module``, taken with the weights it has; or a function that makes one, called under the run's seed.
            It is trained itself, with its hooks and whatever refers to it, and is afterwards as it was.
        loss: ``loss(outputs, targets)``, the mean over a batch, such as ``torch.nn.functional.cross_entropy``.
        weight_decay: added to every gradient as weight_decay*x.
        buffers: what becomes of statistics that training changes (BatchNorm's running means), which no algorithm of the field
            covers: ``"refuse"`` such a model, ``"average"`` them over the cohort like FedAvg does with weights, or keep them
            ``"local"`` to each client (the server's copy, a mean over the cohort, then serves evaluation only). Buffers that
            training does not change (masks, frequencies) are constants, and nothing is asked.
        counted: from the targets of a batch to the number of entries that its loss is a mean over, so that pieces of test data
            are weighted rightly. None: samples, or entries of integer targets other than the loss's ``ignore_index``.

    >>> import numpy as np, torch, fedvra as fv
    >>> data = fv.split((np.eye(40, 3, dtype=np.float32), np.arange(40) % 2), fv.IID(), clients=4)

    >>> problem = fv.Supervised(lambda: torch.nn.Linear(3, 2), loss=torch.nn.functional.cross_entropy, weight_decay=1e-3)
    >>> history = fv.simulate(fv.FedVRA(), problem=problem, data=data, sampler=fv.Uniform(2), work=fv.Epochs(1), rounds=2)
    >>> history.model()
    Linear(in_features=3, out_features=2, bias=True)
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: Loss = nn.functional.cross_entropy
    weight_decay: float = 0.0
    buffers: BufferPolicy = "refuse"
    counted: Counted | None = None

    _forgets: ClassVar[tuple[str, ...]] = ("_seen",)

    def __post_init__(self) -> None:
        require(self.weight_decay >= 0, f"weight_decay must be >= 0, got {self.weight_decay}.")
        require(
            self.buffers in ("refuse", "average", "local"),
            f"buffers must be 'refuse', 'average' or 'local', got {self.buffers!r}.",
        )
        require(callable(self.model), f"model must be an nn.Module or a function that makes one, got {self.model!r}.")
        require(callable(self.loss), f"loss must be a function of outputs and targets, got {self.loss!r}.")
        object.__setattr__(self, "decay", self.weight_decay)
        object.__setattr__(self, "_made", {})  # the last module that was made, by its seed
        object.__setattr__(
            self, "_findings", []
        )  # the last look at a model: what a copy, which has not looked, goes by

    def module(self, seed: int | None = None) -> nn.Module:
        """The model itself; where ``model`` is a function, made once under ``seed`` (None: the last one used)."""
        if isinstance(self.model, nn.Module):
            return self.model
        made: dict[int, nn.Module] = self._made  # type: ignore[attr-defined]
        if seed is None:
            seed = next(iter(made), 0)
        if seed not in made:
            made.clear()
            with kept_generators():
                seed_all(int(stream(seed, Purpose.INIT).integers(2**62)))
                made[seed] = self.model()
            require(
                isinstance(made[seed], nn.Module),
                f"the function that makes the model must return an nn.Module, got {type(made[seed]).__name__}.",
            )
        return made[seed]

    def look(self, data: FederatedData, settings: SolverSettings, again: bool = False) -> Seen:
        """What training changes about the model, found by taking two steps on a batch of the data.

        ``again`` looks anew, unless the model is in use: the user may have changed it since.
        """
        module = self.module(settings.seed)
        key = (id(module), id(data), tuple((n, p.requires_grad) for n, p in module.named_parameters()))
        seen = self._last_look()
        if not seen or seen[0].key != key or (again and not seen[0].subject.lent):
            feed = ClientBatches(data, settings.batch_size, _float_dtype(module))
            largest = data.part(int(np.argmax(data.sizes)))
            found = look(module, self.loss, feed.batch(largest[: settings.batch_size]), settings.seed or 0)
            seen[:] = [Seen(Subject(module, self.loss, found.findings), found, key)]
            self._findings[:] = [found.findings]  # type: ignore[attr-defined]
        return seen[0]

    def _last_look(self) -> list[Seen]:
        """Of this object itself: empty in a copy, whose module is another."""
        found: list[Seen] = vars(self).setdefault("_seen", [])
        return found

    def samples(self, data: FederatedData) -> Ints:
        return data.sizes

    def initial(self, seed: int) -> Tensor:
        return self._subject(seed).gather()

    def initial_aux(self, seed: int) -> Tensor | None:
        return self._subject(seed).gather_aux()

    def frozen(self, seed: int) -> dict[str, Tensor]:
        return self._subject(seed).frozen()

    def parameters(self, seed: int) -> list[Parameter]:
        named = self.module(seed).named_parameters()
        return [(name, list(p.shape), str(p.dtype), p.requires_grad) for name, p in named]

    def _subject(self, seed: int | None = None) -> Subject:
        """The model as it was looked at; as its layers look, where nobody had data."""
        seen, module = self._last_look(), self.module(seed)
        if seen and seen[0].subject.module is module:
            return seen[0].subject
        check_parameters(module)
        known: list[Findings] = [] if seen else self._findings  # type: ignore[attr-defined]
        return Subject(module, self.loss, known[0] if known else usual_findings(module))

    @property
    def aux_is_local(self) -> bool:
        return self.buffers == "local"

    def check(self, data: FederatedData, settings: SolverSettings) -> None:
        require(
            isinstance(data, FederatedData),
            "Supervised needs data=fv.split(dataset, partition, clients=...), got " + type(data).__name__ + ".",
        )
        subject, found, _ = self.look(data, settings, again=True)
        if self.buffers == "refuse":
            _refuse_statistics(subject)
        _check_classes(found.outputs, data)
        _check_batch_of_one(self, subject, data, settings)

    def check_private(self, data: FederatedData, settings: SolverSettings) -> None:
        from fedvra.local.per_record import PerRecord

        require(settings.precision == "float32", "privacy: leave precision at float32.")
        seen = self.look(data, settings)
        feed = ClientBatches(data, settings.batch_size, seen.subject.spec.dtype, target_cast=seen.target_cast)
        with kept_generators(), forgotten(seen.subject):
            PerRecord(seen.subject, feed).check()

    def solver(self, data: FederatedData, settings: SolverSettings) -> Solver:
        from fedvra.local.solver import SupervisedSolver

        return SupervisedSolver(self, data, settings)

    def oracle(self, data: FederatedData) -> Oracle:
        from fedvra.problems.supervised_oracle import SupervisedOracle

        return SupervisedOracle(self, data)

    def to_module(self, x_P: Tensor, aux_K: Tensor | None) -> nn.Module:
        subject = self._subject()
        module = copied(subject.module)
        subject.spec.scatter(x_P, module)
        if aux_K is not None:
            subject.aux_spec.scatter(aux_K, module)
        return module


def copied(module: nn.Module) -> nn.Module:
    """A copy with tensors of its own; results that a module keeps in attributes are copied as plain tensors."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for key, value in vars(part).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
            elif key not in ("_parameters", "_buffers", "_modules") and not _copies(value):
                memo[id(value)] = value  # a lock, an open file: shared
    return copy.deepcopy(module, memo)


def _copies(value: Any) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # each kind of object has its own way of saying no
        return False
    return True


def usual_findings(module: nn.Module) -> Findings:
    """What training changes as far as the kinds of layers tell, for a server that has no data to look with."""
    statistics: list[str] = []
    counters: list[str] = []
    for prefix, layer in module.named_modules():
        if isinstance(layer, NormLayer):
            for name, buffer in layer.named_buffers(recurse=False):
                (statistics if buffer.is_floating_point() else counters).append(f"{prefix}.{name}".lstrip("."))
    return Findings(tuple(statistics), tuple(counters))


def _float_dtype(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.requires_grad), torch.get_default_dtype())


def _refuse_statistics(subject: Subject) -> None:
    if subject.statistics:
        layer, _, _ = subject.statistics[0].name.rpartition(".")
        own = [held.key for held in subject.statistics if held.name.rpartition(".")[0] == layer]
        kind = type(subject.module.get_submodule(layer)).__name__
        raise UsageError(
            f"layer {layer or kind!r} ({kind}) keeps statistics that training changes ({', '.join(own)}), which averaging of "
            "weights does not cover: say buffers='average' or buffers='local' in Supervised(...), or use a layer without "
            "running statistics such as GroupNorm."
        )


def _check_classes(outputs: Any, data: FederatedData) -> None:
    dataset = data.dataset
    scores = isinstance(outputs, Tensor) and outputs.ndim == 2 and outputs.shape[1] > 1
    if dataset.classes and scores and dataset.labels is not None:
        require(
            outputs.shape[1] >= dataset.classes,
            f"the model gives {outputs.shape[1]} outputs, but the data has {dataset.classes} classes.",
        )


def _check_batch_of_one(problem: Supervised, subject: Subject, data: FederatedData, settings: SolverSettings) -> None:
    """BatchNorm cannot train on a single sample: better said now than when a client first has one left over."""
    size = settings.batch_size
    if size is not None and size < 1:
        return  # refused elsewhere
    alone = data.sizes == 1 if size is None or settings.drop_last else (data.sizes == 1) | (data.sizes % size == 1)
    if size == 1:
        alone = data.sizes >= 1
    if not alone.any():
        return
    client = int(np.flatnonzero(alone)[0])
    if not fits(subject, ClientBatches(data, size, subject.spec.dtype).batch(data.part(client)[:1])):
        samples = int(data.sizes[client])
        raise UsageError(
            f"client {client} has {samples} samples, so with batch_size={size} one of its batches holds a single sample, "
            "on which this model cannot train (BatchNorm needs two): "
            + (
                "use another batch size, or drop_last=True."
                if samples > 1 and size != 1
                else "use larger batches or clients."
            )
        )
