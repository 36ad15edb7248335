"""A worker that answers a SuperNode's messages without starting Python anew for each.

Flower runs every message in a process of its own. By default each is a new Python that imports torch, which takes seconds.
With ``flower-supernode --isolation process`` somebody else runs the messages: Flower's ``flower-superexec``, or this in its
place. It imports what an app needs once, in a process that does nothing else, and forks it for every message
(``multiprocessing`` calls it a forkserver). So nothing is left from one message to the next, as before, and the app is the one
whose signature the SuperNode checked.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from logging import INFO, WARNING
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore import log
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedvra.flower.orphans import end_with_parent

PRELOAD = ["fedvra", "fedvra.flower.node", "fedvra.problems.supervised", "flwr.supernode.runtime.run_clientapp"]
"""What is imported before the first message: torch comes with them."""
POLL_SECONDS = 0.1
RETRY_SECONDS = 1.0
"""Between attempts to reach a SuperNode that is not there, or is being restarted."""
METHOD = "/flwr.proto.Runtime/AcquireTask"


def work(supernode: str, secret: bytes | None, certificate: Path | None, preload: Sequence[str] = ()) -> None:
    """Answer the messages of a SuperNode, until SIGTERM or Ctrl-C.

    Args:
        supernode: HOST:PORT of its Runtime API, as its --host and --port say.
        secret: what its --superexec-auth-secret-file holds.
        certificate: the authority that signed its --ssl-certfile; None: it has none, and is on this machine.
        preload: what the app imports besides, by name; names that are not there are passed over.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *preload])
    authority = None if certificate is None else certificate.read_bytes()
    running: list[BaseProcess] = []
    _warm(context)
    log(INFO, "ready for the messages of %s", supernode)
    for token in _tokens(supernode, secret, authority):
        process = context.Process(target=_answer, args=(supernode, token, authority), daemon=True)
        process.start()
        running = [other for other in running if other.is_alive()] + [process]  # looking collects those that have ended


def _warm(context: ForkServerContext) -> None:
    """Have the imports done now: the process that is forked starts with the first one asked of it."""
    first = context.Process(target=os.getpid)
    first.start()
    first.join()


def _tokens(supernode: str, secret: bytes | None, authority: bytes | None) -> Iterator[str]:
    """One for every message, as they come."""
    interceptors: list[ProtobufClientInterceptor] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    if secret is not None:
        interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({METHOD})))
    made = RuntimeHttpClient.from_server_address(
        server_address=supernode, insecure=authority is None, root_certificates=authority, interceptors=interceptors
    )
    there = True
    with closing(made) as client:
        while True:
            try:
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            except httpx.TransportError:
                if there:
                    log(WARNING, "the SuperNode at %s does not answer; waiting for it", supernode)
                there = False
                time.sleep(RETRY_SECONDS)
                continue
            there = True
            if found.HasField("task") and found.token:
                yield found.token
            else:
                time.sleep(POLL_SECONDS)


def _answer(supernode: str, token: str, authority: bytes | None) -> None:
    """In a process of its own: what Flower's ``flwr-clientapp`` does."""
    end_with_parent()
    run_clientapp(supernode, token, insecure=authority is None, certificates=authority)
