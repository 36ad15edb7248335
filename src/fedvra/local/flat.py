"""Named tensors as one flat vector: a module's trainable parameters, or the statistics that it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class FlatSpec:
    """Where each named tensor lies in the flat vector, in the module's own order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @classmethod
    def of_parameters(cls, module: nn.Module) -> FlatSpec:
        """The parameters that are trained: those with ``requires_grad``."""
        return cls.of({name: p for name, p in module.named_parameters() if p.requires_grad})

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> FlatSpec:
        shapes = tuple(tuple(t.shape) for t in tensors.values())
        dtype = next(iter(tensors.values())).dtype if tensors else torch.float32
        return cls(tuple(tensors), shapes, dtype)

    @property
    def size(self) -> int:
        return sum(map(prod, self.shapes))

    def spans(self) -> Iterator[tuple[str, slice, tuple[int, ...]]]:
        """(name, where in the flat vector, shape) of each tensor."""
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + prod(shape)
            yield name, slice(start, stop), shape
            start = stop

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """Named views into x [P], or into a block x [M, P] with M in front of each shape."""
        lead = x.shape[:-1]
        return {name: x[..., span].view((*lead, *shape)) for name, span, shape in self.spans()}

    def window(self) -> Window:
        """Views for somebody who asks about the same memory again and again."""
        return Window(self)

    def gather(self, module: nn.Module) -> Tensor:
        """The flat vector of what the module holds now (a copy)."""
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        parts = [named[name].detach().reshape(-1).to(self.dtype) for name in self.names]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=self.dtype)

    @torch.no_grad()
    def scatter(self, x: Tensor, module: nn.Module) -> None:
        """Write the flat vector into the module's own tensors."""
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, view in self.views(x).items():
            named[name].copy_(view)


class Window:
    """The tensors inside one flat vector, cut out anew only where another vector is looked at."""

    def __init__(self, spec: FlatSpec) -> None:
        self.spec = spec
        self._seen: tuple[int, torch.dtype] | None = None
        self._views: list[Tensor] = []

    def views(self, x_P: Tensor) -> list[Tensor]:
        """In the order of the spec. While they are kept here their memory is not given to anybody else."""
        seen = x_P.data_ptr(), x_P.dtype
        if seen != self._seen:
            self._seen, self._views = seen, list(self.spec.views(x_P).values())
        return self._views
