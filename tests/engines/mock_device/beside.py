"""Rounds on the CPU of a machine with the mock device, by one worker and by two: prints where each came to."""

from __future__ import annotations

from loaded import torch  # first

import fedvra as fv

torch.ones(3, requires_grad=True).sum().backward()
data = fv.split(fv.load("digits"), fv.IID(), clients=10)
problem = fv.Supervised(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
for workers in (1, 2):
    history = fv.simulate(
        fv.FedVRA(), problem=problem, data=data, sampler=fv.Uniform(4), work=fv.Steps(2), rounds=2, workers=workers
    )
    print(history.x0.double().norm().item())
