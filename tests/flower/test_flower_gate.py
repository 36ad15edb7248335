"""The gate lets a SuperNode wait for its next message, in place of having it ask every three seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message

from fedvra.flower import gate as gates
from fedvra.flower.certificates import write_certificates
from fedvra.flower.gate import PULL, Gate

EMPTY = PullMessagesResponse().SerializeToString()
FULL = PullMessagesResponse(messages_list=[Message()]).SerializeToString()
BODY = b"who asks"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "ASK_SECONDS", 0.001)


class Asked:
    """A SuperLink that gives these answers one after the other, the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers, self.bodies = list(answers), list[bytes]()
        self.headers: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(request.content)
        self.headers.append(request.headers.get("flwr-signature"))
        status, content = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return httpx.Response(status, content=content)


def ask(superlink: Asked, folder: Path, gone: Callable[[], bool] = lambda: False) -> list[tuple[int, bytes]]:
    """What a SuperNode is told that asks for messages; ``gone`` says whether it has hung up."""
    gate = Gate("superlink:8000", write_certificates(folder).ca)
    gate._client = httpx.AsyncClient(transport=httpx.MockTransport(superlink), base_url="https://superlink")
    told: list[dict[str, Any]] = []
    asked = iter([{"type": "http.request", "body": BODY}])

    async def receive() -> dict[str, Any]:
        if (event := next(asked, None)) is not None:
            return event
        while not gone():
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        told.append(event)

    headers = [(b"flwr-signature", b"s"), (b"x-forwarded-for", b"me")]
    scope = {"type": "http", "method": "POST", "raw_path": PULL, "query_string": b"", "headers": headers}
    asyncio.run(gate(scope, receive, send))
    return [(start["status"], body["body"]) for start, body in zip(told[::2], told[1::2], strict=True)]


def test_a_message_is_handed_over_when_it_is_there(tmp_path: Path) -> None:
    superlink = Asked((200, EMPTY), (200, EMPTY), (200, FULL))
    assert ask(superlink, tmp_path) == [(200, FULL)]
    assert superlink.bodies == [BODY] * 3
    assert superlink.headers == ["s"] * 3


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "HOLD_SECONDS", 0.5)
    superlink = Asked((200, EMPTY))
    assert ask(superlink, tmp_path) == [(200, EMPTY)]
    assert len(superlink.bodies) >= 2


def test_no_message_is_fetched_for_one_who_is_gone(tmp_path: Path) -> None:
    """It would be delivered to nobody, and its round would wait for it."""
    superlink = Asked((200, EMPTY), (200, EMPTY), (200, EMPTY), (200, FULL))
    assert ask(superlink, tmp_path, gone=lambda: len(superlink.bodies) == 3) == []
    assert len(superlink.bodies) == 3


@pytest.mark.parametrize("answer", [(401, b""), (503, b"later")], ids=str)
def test_what_is_no_answer_is_passed_on_at_once(answer: tuple[int, bytes], tmp_path: Path) -> None:
    superlink = Asked(answer)
    assert ask(superlink, tmp_path) == [answer]
    assert len(superlink.bodies) == 1


def test_where_many_wait_the_others_are_answered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MOST_HELD", 0)
    superlink = Asked((200, EMPTY))
    assert ask(superlink, tmp_path) == [(200, EMPTY)]
    assert len(superlink.bodies) == 1
