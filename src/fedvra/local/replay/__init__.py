"""Gradient steps without autograd: record the aten calls of one eager step, then replay them in place.

One eager forward and backward pass runs under a ``TorchDispatchMode`` that notes every aten call and keeps its tensors. Those
tensors *are* the buffers of the replay: each call is repeated into the memory where its result lay the first time, so nothing
is allocated, views cost nothing, and no graph is built. Calls that nobody needs are dropped, calls that depend neither on the
parameters nor on the batch keep the value they had, and a gradient that is a bare matrix product never exists: it is added to
its parameter by the product itself (``addmm_``, ``baddbmm_``). Recording takes milliseconds and needs no compiler.

A step can be replayed when the same calls with the same shapes are right for every batch. Every program is recorded twice, on
different data and at different points, and both must come to the same calls; what a recording cannot see is refused
(``CannotReplayError``; see ``record``). Then it is compared with autograd, parameter by parameter (``check``).

Torch's own tracers were weighed and not taken. ``make_fx`` traces by the same dispatch mode, so it is blind to the same things
(``.tolist()``, Python's generators, attributes), and its graph would still need out-variants, buffers and fusions of its own;
AOTAutograd and ``torch.export`` refuse more, but functionalise what is cheap in place, import dynamo (1.3 s), and bring no
check against autograd, which is the part that matters.
"""

from fedvra.local.replay.first import FirstStep, check_first, trace_first
from fedvra.local.replay.program import Program, check_block, check_step, trace_block, trace_step
from fedvra.local.replay.record import CannotReplayError

__all__ = [
    "CannotReplayError",
    "FirstStep",
    "Program",
    "check_block",
    "check_first",
    "check_step",
    "trace_block",
    "trace_first",
    "trace_step",
]
