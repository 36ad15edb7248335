"""Gradient steps without autograd: record the aten calls of one eager step, then replay them in place.

One eager forward and backward pass runs under a ``TorchDispatchMode`` that notes every aten call and keeps its tensors. Those
tensors *are* the buffers of the replay: each call is repeated into the memory where its result lay the first time, so nothing
is allocated, views cost nothing, and no graph is built. Calls that nobody needs are dropped, calls that depend neither on the
parameters nor on the batch keep the value they had, and a gradient that is a bare matrix product never exists: it is added to
its parameter by the product itself (``addmm_``, ``baddbmm_``). Recording takes milliseconds and needs no compiler.

A step can be replayed when the same calls with the same shapes are right for every batch. Refused (``CannotReplayError``):
random numbers (dropout), buffers that change (BatchNorm in training), data that steer Python (``.item()``, boolean masks).
Every program is tried on a second batch against autograd before it is used.
"""

from fedvra.replay.first import FirstStep, trace_first
from fedvra.replay.program import Program, trace_block, trace_step
from fedvra.replay.record import CannotReplayError

__all__ = ["CannotReplayError", "FirstStep", "Program", "trace_block", "trace_first", "trace_step"]
