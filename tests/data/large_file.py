"""Train on a made-up sparse file: prints the megabytes read, by how many memory grew, and the peak.

python tests/data/large_file.py --gigabytes 20 --clients 100 --rounds 10
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from torch import nn

import fedvra as fv

SHAPE = (3, 64, 64)
ROW = 4 * 3 * 64 * 64


def peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    rows = int(given.gigabytes * 1e9) // ROW
    labels = np.arange(rows) % 10
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.bin"
        with path.open("wb") as file:
            file.truncate(rows * ROW)  # a hole: it takes no room on the disk
        images = np.memmap(path, dtype=np.float32, mode="r", shape=(rows, *SHAPE))
        data = fv.split((images, labels), fv.IID(), given.clients)
        model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(192, 10))
        settings = {"sampler": fv.Uniform(3), "work": fv.Epochs(1), "batch_size": 50, "workers": 1}
        fv.simulate(fv.FedVRA(), problem=fv.Supervised(model), data=data, rounds=0, **settings)  # type: ignore[arg-type]
        before, started = peak(), time.perf_counter()
        history = fv.simulate(
            fv.FedVRA(),
            problem=fv.Supervised(model),
            data=data,
            rounds=given.rounds,
            **settings,  # type: ignore[arg-type]
        )
        seconds = time.perf_counter() - started
    read = sum(int(data.sizes[m["cohort"]].sum()) for m in history.metrics) * ROW / 1e6
    print(f"{read:.0f} {peak() - before:.0f} {peak():.0f}")
    print(f"MB read, MB grown, MB at most; {rows * ROW / 1e9:.1f} GB on file, {seconds:.1f} s, path {history.path}")


if __name__ == "__main__":
    main()
