"""Supervised learning: a model, a loss, and each client's own samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedvra.cohort import Ints
from fedvra.data.dataset import FederatedData
from fedvra.errors import UsageError, require
from fedvra.flat import FlatSpec
from fedvra.problems.base import Problem, Solver, SolverSettings
from fedvra.problems.oracle import Oracle
from fedvra.streams import Purpose, stream

Loss = Callable[[Tensor, Tensor], Tensor]
BufferPolicy = Literal["refuse", "average", "local"]


@dataclass(frozen=True, eq=False)
class Supervised(Problem):
    r"""f_i(x) = mean over the client's samples of loss(model_x(input), target) + (weight_decay/2)*||x||^2.

    Args:
        model: an ``nn.Module``, taken with the weights it has; or a function that makes one, called under the run's seed.
        loss: ``loss(outputs, targets)``, the mean over a batch, such as ``torch.nn.functional.cross_entropy``.
        weight_decay: added to every gradient as weight_decay*x.
        buffers: what becomes of float buffers (BatchNorm's running statistics), which no algorithm of the field covers:
            ``"refuse"`` such a model, ``"average"`` them over the cohort like FedAvg does with weights, or keep them
            ``"local"`` to each client (the server's copy, a mean over the cohort, then serves evaluation only).
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: Loss = nn.functional.cross_entropy
    weight_decay: float = 0.0
    buffers: BufferPolicy = "refuse"

    def __post_init__(self) -> None:
        require(self.weight_decay >= 0, f"weight_decay must be >= 0, got {self.weight_decay}.")
        require(
            self.buffers in ("refuse", "average", "local"),
            f"buffers must be 'refuse', 'average' or 'local', got {self.buffers!r}.",
        )
        object.__setattr__(self, "decay", self.weight_decay)

    def module(self, seed: int = 0) -> nn.Module:
        """A fresh copy of the model, initialised under ``seed`` where ``model`` is a function."""
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, Purpose.INIT).integers(2**62)))
            return self.model()

    def samples(self, data: FederatedData) -> Ints:
        return data.sizes

    def initial(self, seed: int) -> Tensor:
        module = self.module(seed)
        return FlatSpec.of_parameters(module).gather(module)

    def initial_aux(self, seed: int) -> Tensor | None:
        module = self.module(seed)
        spec = FlatSpec.of_float_buffers(module)
        return spec.gather(module) if spec.size else None

    @property
    def aux_is_local(self) -> bool:
        return self.buffers == "local"

    def check(self, data: FederatedData, settings: SolverSettings) -> None:
        require(
            isinstance(data, FederatedData),
            "Supervised needs data=fv.split(dataset, partition, clients=...), got " + type(data).__name__ + ".",
        )
        module = self.module()
        require(any(True for _ in module.parameters()), "the model has no parameters to train.")
        dtypes = {p.dtype for p in module.parameters()}
        require(
            len(dtypes) == 1, f"the model mixes dtypes ({', '.join(map(str, dtypes))}); use one, e.g. model.float()."
        )
        if self.buffers == "refuse":
            _refuse_buffers(module)
        _check_fit(module, self.loss, data)

    def solver(self, data: FederatedData, settings: SolverSettings) -> Solver:
        from fedvra.solver import SupervisedSolver

        return SupervisedSolver(self, data, settings)

    def oracle(self, data: FederatedData) -> Oracle:
        from fedvra.problems.supervised_oracle import SupervisedOracle

        return SupervisedOracle(self, data)

    def to_module(self, x_P: Tensor, aux_K: Tensor | None) -> nn.Module:
        module = self.module()
        FlatSpec.of_parameters(module).scatter(x_P, module)
        if aux_K is not None:
            FlatSpec.of_float_buffers(module).scatter(aux_K, module)
        return module


def _refuse_buffers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        own = [
            b for b, tensor in layer.named_buffers(recurse=False) if tensor is not None and tensor.is_floating_point()
        ]
        if own:
            raise UsageError(
                f"layer {name or type(module).__name__!r} ({type(layer).__name__}) keeps float buffers ({', '.join(own)}), "
                "which averaging of weights does not cover: say buffers='average' or buffers='local' in Supervised(...), "
                "or use a layer without running statistics such as GroupNorm."
            )


def _check_fit(module: nn.Module, loss: Loss, data: FederatedData) -> None:
    dataset = data.dataset
    dtype = next(module.parameters()).dtype
    inputs = dataset.transform(dataset.inputs[:2], None, dtype)
    targets = dataset.targets[:2]
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(inputs)
            value = loss(outputs, targets)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UsageError(
            f"the model does not fit the data: inputs of shape {list(inputs.shape[1:])} ({inputs.dtype}) and targets of "
            f"{targets.dtype} gave: {str(error).splitlines()[0]}"
        ) from error
    require(
        value.ndim == 0, "the loss must return one number, the mean over the batch; got shape " + str(list(value.shape))
    )
    if dataset.classes and outputs.ndim == 2 and not targets.is_floating_point():
        require(
            outputs.shape[1] >= dataset.classes,
            f"the model gives {outputs.shape[1]} outputs, but the data has {dataset.classes} classes.",
        )
