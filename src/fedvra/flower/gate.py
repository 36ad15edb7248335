"""The one door of a SuperLink that faces the world: what SuperNodes need, and nothing else.

Flower 1.41 serves three interfaces on one port. *Fleet* is for SuperNodes and asks each for its key. *Control* submits runs and
registers nodes, *Runtime* hands out the ServerApp's work, and neither asks for anything: account authentication is not in the
open-source distribution. So the SuperLink listens on loopback only, and this proxy, with the server's certificate, passes on
the calls a registered SuperNode makes, each by its exact name. Registration through Fleet is not among them.

Flower's SuperNodes can demand that an app is signed (``--trusted-entities``), but its SuperLink has signatures only for apps
from Flower's own hub. The gate adds those of one's own apps (``fedvra federation sign``) to the answer that carries the app. It
need not be trusted for that: the check is the SuperNode's.

A SuperNode that finds no message waits three seconds before it asks again. So the gate does not answer at once that there is
none: it asks on its behalf, several times a second, and answers when there is one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from logging import WARNING
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from flwr.proto.fab_pb2 import GetFabResponse
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.supercore import log

from fedvra.flower.certificates import Certificates
from fedvra.flower.protocol import printable

GET_FAB = b"/v1/fleet/get-fab"
PULL = b"/v1/fleet/pull-messages"
ROUTES = frozenset(
    b"/v1/fleet/" + name
    for name in (
        b"activate-node",
        b"deactivate-node",
        b"send-node-heartbeat",
        b"pull-messages",
        b"push-messages",
        b"get-run",
        b"get-fab",
        b"push-object",
        b"pull-object",
        b"confirm-message-received",
    )
)
MAX_BODY = 64 << 20
"""Bytes of one request. Flower sends vectors in pieces of 5 MB."""
PASSED_ON = re.compile(rb"content-type|accept|traceparent|flwr-[a-z0-9-]+")
"""Headers that go through the gate, in small letters; those a proxy may set about who is asking do not."""
SECONDS = 60.0
HOLD_SECONDS = 20.0
"""How long a SuperNode is kept waiting for a message; it gives up after 30, and what it signs is good for 300."""
ASK_SECONDS = 0.2
MOST_HELD = 64
"""SuperNodes that wait here at a time: asking for more would keep the SuperLink busy. Others are answered at once."""

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


class TooLargeError(Exception):
    """A request's body is longer than the gate lets through."""


class Gate:
    """The proxy as an ASGI application."""

    def __init__(self, superlink: str, ca: str, signatures: Path | None = None) -> None:
        self.signatures = signatures
        self._held = 0
        self._client = httpx.AsyncClient(
            base_url=f"https://{superlink}",
            verify=ssl.create_default_context(cafile=ca),
            timeout=SECONDS,
            trust_env=False,  # no proxy between the gate and its SuperLink
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["raw_path"]
        if scope["method"] != "POST" or path not in ROUTES or scope["query_string"]:
            log(WARNING, "turned away: %s %s", printable(scope["method"]), printable(path.decode("latin-1")[:80]))
            await _answer(send, 404, b"")
            return
        try:
            if path == PULL:
                await self._hold(scope["headers"], receive, send)
            else:
                await self._pass_on(path, scope["headers"], _bounded(receive), send)
        except TooLargeError:
            await _answer(send, 413, b"")
        except httpx.HTTPError as error:
            log(WARNING, "the SuperLink did not answer: %s", type(error).__name__)
            await _answer(send, 502, b"")

    async def _pass_on(self, path: bytes, headers: Headers, body: AsyncIterator[bytes], send: Send) -> None:
        found = await self._ask(path, headers, body)
        content = self._signed(found.content) if path == GET_FAB and found.status_code == 200 else found.content
        await _answer(send, found.status_code, content, _passed_on(found.headers.raw))

    async def _ask(self, path: bytes, headers: Headers, body: AsyncIterator[bytes] | bytes) -> httpx.Response:
        return await self._client.post(path.decode("ascii"), headers=_passed_on(headers), content=body)

    async def _hold(self, headers: Headers, receive: Receive, send: Send) -> None:
        """A SuperNode asks for messages: answer when there is one, or when it has waited long enough."""
        body = b"".join([part async for part in _bounded(receive)])
        found = await self._ask(PULL, headers, body)
        if self._held < MOST_HELD:
            self._held += 1
            try:
                loop = asyncio.get_running_loop()
                deadline = loop.time() + HOLD_SECONDS
                while _nothing(found) and loop.time() < deadline:
                    if await _hung_up(receive, ASK_SECONDS):
                        return  # before a message is fetched for it that it would not get
                    found = await self._ask(PULL, headers, body)
            finally:
                self._held -= 1
        await _answer(send, found.status_code, found.content, _passed_on(found.headers.raw))

    def _signed(self, body: bytes) -> bytes:
        """The answer that carries an app, with the signatures there are for it."""
        answer = GetFabResponse()
        answer.ParseFromString(body)
        for name, value in verifications(answer.fab.content, self.signatures).items():
            answer.fab.verifications[name] = value
        return bytes(answer.SerializeToString())


def verifications(app: bytes, folder: Path | None) -> dict[str, str]:
    """The signatures in a folder that belong to an app, as a SuperNode wants to see them."""
    path = None if folder is None else folder / f"{hashlib.sha256(app).hexdigest()}.json"
    if path is None or not path.is_file():
        return {}
    made: dict[str, Any] = json.loads(path.read_text())
    return {"valid_license": "Valid"} | {name: json.dumps(value) for name, value in made.items()}


def serve(listen: str, superlink: str, tls: Certificates, signatures: Path | None) -> None:
    """Open the gate, until SIGTERM or Ctrl-C."""
    host, _, port = listen.rpartition(":")
    uvicorn.run(
        Gate(superlink, tls.ca, signatures),
        host=host.strip("[]"),
        port=int(port),
        ssl_certfile=tls.certificate,
        ssl_keyfile=tls.key,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        ws="none",
        access_log=False,
        limit_concurrency=1000,
        log_level="warning",
    )


def _passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if PASSED_ON.fullmatch(name.lower())]


def _nothing(found: httpx.Response) -> bool:
    """Whether this says that there is no message."""
    if found.status_code != 200:
        return False
    answer = PullMessagesResponse()
    answer.ParseFromString(found.content)
    return not answer.messages_list


async def _hung_up(receive: Receive, seconds: float) -> bool:
    """Wait so long, or until the other side is gone; says whether it is."""
    try:
        event = await asyncio.wait_for(receive(), seconds)
    except TimeoutError:
        return False
    return bool(event["type"] == "http.disconnect")


async def _bounded(receive: Receive) -> AsyncIterator[bytes]:
    """A request's body as it comes, up to a length."""
    length = 0
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise httpx.ReadError("the SuperNode hung up")
        length += len(event.get("body", b""))
        if length > MAX_BODY:
            raise TooLargeError
        yield event.get("body", b"")
        if not event.get("more_body", False):
            return


async def _answer(send: Send, status: int, body: bytes, headers: Headers = ()) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})
