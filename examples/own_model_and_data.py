"""Your own nn.Module and arrays: eight hospitals, whose patients differ, learn one model without pooling their records.

    python examples/own_model_and_data.py

Any pair of arrays (inputs, targets) or torch Dataset will do, and any module whose output the loss understands.
"""

import numpy as np
import torch

import fedvra as fv


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(12, 32)
        self.out = torch.nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def patients(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measurements, one of three diagnoses, and the hospital, which sees mostly one kind of case."""
    rng = np.random.default_rng(seed)
    hospital = rng.integers(8, size=count)
    diagnosis = np.where(rng.random(count) < 0.8, hospital % 3, rng.integers(3, size=count))
    centres = np.random.default_rng(0).normal(size=(3, 12))
    return (centres[diagnosis] + rng.normal(size=(count, 12))).astype(np.float32), diagnosis, hospital


def main() -> fv.History:
    inputs, targets, hospital = patients(1600, seed=1)
    test_inputs, test_targets, _ = patients(1000, seed=2)
    history = fv.simulate(
        fv.FedVRA(gamma=0.1, a=5),
        problem=fv.Supervised(Net, loss=torch.nn.functional.cross_entropy, weight_decay=1e-3),
        data=fv.split((inputs, targets), fv.ByColumn(hospital), test=(test_inputs, test_targets)),
        sampler=fv.Uniform(4),
        work=fv.Epochs(2),
        lr=0.05,
        batch_size=20,
        rounds=15,
        weights="samples",
        seed=0,
    )
    for record in history.metrics:
        print(f"round {record['round']:2d}  accuracy {record['test_accuracy']:.1%}  loss {record['test_loss']:.3f}")
    model = history.model()  # a Net with the trained weights
    certainty = model(torch.from_numpy(test_inputs[:1])).softmax(dim=1)
    print("first patient:", "  ".join(f"diagnosis {k} {p:.0%}" for k, p in enumerate(certainty[0])))
    return history


if __name__ == "__main__":
    main()
