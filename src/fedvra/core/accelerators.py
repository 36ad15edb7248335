"""GPUs beside work on the CPU. Where torch sees one, processes that compute cannot be forked.

When autograd is first used, be it on the CPU, it starts threads for the GPUs there are, and from then on refuses to work in
processes that are forked (https://github.com/pytorch/pytorch/wiki/Autograd-and-Fork). CUDA itself refuses as well. GPUs
that were hidden before torch looked are no hindrance; but they may be hidden in a process of our own only, since a user's
program may want them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "CUDA_VISIBLE_DEVICES"
"""Of NVIDIA's devices, and of AMD's."""
_ours = False


def in_sight() -> bool:
    """Whether torch sees one."""
    import torch  # not above: the command line reads this module before it knows whether torch is needed

    return torch.accelerator.is_available()


@contextmanager
def own_process() -> Iterator[None]:
    """This process does nothing but our work meanwhile: ``hide`` may hide GPUs from it."""
    global _ours
    before, _ours, seen = _ours, True, os.environ.get(VARIABLE)
    try:
        yield
    finally:
        _ours = before
        if seen is not None:
            os.environ[VARIABLE] = seen
        elif os.environ.get(VARIABLE) == "":
            del os.environ[VARIABLE]


def hide() -> None:
    """Have torch see none, if the process is ours: the run that is to come is on the CPU."""
    if _ours:
        os.environ[VARIABLE] = ""
