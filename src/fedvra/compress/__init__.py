r"""Smaller messages: what is sent in place of a vector.

One file per compressor; a file added to this folder, or an entry point of the group ``fedvra.compressors`` in another
distribution, is known to the command line by the name it registers.

| compressor                     | bits per number (float32)      | E C(v) = v | \|C(v) - v\|^2 <= e\|v\|^2, e          |
|--------------------------------|--------------------------------|------------|------------------------------------------|
| ``Quantize(bits, block)``      | bits + 32/block                | yes        | (sqrt(1 + (block-1)/L^2) - 1)/2          |
| ... ``rounding="nearest"``     | the same                       | no         | (block-1)/(block-1 + 4L^2)               |
| ``TopK(share)``                | 32*share + min(1, share*log2 P)| no         | 1 - share                                |
| ``BFloat16()``                 | 16                             | no         | 2^-16                                    |
| ``Chain(TopK(share), other)``  | that of the other on a share   | no         | e1 + (1 - e1)*e2                         |

with L = 2^(bits-1) - 1. What that means for convergence is in docs/compression.md.

Imports core.
"""

from fedvra.compress.base import COMPRESSORS, parse_compressor, parse_download
from fedvra.compress.bfloat16 import BFloat16
from fedvra.compress.chain import Chain
from fedvra.compress.quantize import Quantize
from fedvra.compress.topk import TopK

__all__ = ["COMPRESSORS", "BFloat16", "Chain", "Quantize", "TopK", "parse_compressor", "parse_download"]
