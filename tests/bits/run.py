"""``python tests/bits/run.py FILE PART``: every case with PART in its name of the fedvra that Python finds, as JSON."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from bits.cases import Outcome, cases

FIGURES = ("train_loss", "test_loss", "test_accuracy")


def bits(outcome: Outcome) -> dict[str, str]:
    """A digest of each tensor and of the records: who took part, and the losses to the last bit."""
    tensors = {"x0": outcome.x0, "lam": outcome.lam, **outcome.kept}
    found = {name: _digest(tensor.contiguous().view(torch.uint8).numpy().tobytes()) for name, tensor in tensors.items()}
    records = [
        [float(v).hex() if (v := record.get(f)) is not None else "" for f in FIGURES] for record in outcome.records
    ]
    found["records"] = _digest(json.dumps(records).encode())
    found["cohorts"] = _digest(json.dumps([list(map(int, record["cohort"])) for record in outcome.records]).encode())
    return found


def numbers(outcome: Outcome) -> list[float]:
    """A few that any change shows in: the length of x0, x0 and lam along a fixed direction, the last record's losses."""
    x0, lam, last = outcome.x0.double(), outcome.lam.double(), outcome.records[-1]
    direction = torch.cos(torch.arange(len(x0), dtype=torch.float64))
    return [float(x0.norm()), float(x0 @ direction), float(lam @ direction)] + [
        float(last[figure]) for figure in FIGURES if last.get(figure) is not None
    ]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main(target: Path, part: str) -> None:
    import fedvra

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    os.fsync = lambda fd: None  # no power cut is expected, and Flower's path has many
    results: dict[str, Any] = {}
    for case in cases():
        if part not in case.name:
            continue
        begun = time.perf_counter()
        try:
            outcome = case.run()
            results[case.name] = {"bits": bits(outcome), "numbers": numbers(outcome)}
        except Exception as error:  # whatever an older checkout does not have or do
            results[case.name] = {"raises": f"{type(error).__name__}: {error}"}
        results[case.name]["seconds"] = round(time.perf_counter() - begun, 4)
    home = str(Path(fedvra.__file__).parent.parent)
    target.write_text(json.dumps({"src": home, "cases": results}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
