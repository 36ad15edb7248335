"""What runs in each hospital. Its SuperNode is started with

--node-config 'partition-id=0 data-file="/path/to/patients.npz" fedvra-folder="/path/to/ledger"'
"""

import numpy as np
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp

import fedvra as fv
import fedvra.flower
from hospitals.problem import problem


def load_patients(context: Context) -> fv.Dataset:
    """This hospital's own records: arrays ``inputs`` [n, 12] and ``targets`` [n]."""
    with np.load(str(context.node_config["data-file"])) as file:
        inputs, targets = file["inputs"].astype(np.float32), file["targets"].astype(np.int64)
    return fv.Dataset("patients", torch.from_numpy(inputs), torch.from_numpy(targets))


app = ClientApp()


@app.train()
@fedvra.flower.client(problem=problem, data=load_patients)
def train(work: fedvra.flower.LocalWork) -> torch.Tensor:
    return work.solve()  # or drive the steps by hand: x = work.step(x, gradient), then return x - work.x0
