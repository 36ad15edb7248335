"""What server and clients must agree on: the model and the loss."""

import torch

import fedvra as fv


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


problem = fv.Supervised(make_model, loss=torch.nn.functional.cross_entropy, weight_decay=1e-3)
