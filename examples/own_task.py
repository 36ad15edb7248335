"""A task of one's own for the command line: ``fedvra compare examples/own_task.py:task --seeds 0-2``."""

import numpy as np
import torch

import fedvra as fv

rng = np.random.default_rng(0)
inputs = rng.normal(size=(2000, 12)).astype(np.float32)
labels = (inputs @ rng.normal(size=(12, 3))).argmax(1)  # your arrays go here


def net():
    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))


def make(options):
    test = inputs[1600:], labels[1600:]
    data = fv.split((inputs[:1600], labels[:1600]), options.split, options.clients, options.seed, test=test)
    return fv.Supervised(net, weight_decay=options.weight_decay), data


task = fv.Task("three classes of points", make, defaults={"clients": 20, "cohort": 5, "rounds": 20, "lr": 0.1})
