"""Objects are what they seem: equal by value, the same after pickle and deepcopy, and good for the same run."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedvra as fv
from every_object import (
    ALGORITHMS,
    EVERYTHING,
    MADE_PARTITIONS,
    MADE_SAMPLERS,
    PROBLEMS,
    WORK,
    N,
    OwnStatistics,
    Smoothed,
    TheirSampler,
    costs,
    data,
    fixed_net,
    small_net,
)
from fedvra.core.errors import UsageError
from fedvra.core.objects import equal
from fedvra.data.partitions import PARTITIONS
from fedvra.engines.experiment import Experiment
from fedvra.policies import Policy
from fedvra.samplers import SAMPLERS

COPIES = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy, "copy": copy.copy}


def test_nothing_public_is_left_out() -> None:
    """A sampler or partition that is new needs a line above; an algorithm is covered by itself."""
    assert {*SAMPLERS.names()} <= {*MADE_SAMPLERS}
    assert {*PARTITIONS.names()} <= {*MADE_PARTITIONS}
    covered = {type(make()) for make, _ in EVERYTHING.values()} | {fv.History, fv.DivergedError, fv.UsageError}
    covered |= {
        fv.StopRun,
        fv.Federation,
        fv.LocalSolver,
        fv.LocalWork,
    }  # a run in progress and what works in it: no values
    for name in fv.__all__:
        thing = getattr(fv, name)
        assert not isinstance(thing, type) or any(issubclass(kind, thing) for kind in covered), name


@pytest.mark.parametrize("name", EVERYTHING)
def test_equality_is_by_value(name: str) -> None:
    make, other = EVERYTHING[name]
    first, second = make(), make()
    assert first == second
    assert hash(first) == hash(second)
    assert {first: 1}[second] == 1
    assert first != object()
    if other is not None:
        assert first != other()


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_copy_is_equal(name: str, how: str) -> None:
    make, other = EVERYTHING[name]
    made = make()
    twin = COPIES[how](made)
    assert twin == made == make()
    assert twin is not made
    assert hash(twin) == hash(made)
    if other is not None:
        assert twin != other()


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name.startswith(("sampler", "work", "partition"))])
def test_tables_stay_read_only(name: str) -> None:
    made = EVERYTHING[name][0]()
    if isinstance(made, TheirSampler):
        return  # whose table is the caller's
    for how in ("pickle", "deepcopy"):
        for held in vars(COPIES[how](made)).values():
            for table in held if isinstance(held, tuple) else (held,):
                assert not (isinstance(table, np.ndarray) and table.flags.writeable)


# -- copies are good for the same run ---------------------------------------------------------------------------------------


def run(rounds: int = 3, **options: Any) -> fv.History:
    given = {"algorithm": fv.FedVRA(gamma=0.5, a=2), "problem": costs(), "sampler": fv.Full(), "work": fv.Steps(3)}
    return fv.simulate(rounds=rounds, lr=0.05, workers=1, **{**given, **options})


def outcome(history: fv.History) -> list[Any]:
    records = [{k: v for k, v in record.items() if not k.startswith("seconds")} for record in history.metrics]
    return [history.x0, history.lam, history.aux, dict(history.duals), dict(history.y), records]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_copied_algorithm_gives_the_same_run(name: str, how: str) -> None:
    algorithm = ALGORITHMS[name][0]()
    assert equal(outcome(run(algorithm=algorithm)), outcome(run(algorithm=COPIES[how](algorithm))))


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", MADE_SAMPLERS)
def test_a_copied_sampler_gives_the_same_run(name: str, how: str) -> None:
    sampler = MADE_SAMPLERS[name][0]()
    assert equal(outcome(run(sampler=sampler)), outcome(run(sampler=COPIES[how](sampler))))


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", WORK)
def test_copied_work_gives_the_same_run(name: str, how: str) -> None:
    work = WORK[name][0]()
    assert equal(outcome(run(work=work)), outcome(run(work=COPIES[how](work))))


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", MADE_PARTITIONS)
def test_a_copied_partition_deals_alike(name: str, how: str) -> None:
    partition, dataset = MADE_PARTITIONS[name][0](), data().dataset
    clients = None if name == "by column" else N
    assert fv.split(dataset, partition, clients) == fv.split(dataset, COPIES[how](partition), clients)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_copied_problem_gives_the_same_run(name: str, how: str) -> None:
    problem = PROBLEMS[name][0]()
    held = {} if isinstance(problem, fv.Quadratic | fv.TwoBlock) else {"data": data(), "batch_size": 4}
    first = run(problem=problem, seed=3, **held)
    twin = COPIES[how](problem)  # after a run, with all that it found out
    assert equal(outcome(first), outcome(run(problem=twin, seed=3, **COPIES[how](held))))
    assert equal(outcome(first), outcome(run(problem=problem, seed=3, **held)))


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_copied_history_says_the_same(name: str, how: str) -> None:
    problem = PROBLEMS[name][0]()
    held = {} if isinstance(problem, fv.Quadratic | fv.TwoBlock) else {"data": data(), "batch_size": 4}
    history = run(problem=problem, seed=3, keep="x0", **held)
    twin = COPIES[how](history)
    assert twin == history
    assert twin.duals == history.duals
    assert twin != replace(history, x0=history.x0 + 1)
    assert repr(twin) == repr(history)
    assert twin.state_drift() == history.state_drift()
    if isinstance(problem, fv.Supervised | fv.SemiSupervised):
        assert equal(twin.model(), history.model())
    with pytest.raises(TypeError, match="unhashable"):
        hash(history)


def test_a_copied_history_has_the_statistics_that_were_found_by_looking() -> None:
    held = {"data": data(), "batch_size": 4}
    history = run(problem=fv.Supervised(OwnStatistics(), buffers="average"), **held)
    for how in ("pickle", "deepcopy"):
        assert equal(COPIES[how](history).model(), history.model())
        assert history.model().centre.any()


def test_a_copied_history_has_the_module_that_the_seed_made() -> None:
    history = run(problem=fv.Supervised(partly_frozen), data=data(), seed=5)
    assert equal(pickle.loads(pickle.dumps(history)).model(), history.model())


def partly_frozen() -> nn.Module:
    net = small_net()
    net[0].requires_grad_(False)
    return net


# -- what equal knows -------------------------------------------------------------------------------------------------------


def test_modules_are_equal_by_class_settings_and_state() -> None:
    assert equal(fixed_net(), fixed_net())
    assert not equal(fixed_net(), small_net())
    other = fixed_net()
    other[0].weight.requires_grad_(False)
    assert not equal(fixed_net(), other)
    assert not equal(nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh()))
    assert not equal(nn.Dropout(0.1), nn.Dropout(0.2))
    assert equal(nn.LazyLinear(3), nn.LazyLinear(3))


def test_tables_are_equal_by_their_numbers() -> None:
    nan = float("nan")
    assert fv.FedVRA(a=[1, 2]) == fv.FedVRA(a=(1.0, 2.0)) == fv.FedVRA(a=np.array([1.0, 2.0]))
    assert len({fv.FedVRA(a=[1, 2]), fv.FedVRA(a=(1.0, 2.0)), fv.FedVRA(a=np.array([1.0, 2.0]))}) == 1
    assert equal({"a": [nan, np.array([nan, 1.0])]}, {"a": [nan * 1, np.array([nan, 1.0])]})
    assert equal(torch.tensor([nan, 1.0]), torch.tensor([nan, 1.0]))
    assert not equal(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert not equal(torch.ones(2), [1.0, 1.0])
    assert not equal(np.ones(2), "ones")
    assert not equal(np.ones(2), [[1.0], [1.0, 2.0]])


def test_objects_may_refer_to_themselves() -> None:
    def knot(value: int) -> Smoothed:
        made = Smoothed(value)
        made.itself = made  # type: ignore[attr-defined]
        return made

    assert equal(knot(1), knot(1))
    assert not equal(knot(1), knot(2))


# -- what cannot be pickled is refused in a sentence, and copied all the same ----------------------------------------------


def local_function() -> Callable[[fv.Cohort], float]:
    def two(cohort: fv.Cohort) -> float:
        return 2.0

    return two


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (fv.FedVRA(a=lambda cohort: 2.0), r"FedVRA cannot be pickled: its a is <lambda>, which another process"),
        (fv.FedVRA(a=local_function()), r"its a is local_function.<locals>.two"),
        (fv.over_rounds(lambda r: 1.0), r"OverRounds cannot be pickled: its function is <lambda>"),
        (fv.FedVRA(a=fv.over_rounds(lambda r: 1.0)), r"OverRounds cannot be pickled"),
        (fv.Availability(fv.Full(), function=lambda r, c: c > 0), r"Availability cannot be pickled"),
        (fv.Supervised(lambda: nn.Linear(4, 3)), r"its model is <lambda>"),
        (fv.Supervised(small_net, loss=partial(lambda o, t: o.sum())), r"its loss is <lambda>"),
        (Experiment(fv.FedAvg(), costs(), fv.Full(), fv.Steps(1), lr=lambda c: 0.1), r"its lr is <lambda>"),
    ],
)
def test_a_function_without_a_name_is_refused_in_a_sentence(made: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        pickle.dumps(made)
    assert copy.deepcopy(made) == made
    assert copy.copy(made) == made


def test_a_module_or_class_that_pickle_cannot_find_is_refused_in_a_sentence() -> None:
    class Local(nn.Module):
        pass

    hooked = small_net()
    hooked[1].register_forward_hook(lambda module, inputs, outputs: None)

    class LocalPolicy(Policy):
        name = "local"

        def __call__(self, cohort: fv.Cohort) -> float:
            return 1.0

    for made, sentence in (
        (fv.Supervised(Local()), "its model is .*Local"),
        (fv.Supervised(hooked), "its model is .*<lambda>"),
        (LocalPolicy(), "it is .*LocalPolicy"),
    ):
        with pytest.raises(UsageError, match=sentence):
            pickle.dumps(made)


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(fv.DivergedError("too far", 3)))
    assert (str(error), error.round) == ("too far", 3)
