"""A client that works on its own shard, and fails where a file ``<client>-<round>`` in the folder of faults says how."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import fedvra as fv
import fedvra.flower
from faulty.problem import problem
from fedvra.flower.protocol import Errand, unpack_order


def load_shard(context: Context) -> fv.Dataset:
    with np.load(str(context.node_config["data-file"])) as file:
        return fv.Dataset("shard", torch.from_numpy(file["inputs"]), torch.from_numpy(file["targets"]))


def read_fault(context: Context, round: int) -> str:
    """The fault of this client in this round; it strikes once."""
    path = Path(str(context.run_config["faults"])) / f"{context.node_config['partition-id']}-{round + 1}"
    if not path.exists():
        return ""
    fault = path.read_text()
    path.rename(path.with_name(f"{path.name}-happened"))
    return fault


@fedvra.flower.client(problem=problem, data=load_shard)
def honest(work: fedvra.flower.LocalWork) -> torch.Tensor:
    return work.solve()


@fedvra.flower.client(problem=problem, data=load_shard)
def not_a_number(work: fedvra.flower.LocalWork) -> torch.Tensor:
    return work.solve() * torch.nan


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    order = unpack_order(message.content)
    fault = read_fault(context, order.round) if order.errand == Errand.TRAIN else ""
    if fault == "wiped":
        shutil.rmtree(str(context.node_config["fedvra-folder"]))
    reply = (not_a_number if fault == "nan" else honest)(
        message, context
    )  # the new dual is written: now things go wrong
    if fault == "raises":
        raise RuntimeError("this client fails after its local work")
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "straggles":
        finished = Path(str(context.run_config["folder"])) / f"round-{order.round + 1}"
        while not finished.exists():
            time.sleep(0.1)
    return reply
