"""Four algorithms, three seeds, a metric of one's own, early stopping, checkpoints that survive a kill, and a report."""

import numpy as np
import torch

import fedvra as fv

rng = np.random.default_rng(0)
inputs = rng.normal(size=(2000, 12)).astype(np.float32)
labels = (inputs @ rng.normal(size=(12, 3))).argmax(1)  # your two arrays go here

problem = fv.Supervised(lambda: torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3)))


def worst_class(outputs, targets):
    return min(float((outputs.argmax(1) == targets)[targets == k].float().mean()) for k in range(3))


test = inputs[1600:], labels[1600:]
data = fv.split((inputs[:1600], labels[:1600]), fv.Dirichlet(0.3), clients=20, test=test, validation=0.1)
study = {"problem": problem, "data": data, "sampler": fv.Uniform(5), "work": fv.Epochs(1), "rounds": 40}
study |= {"lr": 0.1, "batch_size": 20, "metrics": {"worst_class": worst_class}, "callbacks": [fv.Patience(5)]}
algorithms = [fv.FedVRA(), fv.FedAvg(), fv.Scaffold(), fv.FedDyn()]
print(fv.compare(algorithms, **study, seeds=range(3), out="runs/study", checkpoint_every=5).markdown())
