"""The programs of a model, one for every batch shape it meets, and the memory they are bound to."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedvra.cohort import Ints
from fedvra.feed import Feed
from fedvra.flat import FlatSpec
from fedvra.replay import CannotReplayError, FirstStep, Program, trace_block, trace_first, trace_step
from fedvra.replay.program import Loss

SMALL_PROGRAM = 8 << 20
"""Bytes of buffers up to which every batch shape gets a program of its own; beyond it odd shapes go the eager path."""


class Programs:
    """Traced when first asked for, which uses the buffers: ask before they are in use.

    Args:
        usual: the samples of an ordinary batch.
        compute: the dtype of the arithmetic inside a step where it is not that of the parameters.
    """

    def __init__(self, module: nn.Module, loss: Loss, feed: Feed, usual: Ints, compute: torch.dtype | None) -> None:
        self.module, self.loss, self.feed, self.usual, self.compute = module, loss, feed, usual, compute
        self.spec = FlatSpec.of_parameters(module)
        self.anchor = self.spec.gather(module)
        """The point from which single steps start."""
        self._programs: dict[tuple[int, int, bool], Program | None] = {}
        self._first: dict[tuple[int, int], FirstStep | None] = {}
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._constants: dict[int, Tensor] = {}

    def get(self, rows: Ints, width: int, shared: bool) -> Program | None:
        """The program for batches of this size: bound to x, or (``shared``, width 1) to the anchor and writing to delta.

        None where the batch shape is an odd one and the model too large to keep a set of buffers for each.
        """
        key = (len(rows), width, shared)
        if key not in self._programs:
            self._programs[key] = self._trace(rows, width, shared)
        return self._programs[key]

    def _trace(self, rows: Ints, width: int, shared: bool) -> Program | None:
        usual = self._programs.get((len(self.usual), 1, False))
        if usual is not None and len(rows) != len(self.usual) and usual.nbytes() > SMALL_PROGRAM:
            return None
        x, delta = self.buffer(width)
        x.copy_(self.anchor)
        inputs, targets = self.feed.inputs(rows), self.feed.targets(rows)
        if width == 1:
            start, out = (self.anchor, delta[0]) if shared else (x[0], x[0])
            return trace_step(self.module, self.loss, inputs, targets, start, out, self.compute)
        inputs, targets = _times(width, inputs, targets)
        return trace_block(self.module, self.loss, inputs, targets, x)

    def for_block(self, schedules: list[list[Ints]], t: int) -> Program:
        longest = max(schedules, key=len)
        program = self.get(longest[t], len(schedules), shared=False)
        assert program is not None  # a model that is blocked is small: each shape has its program
        return program

    def first(self, rows: Ints, width: int) -> FirstStep | None:
        """The first step of so many clients from the anchor, for batches of this size; None where it cannot be replayed."""
        key = (len(rows), width)
        if key not in self._first:
            inputs, targets = _times(width, self.feed.inputs(rows), self.feed.targets(rows))
            try:
                self._first[key] = trace_first(self.module, self.loss, inputs, targets, self.anchor)
            except CannotReplayError:  # steps from points of their own can be: the path was chosen by that
                self._first[key] = None
        return self._first[key]

    def fill(self, program: Program, rows: Ints, rng: np.random.Generator | None) -> None:
        program.inputs.copy_(self.feed.inputs(rows, rng))
        program.targets.copy_(self.feed.targets(rows))

    def fill_block(
        self,
        program: Program | FirstStep,
        schedules: list[list[Ints]],
        t: int,
        generators: list[np.random.Generator | None],
    ) -> None:
        longest = max(schedules, key=len)  # also feeds those who have finished: any batch of the right size will do
        batches = [schedule[t] if t < len(schedule) else longest[t] for schedule in schedules]
        rows = np.concatenate(batches)
        program.targets.copy_(self.feed.targets(rows).view(program.targets.shape))
        if generators[0] is None:
            program.inputs.copy_(self.feed.inputs(rows).view(program.inputs.shape))
        else:
            for k, batch in enumerate(batches):
                program.inputs[k].copy_(self.feed.inputs(batch, generators[k]))

    def buffer(self, width: int) -> tuple[Tensor, Tensor]:
        """x and delta [M, P], always the same memory for a given M: programs are bound to it."""
        if width not in self._buffers:
            self._buffers[width] = (
                self.anchor.new_zeros(width, self.spec.size),
                self.anchor.new_zeros(width, self.spec.size),
            )
        return self._buffers[width]

    def constant(self, width: int) -> Tensor:
        """Room for c [M, P], made when first needed."""
        if width not in self._constants:
            self._constants[width] = self.anchor.new_zeros(width, self.spec.size)
        return self._constants[width]


def _times(width: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same batch for so many clients."""
    return inputs.expand(width, *inputs.shape).contiguous(), targets.expand(width, *targets.shape).contiguous()


class Epoch:
    """A client's samples made ready once, to be dealt into batches without further arithmetic."""

    def __init__(self, feed: Feed, schedule: list[Ints]) -> None:
        rows, places = np.unique(np.concatenate(schedule), return_inverse=True)
        self.inputs = _channels_inside(feed.inputs(rows), feed.channels_last)
        self.targets = feed.targets(rows)
        self.channels_last = feed.channels_last
        stops = np.cumsum([len(batch) for batch in schedule])
        self.batches = [torch.from_numpy(index).to(feed.device) for index in np.split(places, stops[:-1])]

    def fill(self, program: Program, t: int) -> None:
        index = self.batches[t]
        torch.index_select(self.inputs, 0, index, out=_channels_inside(program.inputs, self.channels_last))
        torch.index_select(self.targets, 0, index, out=program.targets)


def _channels_inside(images: Tensor, channels_last: bool) -> Tensor:
    """[B, C, H, W] in channels_last memory as the contiguous [B, H, W, C] that it is."""
    return images.permute(0, 2, 3, 1) if channels_last else images
