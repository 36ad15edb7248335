"""A run on a Ray cluster of two nodes comes to what the local engine comes to, to the bit, whoever dies on the way."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedvra as fv
from crashes import outcome
from fedvra.callbacks.base import Callback, Run
from fedvra.callbacks.display import PlainView
from fedvra.core.errors import UsageError
from fedvra.engines.experiment import Experiment
from fedvra.engines.ray_pool import RayPool
from fedvra.runs.config import build
from fedvra.show.terminal import make_console
from fedvra.studies.comparing import compare, resume_comparison
from fedvra.studies.execution import execute, resume
from fedvra.studies.on_cluster import Cluster
from fedvra.studies.parallel import Job, carry_out
from fedvra.studies.stopping import stop_on_signal
from fedvra.studies.tuning import tune
from small_run import small
from tiny_recipe import fedvra as reproduce_command
from tiny_recipe import write_recipe

ray = pytest.importorskip("ray")
LONGEST = 900
"""Seconds."""
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)


ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default, and on a busy machine they would not start in time
    "RAY_memory_monitor_refresh_ms": "0",  # it kills workers where memory is short, whoever has it
}


@contextmanager
def limited() -> Iterator[None]:
    """What does not answer would hold up all tests; on the busiest machine each of these takes a tenth of that."""

    def give_up(number: int, frame: Any) -> None:
        raise TimeoutError(f"no end after {LONGEST} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with room for two workers each, and what every test starts from."""
    from ray.cluster_utils import Cluster

    paths = [str(Path(fv.__file__).parents[1]), str(Path(__file__).parents[1])]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}.items():
            patch.setenv(name, value)
        made = Cluster()
        try:
            with warnings.catch_warnings(), limited():
                warnings.simplefilter("ignore")
                made.add_node(num_cpus=2, include_dashboard=False)
                made.add_node(num_cpus=2)
                ray.init(address=made.address, log_to_driver=False, logging_level=logging.ERROR)
            yield made
        finally:
            with limited():
                ray.shutdown()
                made.shutdown()


@pytest.fixture(autouse=True)
def _nobody_waits_for_ever() -> Iterator[None]:
    with limited():
        yield


def dataset(inputs: torch.Tensor, targets: torch.Tensor) -> fv.Dataset:
    return fv.Dataset("own", inputs, targets, inputs[:30], targets[:30], classes=3)


def simulate(e: Experiment, rounds: int = 4, **how: Any) -> fv.History:
    return fv.simulate(
        e.algorithm, problem=e.problem, sampler=e.sampler, work=e.work, data=e.data, lr=e.lr, batch_size=e.batch_size,
        drop=e.drop, refuse=e.refuse, rounds=rounds, **how,
    )  # fmt: skip


def assert_same(found: fv.History, expected: fv.History) -> None:
    assert torch.equal(found.x0, expected.x0)
    assert torch.equal(found.lam, expected.lam)
    assert dict(found.duals).keys() == dict(expected.duals).keys()
    for client, row in expected.duals.items():
        assert torch.equal(found.duals[client], row)
    for client, row in expected.y.items():
        assert torch.equal(found.y[client], row)
    for a, b in zip(found.metrics, expected.metrics, strict=True):
        assert {k: v for k, v in a.items() if "seconds" not in k} == {k: v for k, v in b.items() if "seconds" not in k}


class After(Callback):
    """Do something after a round."""

    def __init__(self, when: int, what: Callable[[RayPool], None]) -> None:
        self.when, self.what = when, what

    def on_round(self, run: Run, record: dict[str, Any]) -> None:
        if record["round"] == self.when:
            self.what(run.federation.engine)


def everybody(workers: int) -> Callable[[RayPool], None]:
    """A run begins with the first worker that is ready, and a short one might be over before the others are."""

    def wait(engine: RayPool) -> None:
        while len(engine.pids()) < workers:
            time.sleep(0.05)

    return wait


CASES = {
    "duals": (small(model="mlp", steps=3), 3),
    "duals, one worker": (small(model="mlp", steps=3), 1),
    "no state": (small(algorithm="fedavg"), 2),
    "own anchors": (small(algorithm="fedpd", sampler="full", drop=0, set={"skip": 0.5}), 2),
    "refusals": (small(refuse="median-norm:3"), 2),
    "losses of all": (small(sampler="power-of-choice:10"), 2),
    "second block": (small(task="blobs-clustering", clients=10, cohort=4), 2),
}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_comes_to_the_same_bits(case: str) -> None:
    config, workers = CASES[case]
    e = build(config)
    found = simulate(e, engine=fv.Ray(workers=workers), callbacks=[After(1, everybody(workers))])
    assert_same(found, simulate(e, workers=1))


@pytest.mark.usefixtures("cluster")
def test_lambdas_local_statistics_and_bfloat16_rows_travel() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(240, 6), torch.arange(240) % 3
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    problem = fv.Supervised(
        lambda: model, loss=lambda out, target: torch.nn.functional.cross_entropy(out, target), buffers="local"
    )
    there = {"engine": fv.Ray(workers=2), "memory_limit": 0, "callbacks": [After(1, everybody(2))]}
    found = [
        fv.simulate(
            fv.Scaffold(), problem=problem, data=fv.split(dataset(x, y), fv.IID(), clients=12, seed=0), rounds=4,
            sampler=fv.Uniform(5), work=fv.Steps(2), batch_size=5, state_dtype=torch.bfloat16, **how,
        )
        for how in ({"workers": 1}, there)
    ]  # fmt: skip
    assert_same(found[1], found[0])


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("every", [2, 100])
def test_a_worker_that_is_killed_costs_the_rounds_since_the_last_snapshot(
    every: int, caplog: pytest.LogCaptureFixture
) -> None:
    def kill_one(engine: RayPool) -> None:
        os.kill(engine.pids()[0], signal.SIGKILL)

    e = build(small())
    found = simulate(e, 8, engine=fv.Ray(workers=2, snapshot_every=every), callbacks=[After(5, kill_one)])
    assert_same(found, simulate(e, 8, workers=1))
    first = 5 if every == 2 else 1
    assert f"rounds {first} to 5 are run again" in caplog.text


def test_a_node_that_dies_in_the_middle_of_a_run_changes_nothing(cluster: Any, tmp_path: Path, whole: Path) -> None:
    node = cluster.add_node(num_cpus=2)

    def kill_node(engine: RayPool) -> None:
        everybody(6)(engine)
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    execute(small(engine="ray", workers=6), tmp_path / "run", [After(5, kill_node)])
    cluster.remove_node(node, allow_graceful=False)
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.usefixtures("cluster", "no_picture")
@pytest.mark.parametrize(("first", "then"), [("ray", "local"), ("local", "ray")])
def test_a_run_goes_on_with_the_other_engine(first: str, then: str, tmp_path: Path, whole: Path) -> None:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(small(engine=first, workers=2), tmp_path / "run", [stop])
    resume(tmp_path / "run", engine=then)
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.usefixtures("cluster")
def test_data_can_be_read_where_it_is_used(tmp_path: Path) -> None:
    e = build(small())
    seen = tmp_path / "seen"

    def load() -> Any:
        with seen.open("a") as file:
            file.write("x")
        return build(small()).data

    found = simulate(e, 2, engine=fv.Ray(workers=2, load=load), callbacks=[After(1, everybody(2))])
    assert_same(found, simulate(e, 2, workers=1))
    assert seen.read_text() == "xx"


@pytest.mark.usefixtures("cluster")
def test_an_error_of_a_worker_is_raised_here_and_workers_have_names(tmp_path: Path) -> None:
    here, names = os.getpid(), list[str]()
    seven, later = tmp_path / "seven", tmp_path / "later"

    def loss(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if os.getpid() != here and (seven.exists() or later.exists()):
            raise ArithmeticError("seven is bad luck")
        return torch.nn.functional.cross_entropy(out, target)

    def look(record: dict[str, Any]) -> None:
        names.extend(ray.util.list_named_actors())
        later.touch()

    x, y = torch.randn(40, 6), torch.arange(40) % 3
    data = fv.split(dataset(x, y), fv.IID(), clients=4, seed=0)
    problem = fv.Supervised(lambda: torch.nn.Linear(6, 3), loss=loss)
    how = {"problem": problem, "data": data, "rounds": 2, "sampler": fv.Full(), "work": fv.Steps(1), "batch_size": 7}
    with pytest.raises(ArithmeticError, match="bad luck"):  # in the middle of a round
        fv.simulate(fv.FedAvg(), progress=look, engine=fv.Ray(workers=2), solver=fv.SolverSettings(path="eager"), **how)
    assert names
    assert all(name.startswith("fedvra-") for name in names)
    seven.touch()
    with pytest.raises(Exception, match="bad luck"):  # when a worker is made
        fv.simulate(fv.FedAvg(), engine=fv.Ray(workers=1), **how)


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_ray_kills_to_free_memory_is_one_that_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has another error for that."""
    died, get = list[Exception](), ray.get

    def told_otherwise(*what: Any, **how: Any) -> Any:
        try:
            return get(*what, **how)
        except ray.exceptions.RayActorError as error:
            died.append(error)
            raise ray.exceptions.OutOfMemoryError("1 worker was killed") from error

    def kill_one(engine: RayPool) -> None:
        os.kill(engine.pids()[0], signal.SIGKILL)

    monkeypatch.setattr(ray, "get", told_otherwise)
    e = build(small())
    assert_same(simulate(e, 4, engine=fv.Ray(workers=2), callbacks=[After(2, kill_one)]), simulate(e, 4, workers=1))
    assert died


@pytest.mark.usefixtures("cluster")
def test_results_that_are_lost_again_and_again_end_the_run_though_nobody_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(ref: Any) -> Any:
        raise ray.exceptions.ObjectLostError(ref.hex(), None, "here")

    monkeypatch.setattr("fedvra.engines.ray_pool.ray", SimpleNamespace(put=ray.put, wait=ray.wait, get=lost))
    with pytest.raises(fv.FedvraError, match="died 11 times in a row"):
        simulate(build(small()), 1, engine=fv.Ray(workers=1))


@pytest.mark.usefixtures("cluster")
def test_what_keeps_workers_from_being_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "fedvra").mkdir()
    (tmp_path / "fedvra" / "__init__.py").write_text("raise ImportError('this is an old fedvra')")
    elsewhere = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    with pytest.raises(fv.FedvraError, match=r"cannot make a worker \(.*this is an old fedvra\): .*same versions"):
        simulate(build(small()), 1, engine=fv.Ray(workers=1, runtime_env=elsewhere))


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_dies_while_somebody_looks_on_changes_no_figure() -> None:
    """Diagnostics read the clients' rows between rounds."""

    def kill_one(engine: RayPool) -> None:
        os.kill(engine.pids()[0], signal.SIGKILL)

    e = build(small())
    found = simulate(e, 6, engine=fv.Ray(workers=2), callbacks=[After(3, kill_one), fv.Diagnostics(every=1)])
    assert_same(found, simulate(e, 6, workers=1, diagnostics=1))


@pytest.mark.usefixtures("cluster", "no_picture")
def test_runs_of_a_comparison_are_made_side_by_side_and_resumed(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    options = {"task": "digits", "clients": 10, "cohort": 3, "rounds": 3, "steps": 2}
    here = compare("fedvra,fedavg", options, out=tmp_path / "here", seeds=[0, 1])
    there = compare(
        "fedvra,fedavg",
        options,
        {"engine": "ray"},
        out=tmp_path / "there",
        seeds=[0, 1],
        view=PlainView(make_console(), 0),
    )
    assert "[4/4]" in capfd.readouterr().out
    assert [run.metrics[-1]["test_loss"] for run in there.runs] == [run.metrics[-1]["test_loss"] for run in here.runs]
    shutil.rmtree(tmp_path / "there" / "fedavg")
    (tmp_path / "there" / "fedvra" / "seed-1" / "summary.json").unlink()
    again = resume_comparison(tmp_path / "there")
    assert [run.metrics[-1]["test_loss"] for run in again.runs] == [run.metrics[-1]["test_loss"] for run in here.runs]


@pytest.mark.usefixtures("cluster", "no_picture")
def test_a_search_on_a_cluster_finds_what_it_finds_here(tmp_path: Path) -> None:
    options = {"task": "digits", "algorithm": "feddyn", "clients": 10, "cohort": 3, "rounds": 3, "steps": 2}
    here, there = (
        tune({"alpha": [0.01, 0.1, 1]}, options, {"engine": engine}, out=tmp_path / engine)
        for engine in ("local", "ray")
    )
    assert there.best.given == here.best.given
    assert [len(trial.runs[0].metrics) for trial in there.trials] == [
        len(trial.runs[0].metrics) for trial in here.trials
    ]


@pytest.mark.usefixtures("cluster")
def test_a_recipe_is_reproduced_on_a_cluster(tmp_path: Path) -> None:
    result = reproduce_command(write_recipe(tmp_path), "--quick", "--engine", "ray", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    again = reproduce_command(write_recipe(tmp_path), "--quick", "--engine", "ray", "--out", tmp_path / "out")
    assert "runs are there." in again.output


@pytest.mark.usefixtures("cluster")
def test_jobs_on_a_cluster_fail_in_a_sentence_and_stop_when_they_are_asked_to(tmp_path: Path) -> None:
    def fail(workers: int | str) -> None:
        raise UsageError(f"no run with {workers} workers.")

    def wait(workers: int | str) -> None:
        with stop_on_signal() as stop:
            (tmp_path / "begun").touch()
            while not stop.asked:
                time.sleep(0.01)
            (tmp_path / "stopped").touch()

    with Cluster(fv.Ray(), tmp_path, runs=1) as cluster:
        assert cluster.at_once == 2  # of four CPUs a run gets those of one node
        with pytest.raises(UsageError, match="no run with 2 workers"):
            carry_out([Job("bad", fail)], cluster)
        run = cluster.start(Job("long", wait))
        while not (tmp_path / "begun").exists():
            assert not run.over(), run.failure()
            time.sleep(0.05)
        run.ask_to_stop()
        while not run.over():
            time.sleep(0.05)
        assert (tmp_path / "stopped").exists()
    with (
        pytest.raises(UsageError, match="no machine of the cluster has more than 2 CPUs"),
        Cluster(fv.Ray(), tmp_path, 1, 3),
    ):
        pass
    with (
        pytest.raises(UsageError, match="a run is to have 2 GPUs, and no machine"),
        Cluster(fv.Ray(gpus_per_worker=2), tmp_path, 1),
    ):
        pass
    with Cluster(fv.Ray(), tmp_path / "nowhere", runs=4) as cluster, pytest.raises(UsageError, match="is not there on"):
        carry_out([Job("bad", fail)], cluster)
