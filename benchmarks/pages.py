"""What it costs to put a client's row of the MNIST network (0.8 MB) into memory, by the kind of memory: processor time per row.

OMP_NUM_THREADS=1 python benchmarks/pages.py
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from statistics import mean, median

import torch
from torch import Tensor

ROW = -(-199_210 * 4 // mmap.PAGESIZE) * mmap.PAGESIZE
COUNT = 150


def per_row(name: str, put: Callable[[int], object]) -> None:
    seconds = []
    for k in range(COUNT):
        begun = time.process_time()
        put(k)
        seconds.append(time.process_time() - begun)
    print(f"{name:34} {1e3 * median(seconds):.3f} ms, mean {1e3 * mean(seconds):.3f}")


def rows_of(memory: mmap.mmap) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.float32, count=COUNT * ROW // 4).view(COUNT, -1)


def file_in_memory() -> int:
    fd = os.memfd_create("rows")
    os.ftruncate(fd, COUNT * ROW)
    return fd


def main() -> None:
    row = torch.rand(ROW // 4)
    content = row.view(torch.uint8).numpy().data
    fd = file_in_memory()
    per_row("pwrite, fresh", lambda k: os.pwrite(fd, content, k * ROW))
    written = rows_of(mmap.mmap(fd, COUNT * ROW))
    per_row("mapped when it is there", lambda k: written[k][:: (64 << 10) // 4].sum())
    per_row("mapped and met again", lambda k: written[k].copy_(row))
    shared = rows_of(mmap.mmap(file_in_memory(), COUNT * ROW))
    per_row("shared and mapped, fresh", lambda k: shared[k].copy_(row))
    private = rows_of(mmap.mmap(-1, COUNT * ROW, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    per_row("private, fresh", lambda k: private[k].copy_(row))
    memory = mmap.mmap(-1, COUNT * ROW, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    huge = rows_of(memory)
    per_row("private with huge pages, fresh", lambda k: huge[k].copy_(row))
    per_row("private, met again", lambda k: huge[k].copy_(row))


if __name__ == "__main__":
    main()
