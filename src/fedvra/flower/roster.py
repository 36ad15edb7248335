"""Which node is which client, and how messages get there and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from fedvra.errors import FedvraError
from fedvra.flower.protocol import Answer, BadMessageError, Order, Status, pack, unpack_answer

POLL_SECONDS = 0.25
EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""What Flower says of a message, or a reply, that was not there when its time was up."""


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send, and collect the replies that come in time, at most one for each message.

    As ``grid.send_and_receive``, which looks for replies every three seconds only.
    """
    if not messages:
        return []
    waiting = {number for number in grid.push_messages(messages) if number}
    replies, deadline = [], time.monotonic() + timeout
    while waiting and time.monotonic() < deadline:
        for reply in grid.pull_messages(sorted(waiting)):
            if reply.metadata.reply_to_message_id in waiting:
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
        if waiting:
            time.sleep(POLL_SECONDS)
    return replies


def make_message(order: Order, node: int, timeout: float) -> Message:
    """A message for one node. It expires with the round: nobody is to work for a round that is over."""
    return Message(pack(order), node, MessageType.TRAIN, ttl=timeout, group_id=str(order.round + 1))


def read_reply(reply: Message | None) -> Answer | str:
    """The answer in a reply, or why there is none."""
    if reply is None:
        return "did not answer in time"
    if reply.has_error() and reply.error.code in EXPIRED:
        return "did not answer in time"
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split())
        return f"failed: {reason[-300:] or 'no reason given'}"
    try:
        return unpack_answer(reply.content)
    except BadMessageError as error:
        return f"sent a message that cannot be read: {error}"


def match(messages: Iterable[Message], replies: Iterable[Message]) -> list[Message | None]:
    """Each message's reply. By the message's number: error replies do not carry the sender's."""
    by_number = {reply.metadata.reply_to_message_id: reply for reply in replies}
    return [by_number.get(message.metadata.message_id) for message in messages]


@dataclass
class Roster:
    """The nodes that have said who they are."""

    total: int
    hello: Callable[[], Order]
    accept: Callable[[Answer], str | None]
    """Looks at an introduction; returns why it is refused, or None."""
    nodes: dict[int, int] = field(default_factory=dict)
    """Client -> node, of those connected now."""
    _known: dict[int, int | None] = field(default_factory=dict)
    """Node -> client; None for a node that was refused."""
    _troubles: dict[int, str] = field(default_factory=dict)
    """What came of the introduction of nodes that are not known."""

    def refresh(self, grid: Grid, timeout: float) -> None:
        """See who is connected, and ask the new ones who they are."""
        here = set(grid.get_node_ids())
        self._known = {node: client for node, client in self._known.items() if node in here}
        new = sorted(here - set(self._known))
        messages = [make_message(self.hello(), node, timeout) for node in new]
        for node, reply in zip(new, match(messages, exchange(grid, messages, timeout)), strict=True):
            answer = read_reply(reply)
            self._troubles.pop(node, None)
            if isinstance(answer, str):
                self._trouble(node, answer)  # asked again next time
                continue
            refusal = answer.reason if answer.status != Status.DONE else self.accept(answer)
            self._known[node] = None if refusal else answer.client
            if refusal:
                self._trouble(node, f"(client {answer.client}) is refused: {refusal}")
            else:
                log(INFO, "node %s is client %s with %s samples", node, answer.client, answer.samples)
        # In the order of introduction: where two nodes say they are the same client, the later one is (a restarted node).
        self.nodes = {client: node for node, client in self._known.items() if client is not None}

    def gather(self, grid: Grid, count: int, wait: float, timeout: float) -> None:
        """Wait until ``count`` clients are known."""
        deadline = time.monotonic() + wait
        while True:
            self.refresh(grid, timeout)
            if len(self.nodes) >= count:
                return
            if time.monotonic() > deadline:
                missing = sorted(set(range(self.total)) - set(self.nodes))
                raise FedvraError(
                    f"after {wait:g} s {len(self.nodes)} of {self.total} clients are connected (missing: "
                    f"{', '.join(map(str, missing[:10]))}): start their SuperNodes, or wait longer."
                    + "".join(f" Node {node} {trouble}" for node, trouble in self._troubles.items())
                )
            time.sleep(POLL_SECONDS * 4)

    def _trouble(self, node: int, what: str) -> None:
        log(WARNING, "node %s %s", node, what)
        self._troubles[node] = what
