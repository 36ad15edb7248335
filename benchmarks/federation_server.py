"""What a round costs the server of a federation: seconds and peak memory, with clients that answer without working.

The grid does what Flower's own does to messages that are sent (their objects are hashed, the same object once) and makes each
reply when it is asked for, as one that comes over the network; so what is measured is the ServerApp's process alone.

    python benchmarks/federation_server.py                                        # 1,000 clients, 100 a round, 10^7 parameters
    python benchmarks/federation_server.py --parameters 1000000 --refuse multi-krum:10
"""

from __future__ import annotations

import argparse
import itertools
import logging
import resource
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, Message
from flwr.app.message import remove_content_from_message
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.task_identity import TaskIdentity

import fedvra as fv
from fedvra.flower import Strategy
from fedvra.flower.client_ledger import new_ticket
from fedvra.flower.protocol import CONFIG, Answer, Errand, Status, pack
from fedvra.policies.refusals import parse_refusal

SAMPLES = 10
FIRST = 1000
"""The number of client 0's node."""


@dataclass
class Federation:
    """Only what ``fedvra.flower`` uses of a Grid."""

    clients: int
    move: np.ndarray[Any, Any]
    _waiting: dict[str, tuple[Message, str]] = field(default_factory=dict)
    _numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=FIRST + i, public_key=b"key %d" % i) for i in range(self.clients)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers, objects = [], {}
        with no_object_id_recompute():
            for message in messages:
                objects.update(get_all_nested_objects(message))
                number = message.metadata.__dict__["_message_id"] = f"m{next(self._numbers)}"
                self._waiting[number] = (remove_content_from_message(message), str(message.content[CONFIG]["errand"]))
                numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._reply(*self._waiting.pop(number)) for number in message_ids if number in self._waiting]

    def _reply(self, message: Message, errand: str) -> Message:
        client = message.metadata.dst_node_id - FIRST
        answer = Answer(status=Status.DONE, client=client, samples=SAMPLES, loss=1.0)
        if errand == Errand.TRAIN:
            upload = Array(self.move * np.float32(1 + client / self.clients))
            answer = Answer(status=Status.DONE, client=client, ticket=new_ticket(), loss=1.0, arrays={"move": upload})
        return Message(pack(answer), reply_to=message)


def peak() -> float:
    """The most memory this process has had so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--refuse", type=parse_refusal, default=None, help="e.g. multi-krum:10")
    parser.add_argument("--folder", default=None, help="where the server's books are [default: a temporary folder]")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    move = np.random.default_rng(0).normal(scale=1e-3, size=given.parameters).astype(np.float32)
    grid = Federation(given.clients, move)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        strategy = Strategy(
            fv.FedVRA(gamma=0.1, a=10, d=10),
            problem=fv.Supervised(torch.nn.Linear(given.parameters, 1, bias=False)),
            clients=given.clients,
            sampler=fv.Uniform(given.cohort),
            work=fv.Steps(10),
            batch_size=SAMPLES,
            folder=folder,
            refuse=given.refuse,
            audit_every=0,
        )
        strategy.open(grid)
        print(f"ready: {peak():.2f} GB at most so far")
        for _ in range(given.rounds):
            begun, worked = time.perf_counter(), time.process_time()
            strategy.play(grid)
            wall, work = time.perf_counter() - begun, time.process_time() - worked
            counted = len(strategy.records[-1]["counted"])
            print(
                f"round {strategy.books.round}: {counted} counted, {wall:.1f} s ({work:.1f} s of processor), {peak():.2f} GB"
            )


if __name__ == "__main__":
    main()
