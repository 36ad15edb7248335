"""What ``fv.Ray`` asks of Ray, and what it says where it cannot have it; no cluster is started here."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.engines.ray_pool import RayPool
from fedvra.engines.worker import LocalTask
from fedvra.runs.config import build, configure, make_engine
from fedvra.state.client_state import Slots, Staged
from fedvra.state.shared_rows import AddressBook
from small_run import small

ray = pytest.importorskip("ray")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What Ray was asked for; it starts nothing, and has two CPUs and a GPU."""
    seen: dict[str, Any] = {}
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: seen.update(options))
    monkeypatch.setattr(ray, "shutdown", lambda: seen.update(ended=True))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, "GPU": 1.0})
    monkeypatch.setattr("fedvra.engines.ray_engine.knock", lambda place: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return seen


def test_what_cannot_be_is_said_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="placement must be"):
        fv.Ray(placement="anywhere")
    with pytest.raises(UsageError, match="a worker needs a share"):
        fv.Ray(cpus_per_worker=0)
    e = build(small())
    with pytest.raises(UsageError, match=r"engine must be None or fv\.Ray"):
        fv.simulate(fv.FedAvg(), problem=e.problem, data=e.data, sampler=e.sampler, work=e.work, rounds=1, engine="ray")


def test_an_address_where_nobody_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"there is no Ray cluster at {where}"):
            fv.Ray(address=where).connection()
        monkeypatch.setenv("RAY_ADDRESS", where)
        with pytest.raises(UsageError, match=f"there is no Ray cluster at {where}"):
            fv.Ray().connection()


def test_ray_is_started_as_its_users_expect(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "cluster:6379")
    engine = fv.Ray(workers=3, gpus_per_worker=0.25, runtime_env={"env_vars": {"A": "1"}}, resources={"disk": 1})
    options, workers, ours = engine.connection()
    assert (workers, ours) == (3, True)
    assert (options["num_gpus"], options["num_cpus"], options["resources"]) == (0.25, 1.0, {"disk": 1})
    assert asked["address"] == "cluster:6379"
    assert asked["runtime_env"] == {"env_vars": {"A": "1"}}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    fv.Ray(address="other:1", workers=1).connection()
    assert asked["address"] == "other:1"  # what is said goes before the environment
    config = configure({"task": "digits", "engine": "ray", "gpus_per_worker": 0.5, "address": "auto"})
    assert make_engine(config) == fv.Ray("auto", gpus_per_worker=0.5)


def test_a_port_where_something_else_listens_is_refused_at_once() -> None:
    """Such as that of Ray's dashboard, which is taken for it easily."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(60)

        def answer() -> None:
            caller, _ = other.accept()
            with caller:
                caller.recv(100)
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(UsageError, match="what listens there is not Ray"):
            fv.Ray(address=f"127.0.0.1:{other.getsockname()[1]}").connection()
        thread.join()


def test_a_ray_of_our_own_has_what_the_workers_ask_for_or_says_so(asked: dict[str, Any]) -> None:
    assert fv.Ray(workers=3, cpus_per_worker=0.5).connection().workers == 3
    assert asked["num_cpus"] == 2
    assert fv.Ray(gpus_per_worker=0.1, cpus_per_worker=0.1).connection().workers == 10
    assert asked["num_cpus"] is None
    assert "ended" not in asked
    with pytest.raises(UsageError, match="one worker asks for 2 GPU, and there is 1"):
        fv.Ray(workers=1, gpus_per_worker=2).connection()
    with pytest.raises(UsageError, match="one worker asks for 1 disk, and there is 0"):
        fv.Ray(resources={"disk": 1}).connection()
    assert asked["ended"], "a Ray that was started for nothing is stopped"
    assert fv.Ray(address="cluster:6379", workers=1, gpus_per_worker=2).connection().workers == 1, "a cluster may grow"


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("address", "message"),
    [(None, "Ray cannot be started on this machine"), ("first:6379", "takes us in .*RAY_AUTH_MODE=token")],
)
def test_what_ray_refuses_is_said_in_a_sentence(
    address: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: Any) -> None:
        raise RuntimeError("Version mismatch")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(UsageError, match=message) as refused:
        fv.Ray(address=address).connection()
    assert "Version mismatch" in str(refused.value)


def test_rows_of_a_round_that_came_to_nothing_are_forgotten_where_they_are() -> None:
    """The worker may have written them, though its answer was never read because another one had died."""
    told: list[list[int]] = []
    worker = SimpleNamespace(do=SimpleNamespace(remote=lambda task, sent, forget, *lent: told.append(list(forget))))
    pool = RayPool(lambda: pytest.fail("nobody is asked"), None)
    pool._crew = SimpleNamespace(actors={0: worker})  # type: ignore[assignment]
    orders: Any = None  # which nobody looks at
    none, new = np.array([-1, -1]), np.array([pool.new_slot(), pool.new_slot()])
    weights = np.ones(2)
    task = LocalTask(0, orders, Staged(Slots(none, new, AddressBook.of([]))), weights, weights, weights, True)
    pool._submit(0, task, None)
    pool.release(new.tolist())
    pool._submit(0, task, None)
    assert told == [[], [0, 1]]
