"""Every kind of problem on nodes in memory, each with its own data; the example app; and what the docs print."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict

import fedvra as fv
from fedvra.flower import Strategy, client_app
from fedvra.flower.protocol import Errand
from flower_grid import FakeGrid, Node

ROOT = Path(__file__).parents[2]
CLIENTS = 3


def make_data() -> fv.FederatedData:
    rng = np.random.default_rng(0)
    targets = rng.integers(3, size=60)
    inputs = (rng.normal(size=(3, 5))[targets] + rng.normal(size=(60, 5))).astype(np.float32)
    return fv.split((inputs, targets), fv.DirichletByClass(1.0, min_size=8), clients=CLIENTS, seed=0)


def shard(data: fv.FederatedData, i: int) -> fv.Dataset:
    rows = data.part(i)
    return fv.Dataset("shard", data.dataset.inputs[rows], data.dataset.targets[rows], classes=3)


def norm_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


def two_block() -> Any:
    example = runpy.run_path(str(ROOT / "examples" / "two_block.py"))
    rng = torch.Generator().manual_seed(0)
    A, b = torch.randn(CLIENTS, 40, 4, generator=rng), torch.randn(CLIENTS, 40, generator=rng)
    return example["SharedAndPrivate"](A, b)


def compare(
    problem: Any, algorithm: fv.Algorithm, data: fv.FederatedData | None, folder: Path
) -> tuple[Strategy, fv.History]:
    options = {"problem": problem, "sampler": fv.Uniform(2), "work": fv.Steps(3), "lr": 0.05, "seed": 2}
    options |= {"batch_size": None if data is None else 6, "weights": "samples"}
    nodes = {}
    for i in range(CLIENTS):
        own = None if data is None else shard(data, i)
        nodes[100 + i] = Node(i, folder / f"node{i}", client_app(problem=problem, data=own))
    grid = FakeGrid(nodes)
    strategy = Strategy(algorithm, clients=CLIENTS, folder=folder / "books", wait=0, **options)
    strategy.start(grid, num_rounds=6, timeout=1)
    assert strategy.audit(grid).relative < 1e-6
    return strategy, fv.simulate(algorithm, data=data, rounds=6, workers=1, **options)


def close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return float((left - right).norm() / right.norm()) < 1e-6


@pytest.mark.parametrize("algorithm", [fv.FedVRA(gamma=0.5, a=2), fv.Scaffold()], ids=lambda a: a.name)
def test_supervised_on_shards(algorithm: fv.Algorithm, tmp_path: Path) -> None:
    problem = fv.Supervised(lambda: torch.nn.Linear(5, 3), weight_decay=1e-2)
    strategy, expected = compare(problem, algorithm, make_data(), tmp_path)
    assert close(strategy.books.x0, expected.x0)
    assert close(strategy.books.lam, expected.lam)
    model = torch.nn.Linear(5, 3)
    model.load_state_dict(strategy.arrays().to_torch_state_dict())
    torch.testing.assert_close(model.weight, expected.model().weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_float_buffers(buffers: Any, tmp_path: Path) -> None:
    strategy, expected = compare(
        fv.Supervised(norm_model, buffers=buffers), fv.FedVRA(gamma=0.5, a=2), make_data(), tmp_path
    )
    assert close(strategy.books.x0, expected.x0)
    assert strategy.books.aux is not None
    assert expected.aux is not None
    assert close(strategy.books.aux, expected.aux)


def test_two_blocks(tmp_path: Path) -> None:
    strategy, expected = compare(two_block(), fv.FedVRAU(gamma=0.5, a=2), None, tmp_path)
    assert close(strategy.books.x0, expected.x0)


def test_a_second_block_is_not_kept_when_the_reply_was_lost(tmp_path: Path) -> None:
    problem = two_block()

    def play(folder: Path, fault: str) -> torch.Tensor:
        nodes = {100 + i: Node(i, folder / f"node{i}", client_app(problem=problem)) for i in range(CLIENTS)}
        grid = FakeGrid(nodes, lambda o: fault if o.errand == Errand.TRAIN and o.client == 1 and o.round == 1 else "")
        strategy = Strategy(
            fv.FedVRAU(gamma=0.5, a=2), problem=problem, clients=CLIENTS, sampler=fv.Full(), work=fv.Steps(3),
            folder=folder / "books", wait=0,
        )  # fmt: skip
        strategy.start(grid, num_rounds=4, timeout=0.01)
        return strategy.books.x0

    assert torch.equal(play(tmp_path / "a", "silent"), play(tmp_path / "b", "unsent"))


# -- the example and the docs ------------------------------------------------------------------------------------------------


def test_the_example_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower"))
    from hospitals import client, server  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    nodes = {}
    for i in range(CLIENTS):
        targets = rng.integers(3, size=30 + i)
        np.savez(tmp_path / f"{i}.npz", inputs=rng.normal(size=(len(targets), 12)) + targets[:, None], targets=targets)
        nodes[100 + i] = Node(i, tmp_path / f"node{i}", client.app, {"data-file": str(tmp_path / f"{i}.npz")})
    config = {"clients": CLIENTS, "rounds": 8, "timeout": 1.0, "folder": str(tmp_path / "books")}
    server.app(FakeGrid(nodes), Context(1, 1, {}, RecordDict(), config))
    assert re.search(
        r"audit: the duals add up to \d\.\de-\d\d of their sum; not heard: nobody", capsys.readouterr().out
    )
    model = fv.load_model(tmp_path / "books" / "model.safetensors", server.problem.model)
    assert model(torch.zeros(1, 12)).shape == (1, 3)
    for name in [name for name in sys.modules if name.startswith("hospitals")]:
        del sys.modules[name]


def test_the_code_in_the_docs_is_that_of_the_example() -> None:
    source = "".join(path.read_text() for path in sorted((ROOT / "examples" / "flower" / "hospitals").glob("*.py")))
    blocks = re.findall(r"^```py\n(.*?)^```$", (ROOT / "docs" / "federation.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        assert block in source


def commands_of_the_docs() -> dict[str, list[str]]:
    """The programs of docs/federation.md's ``sh`` blocks, and what they are given."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "federation.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return {words[0]: words[1:] for words in map(shlex.split, lines) if words[0].startswith(("flower-", "fedvra"))}


def test_the_commands_of_the_docs_close_the_doors() -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    found = commands_of_the_docs()
    superlink = _parse_args_run_superlink().parse_args(found["flower-superlink"])
    assert superlink.host == "127.0.0.1"
    assert superlink.enable_supernode_auth
    assert not superlink.insecure
    supernode = _parse_args_run_supernode().parse_args(found["flower-supernode"])
    assert supernode.trusted_entities is not None
    assert supernode.auth_supernode_private_key
    assert supernode.host == "127.0.0.1"
    assert supernode.superlink.endswith(":8443")  # the gate's port, not the SuperLink's


def test_a_node_that_does_not_fit_is_named(tmp_path: Path) -> None:
    misfit = fv.Dataset("misfit", torch.zeros(4, 7), torch.zeros(4, dtype=torch.long), classes=3)
    problem = fv.Supervised(lambda: torch.nn.Linear(5, 3))
    grid = FakeGrid({100: Node(0, tmp_path / "node0", client_app(problem=problem, data=misfit))})
    strategy = Strategy(
        fv.FedAvg(), problem=problem, clients=1, sampler=fv.Full(), work=fv.Steps(1), folder=tmp_path / "books", wait=0
    )
    with pytest.raises(fv.FedvraError, match="Node 100 failed: the model does not fit the data"):
        strategy.start(grid, num_rounds=1, timeout=1)


def test_a_node_must_say_which_client_it_is(tmp_path: Path) -> None:
    problem = fv.Supervised(lambda: torch.nn.Linear(5, 3))
    grid = FakeGrid({100: Node(5, tmp_path / "node5", client_app(problem=problem, data=shard(make_data(), 0)))})
    strategy = Strategy(
        fv.FedAvg(), problem=problem, clients=2, sampler=fv.Full(), work=fv.Steps(1), folder=tmp_path / "books", wait=0
    )
    with pytest.raises(fv.FedvraError, match="partition-id=I' and I one of 0 to 1; got 5"):
        strategy.start(grid, num_rounds=1, timeout=1)
