"""The worker takes a SuperNode's messages one after the other; real processes are in the test of the demo."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse
from flwr.proto.task_pb2 import Task
from flwr.supercore.runtime import RuntimeHttpClient

from fedvra.cli import main
from fedvra.flower import worker
from fedvra.flower.private import MIN_KEY_BYTES


class SuperNode:
    """Gives these answers, or raises them."""

    def __init__(self, *answers: AcquireTaskResponse | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    def AcquireTask(self, request: AcquireTaskRequest) -> AcquireTaskResponse:  # noqa: N802 - as Flower calls it
        self.asked.append(list(request.supported_task_types))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None: ...


def message(number: int) -> AcquireTaskResponse:
    return AcquireTaskResponse(task=Task(task_id=number), token=f"token {number}")


def tokens(supernode: SuperNode, count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, Any]]:
    given: dict[str, Any] = {}

    def connect(**settings: Any) -> SuperNode:
        given.update(settings)
        return supernode

    monkeypatch.setattr(RuntimeHttpClient, "from_server_address", connect)
    monkeypatch.setattr(worker, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    return list(islice(worker._tokens("127.0.0.1:9094", b"secret", None), count)), given


def test_messages_are_taken_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    supernode = SuperNode(AcquireTaskResponse(), message(1), message(2), AcquireTaskResponse(), message(3))
    found, given = tokens(supernode, 3, monkeypatch)
    assert found == ["token 1", "token 2", "token 3"]
    assert supernode.asked == [["flwr-clientapp"]] * 5  # and no other work that a SuperNode may have
    assert len(given["interceptors"]) == 2  # its version, and the secret


def test_a_supernode_that_is_restarted_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = httpx.ConnectError("refused")
    supernode = SuperNode(message(1), gone, gone, gone, message(2))
    assert tokens(supernode, 2, monkeypatch)[0] == ["token 1", "token 2"]
    assert caplog.text.count("does not answer") == 1


def test_a_wrong_secret_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("POST", "http://127.0.0.1:9094")
    denied = httpx.HTTPStatusError("401", request=request, response=httpx.Response(401, request=request))
    with pytest.raises(httpx.HTTPStatusError):
        tokens(SuperNode(denied), 1, monkeypatch)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--supernode", "9094"], "HOST:PORT"),
        (["--secret-file", "nowhere"], "cannot be read"),
        (["--root-certificates", "nowhere"], "there is no file nowhere"),
    ],
)
def test_what_a_user_gets_wrong(words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, ["federation", "worker", *words])
    assert found.exit_code != 0
    assert says in found.output + str(found.exception)


def test_the_secret_is_as_long_as_the_keys_of_the_books() -> None:
    assert MIN_KEY_BYTES == 32  # what docs/hospitals.md has openssl make
