"""One compressor after the other: each works on what the one before keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedvra.core.compressor import Compressor, Layout, Shrunk
from fedvra.core.errors import require


@dataclass(frozen=True, init=False)
class Chain(Compressor):
    """For example the greatest tenth of the numbers, in four bits each.

    >>> from fedvra.compress import Quantize, TopK
    >>> Chain(TopK(0.1), Quantize(bits=4)).nbytes(width=10_000, itemsize=4)  # 1250 + 500 + 4 scales
    1766
    """

    parts: tuple[Compressor, ...]

    name: ClassVar[str] = "chain"

    def __init__(self, *parts: Compressor) -> None:
        object.__setattr__(self, "parts", parts)
        require(
            len(parts) >= 1 and all(isinstance(part, Compressor) for part in parts),
            f"Chain takes compressors, as in fv.Chain(fv.TopK(0.1), fv.Quantize(bits=4)), got {parts!r}.",
        )
        early = next((part for part in parts[:-1] if part.dense), None)
        require(
            early is None,
            f"{'' if early is None else early.text()} has to come last in a chain: what follows would only work on its scales.",
        )

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.parts))})"

    @property
    def dense(self) -> bool:
        return all(part.dense for part in self.parts)

    @property
    def unbiased(self) -> bool:
        return all(part.unbiased for part in self.parts)

    def error(self, width: int) -> float:
        """What is left out, and the error of the others on what is kept: e1 + (1 - e1)*e2, or e2 where that is more."""
        found, widths = 0.0, self._widths(width)
        for part, some in reversed([*zip(self.parts, widths, strict=True)]):
            own = part.error(some)
            found = max(found, own + (1 - own) * found)
        return found

    def contractive(self) -> Compressor:
        return Chain(*(part.contractive() for part in self.parts))

    def _widths(self, width: int) -> list[int]:
        """The length of what each part is given."""
        found = [width]
        for part in self.parts[:-1]:
            found.append(part.layout(found[-1]).kept)
        return found

    def layout(self, width: int) -> Layout:
        made = [part.layout(some) for part, some in zip(self.parts, self._widths(width), strict=True)]
        return Layout(tuple(code for each in made for code in each.codes), made[-1].kept)

    def shrink(self, values_P: Tensor, rng: np.random.Generator) -> Shrunk:
        codes: tuple[Tensor, ...] = ()
        kept = values_P
        for part in self.parts:
            found, kept = part.shrink(kept, rng)
            codes += found
        return Shrunk(codes, kept)

    def expand(self, shrunk: Shrunk, width: int) -> Tensor:
        widths, codes, found = self._widths(width), shrunk.codes, shrunk.kept
        for part, some in reversed([*zip(self.parts, widths, strict=True)]):
            own = len(part.layout(some).codes)
            found = part.expand(Shrunk(codes[len(codes) - own :], found), some)
            codes = codes[: len(codes) - own]
        return found

    def text(self) -> str:
        return "+".join(part.text() for part in self.parts)
