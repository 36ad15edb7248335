"""The programs of a model, one for every batch shape it meets, and the memory they are bound to.

Programs are recorded and tried on data and at points that follow from the model, the data and the shape alone: what comes of it
depends neither on who asks first nor on when.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedvra.core.cohort import Ints
from fedvra.data import trees
from fedvra.local.client_batches import ClientBatches
from fedvra.local.loan import Batch
from fedvra.local.replay import CannotReplayError, FirstStep, Program, trace_block, trace_first, trace_step
from fedvra.local.replay.record import tensors_in
from fedvra.local.subject import Subject

SMALL_PROGRAM = 8 << 20
"""Bytes of buffers up to which every batch shape gets a program of its own; beyond it odd shapes go the eager path."""
ASIDE = 0.01
"""How far from the start, relative to its size, a program is tried: at the start itself much may be zero."""

PREPARED = 256 << 20
"""Bytes of samples made ready up to which a client's are so once per round; beyond it batch by batch."""

Made = TypeVar("Made", Program, FirstStep)


class Programs:
    """Traced when first asked for, which uses the buffers: ask before they are in use.

    Args:
        usual: how many samples an ordinary batch has.
        compute: the dtype of the arithmetic inside a step where it is not that of the parameters.
    """

    def __init__(self, subject: Subject, feed: ClientBatches, usual: int, compute: torch.dtype | None) -> None:
        self.subject, self.feed, self.usual, self.compute = subject, feed, usual, compute
        self.spec = subject.spec
        self._start = subject.gather().to(feed.device)
        self.anchor = self._start.clone()
        """The point from which single steps start."""
        self.aux = subject.gather_aux()
        """The statistics that programs update."""
        if self.aux is not None:
            self.aux = self.aux.to(feed.device)
        self._programs: dict[tuple[int, int, bool, bool], Program | None] = {}
        self._first: dict[tuple[int, int], FirstStep | None] = {}
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._constants: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}

    def get(self, size: int, width: int, shared: bool = False, apart: bool = False) -> Program | None:
        """The program for batches of this size: bound to x, or (``shared``, width 1) to the anchor and writing to delta.

        ``apart`` leaves x alone and gathers the gradient in a vector of its own, for optimisers with a memory.

        None where the batch size is an odd one and the model too large to keep a set of buffers for each.
        """
        key = (size, width, shared, apart)
        if key not in self._programs:
            self._programs[key] = self._trace(*key)
        return self._programs[key]

    def _trace(self, size: int, width: int, shared: bool, apart: bool) -> Program | None:
        usual = self._programs.get((self.usual, 1, False, False))
        if usual is not None and size != self.usual and usual.nbytes() > SMALL_PROGRAM:
            return None
        x, delta = self.buffer(width)
        batches, points = self._trial_batches(size, width), self._trial_points(width)
        try:
            if width > 1:
                return trace_block(self.subject, batches, points, x, self.gradient(width) if apart else x)
            start, out = (self.anchor, delta[0]) if shared else (x[0], self.gradient(1)[0] if apart else x[0])
            return trace_step(self.subject, batches, points, start, self.aux, out, self.compute)
        except CannotReplayError:
            raise
        except Exception as error:  # whatever torch or the model said: autograd is there
            raise CannotReplayError(_first_line(error)) from error

    def for_block(self, schedules: list[list[Ints]], t: int, apart: bool = False) -> Program:
        longest = max(schedules, key=len)
        program = self.get(len(longest[t]), len(schedules), apart=apart)
        assert program is not None  # a model that is blocked is small: each shape has its program
        return program

    def first(self, size: int, width: int) -> FirstStep | None:
        """The first step of so many clients from the anchor, for batches of this size; None where it cannot be replayed."""
        key = (size, width)
        if key not in self._first:
            batches = self._trial_batches(size, width)
            points = (self._start, self._trial_points(2)[1][0])
            try:
                self._first[key] = trace_first(self.subject, batches, points, self.anchor)
            except Exception:  # steps from points of their own can be replayed: the path was chosen by that
                self._first[key] = None
        return self._first[key]

    def _trial_batches(self, size: int, width: int) -> tuple[Batch, Batch]:
        """Two batches of the data, alike in nothing but their size."""
        rng = np.random.default_rng(size)
        found = []
        for scale in (1.0, 0.75):
            clients = rng.choice(np.flatnonzero(self.feed.data.sizes), 16)
            rows = rng.choice(np.concatenate([self.feed.data.part(int(c)) for c in clients]), size * width)
            inputs, targets = self.feed.batch(rows)
            if scale != 1.0:
                inputs = trees.map(lambda t: t * scale if t.is_floating_point() else t, inputs)  # noqa: B023
            if width > 1:
                inputs, targets = _by_client(inputs, width, size), _by_client(targets, width, size)
            found.append((inputs, targets))
        return found[0], found[1]

    def _trial_points(self, width: int) -> tuple[Tensor, Tensor]:
        start = self._start if width == 1 else self._start.expand(width, -1)
        generator = torch.Generator().manual_seed(width)
        noise = torch.randn(start.shape, generator=generator, dtype=start.dtype).to(start.device)
        size = start.square().mean().sqrt()
        return start, start + ASIDE * (size if size > 0 else 1.0) * noise

    def fill(self, program: Program, rows: Ints, rng: np.random.Generator | None) -> None:
        program.fill(self.feed.batch(rows, rng))

    def fill_block(
        self,
        program: Program | FirstStep,
        schedules: list[list[Ints]],
        t: int,
        generators: list[np.random.Generator | None],
    ) -> None:
        place_block(program, self.block_batch(schedules, t, generators))

    def block_batch(
        self, schedules: list[list[Ints]], t: int, generators: list[np.random.Generator | None]
    ) -> list[list[Tensor]]:
        """What all clients of a block see in step t: all rows together, or where they are augmented each client's own."""
        longest = max(schedules, key=len)  # also feeds those who have finished: any batch of the right size will do
        batches = [schedule[t] if t < len(schedule) else longest[t] for schedule in schedules]
        if generators[0] is None:
            return [tensors_in(self.feed.batch(np.concatenate(batches)))]
        return [tensors_in(self.feed.batch(batch, rng)) for batch, rng in zip(batches, generators, strict=True)]

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

    def gradient(self, width: int) -> Tensor:
        """Room for u [M, P], what an optimiser with a memory is handed; made when first needed."""
        if width not in self._gradients:
            self._gradients[width] = self.anchor.new_zeros(width, self.spec.size)
        return self._gradients[width]


def place_block(program: Program | FirstStep, found: list[list[Tensor]]) -> None:
    """Give a program what ``Programs.block_batch`` found."""
    if len(found) == 1:
        for place, rows in zip(program.places, found[0], strict=True):
            place.copy_(rows.view(place.shape))
        return
    for k, own in enumerate(found):
        for place, rows in zip(program.places, own, strict=True):
            place[k].copy_(rows)


def _by_client(tree: trees.Tree, width: int, size: int) -> trees.Tree:
    return trees.map(lambda t: t.view(width, size, *t.shape[1:]), tree)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


class Epoch:
    """A client's samples made ready once, to be divided into batches without further arithmetic."""

    def __init__(self, feed: ClientBatches, schedule: list[Ints]) -> None:
        rows, places = np.unique(np.concatenate(schedule), return_inverse=True)
        self._tree = feed.batch(rows)
        self.samples = [_dense(t) for t in tensors_in(self._tree)]
        self.batches = torch.split(torch.from_numpy(places).to(feed.device), [len(batch) for batch in schedule])

    @classmethod
    def of(cls, feed: ClientBatches, schedule: list[Ints], rng: np.random.Generator | None) -> Epoch | None:
        """None where samples differ from batch to batch (augmented by ``rng``, collated), are read as needed, or too many."""
        if rng is not None or not feed.stacks or feed.lazy:
            return None
        inputs = trees.leaves(feed.data.dataset.inputs)
        bytes_each = sum(t.numel() // len(t) * feed.dtype.itemsize for t in inputs)
        fits = bytes_each * sum(map(len, schedule)) <= PREPARED
        return cls(feed, schedule) if fits else None

    def fill(self, program: Program, t: int) -> None:
        index = self.batches[t]
        for samples, place in zip(self.samples, program.places, strict=True):
            torch.index_select(samples, 0, index, out=_dense(place))

    def batch(self, t: int) -> Batch:
        """The t-th batch, in memory of its own."""
        index, (inputs, targets) = self.batches[t], self._tree
        return trees.map(lambda t: _taken(t, index), inputs), trees.map(lambda t: _taken(t, index), targets)


def _taken(samples: Tensor, index: Tensor) -> Tensor:
    """These rows, in the memory layout that the samples have."""
    if samples.is_contiguous():
        return samples.index_select(0, index)
    return _dense(samples).index_select(0, index).permute(0, 3, 1, 2)


def _dense(images: Tensor) -> Tensor:
    """[B, C, H, W] in channels_last memory as the contiguous [B, H, W, C] that it is."""
    return images if images.is_contiguous() else images.permute(0, 2, 3, 1)
