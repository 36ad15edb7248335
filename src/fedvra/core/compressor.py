"""What a compressor is: the map C of C(D_i), and how its result is laid out in bits.

A compressor turns a vector into whole numbers of few bits (codes) and, perhaps, some numbers that go as they are (kept), such
as the scales of blocks. How long a message is follows from the length of the vector alone, so that bytes can be counted and
times be simulated before anything is sent, and a message of another length is refused unread.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedvra.core.bits import packed, packed_bytes, unpacked
from fedvra.core.errors import FedvraError
from fedvra.core.objects import Value


class BadCodeError(FedvraError):
    """A message that no compressor of this kind can have made."""


class Codes(NamedTuple):
    """So many whole numbers of so many bits each."""

    numbers: int
    bits: int


class Layout(NamedTuple):
    """What a message consists of: the codes one after the other, then the numbers that are kept."""

    codes: tuple[Codes, ...]
    kept: int

    def nbytes(self, itemsize: int) -> int:
        """The length of the message, where a number takes ``itemsize`` bytes."""
        return sum(packed_bytes(*each) for each in self.codes) + self.kept * itemsize


class Shrunk(NamedTuple):
    """A vector as it is sent, before its codes are packed."""

    codes: tuple[Tensor, ...]
    kept: Tensor


class Compressor(Value, ABC):
    """C: from a vector to one that takes fewer bits. A frozen dataclass; see ``fedvra.compress``.

    Whatever is drawn at random comes from the generator that is given, so that C is the same wherever it is applied.

    >>> from fedvra.compress import Quantize
    >>> isinstance(Quantize(bits=4), Compressor), Quantize(bits=4).nbytes(width=256, itemsize=4)
    (True, 132)
    """

    name: ClassVar[str]
    """On the command line."""

    @property
    def dense(self) -> bool:
        """Whether every number is sent, if coarsely; False where most are left out."""
        return True

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether E C(v) = v for every v."""

    @abstractmethod
    def error(self, width: int) -> float:
        """The least e with E|C(v) - v|^2 <= e*|v|^2 for every v of that length, or a bound on it. C contracts where e < 1."""

    @abstractmethod
    def layout(self, width: int) -> Layout:
        """What the message of a vector of that length consists of."""

    @abstractmethod
    def shrink(self, values_P: Tensor, rng: np.random.Generator) -> Shrunk:
        """What is sent in place of a vector."""

    @abstractmethod
    def expand(self, shrunk: Shrunk, width: int) -> Tensor:
        """C(v), from what was sent; raises BadCodeError where nobody can have sent it."""

    def contractive(self) -> Compressor:
        """The one to use with a residual, which grows without bound where C does not contract; by default itself."""
        return self

    def nbytes(self, width: int, itemsize: int) -> int:
        """The length of the message of a vector of ``width`` numbers of ``itemsize`` bytes."""
        return self.layout(width).nbytes(itemsize)

    def apply(self, values_P: Tensor, rng: np.random.Generator) -> Tensor:
        """C(v)."""
        return self.expand(self.shrink(values_P, rng), len(values_P))

    def encode(self, shrunk: Shrunk, width: int) -> Tensor:
        """The message: bytes, in an order that does not depend on the machine."""
        parts = [packed(c.cpu(), each.bits) for c, each in zip(shrunk.codes, self.layout(width).codes, strict=True)]
        kept = shrunk.kept.cpu().contiguous().numpy()
        parts.append(np.frombuffer(kept.astype(kept.dtype.newbyteorder("<")).tobytes(), np.uint8))
        return torch.from_numpy(np.concatenate(parts))

    def decode(self, message: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """C(v), from a message that came from elsewhere; raises BadCodeError."""
        layout, data = self.layout(width), message.numpy()
        if len(data) != layout.nbytes(dtype.itemsize):
            raise BadCodeError(
                f"{len(data)} bytes, expected {layout.nbytes(dtype.itemsize)} for {width} numbers by {self.text()}"
            )
        codes, start = [], 0
        for each in layout.codes:
            end = start + packed_bytes(*each)
            codes.append(torch.from_numpy(unpacked(data[start:end], *each)))
            start = end
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        kept = np.frombuffer(data[start:].tobytes(), kind.newbyteorder("<")).astype(kind)
        return self.expand(Shrunk(tuple(codes), torch.from_numpy(kept)), width)

    def text(self) -> str:
        """As the command line writes it: name:key=value,... for what differs from the default."""
        fields = {f.name: (getattr(self, f.name), f.default) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        said = [f"{name}={value}" for name, (value, usual) in fields.items() if value != usual]
        return ":".join(filter(None, [self.name, ",".join(said)]))
