"""Three hospitals with made-up patients, all on this machine: python examples/flower/run.py

Starts what docs/federation.md has one start on several machines (a SuperLink on loopback, the gate, a SuperNode with its worker
for each hospital; TLS, keys, a signed app), runs the app in this folder, stops everything and tests the model.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from hospitals.problem import make_model

import fedvra as fv
from fedvra.flower.launcher import LocalFederation

MEASUREMENTS, DIAGNOSES = 12, 3


def make_up(hospital: int, patients: int) -> dict[str, np.ndarray]:
    """Patients of one hospital: the same illnesses everywhere, but each sees mostly one, and has instruments of its own."""
    typical = np.random.default_rng(0).normal(size=(DIAGNOSES, MEASUREMENTS))
    rng = np.random.default_rng([1, hospital])
    often = np.full(DIAGNOSES, 0.15)
    often[hospital % DIAGNOSES] = 0.7
    targets = rng.choice(DIAGNOSES, size=patients, p=often)
    drift = rng.normal(scale=0.3, size=MEASUREMENTS)
    return {"inputs": typical[targets] + drift + rng.normal(size=(patients, MEASUREMENTS)), "targets": targets}


class Hospitals(LocalFederation):
    """Node i reads ``patients<i>.npz``."""

    def node_config(self, i: int) -> str:
        return f'data-file="{self.folder / f"patients{i}.npz"}"'


def accuracy(file: Path, hospitals: int) -> float:
    """Of the model in a file, on as many hospitals that took no part."""
    model = fv.load_model(file, make_model)
    tests = [make_up(hospitals + i, 500) for i in range(hospitals)]
    inputs = torch.as_tensor(np.concatenate([test["inputs"] for test in tests]), dtype=torch.float32)
    targets = torch.as_tensor(np.concatenate([test["targets"] for test in tests]))
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).double().mean())


def main(hospitals: int = 3, rounds: int = 5) -> float:
    with tempfile.TemporaryDirectory(prefix="hospitals-") as temporary:
        folder = Path(temporary)
        for i in range(hospitals):
            np.savez(folder / f"patients{i}.npz", **make_up(i, 150 * (i + 1)))
        print(f"starting a SuperLink, a gate and {hospitals} SuperNodes", flush=True)
        with Hospitals(hospitals, folder, secure=True, workers=True) as federation:
            given = {"clients": hospitals, "rounds": rounds, "folder": folder / "books"}
            with federation.submit(Path(__file__).parent, given) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if "counted, train loss" in line or "audit:" in line:
                        print(line[line.find("round") :] if "counted" in line else line, end="", flush=True)
        found = accuracy(folder / "books" / "model.safetensors", hospitals)
    print(f"accuracy on patients of hospitals that took no part: {found:.1%}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Hospitals with made-up patients, all on this machine.")
    parser.add_argument("--hospitals", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    main(**vars(parser.parse_args()))
