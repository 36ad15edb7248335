"""Options of a run: where their values come from, how they are read, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedvra as fv
from fedvra.algorithms import REGISTRY
from fedvra.core.errors import UsageError
from fedvra.policies import auto, inverse_p
from fedvra.runs.algorithm_text import make_algorithm, settings_of, written
from fedvra.runs.config import build, configure, from_now_on, read_config
from fedvra.runs.options import OPTIONS, RunConfig
from fedvra.tasks import TASKS


def digits(**options: Any) -> RunConfig:
    return configure({"task": "digits"}, options)


# -- where values come from ---------------------------------------------------------------------------------------------


def test_defaults_are_the_papers_mnist_experiment() -> None:
    plain = configure({"task": "mnist"}).to_dict()
    paper = {
        "algorithm": "fedvra",
        "set": {"gamma": "auto", "a": "auto", "d": "auto"},
        "rounds": 100,
        "clients": 100,
        "cohort": 10,
        "sampler": "uniform",
        "split": "dirichlet:0.2",
        "epochs": 2,
        "batch_size": 50,
        "lr": 0.01,
        "weight_decay": 1e-3,
        "weights": "equal",
        "model": "mlp",
        "seed": 0,
    }
    assert {name: plain[name] for name in paper} == paper


def test_a_task_has_its_own_defaults() -> None:
    assert configure({"task": "mnist-ssl"}).set["d"] == 15
    assert configure({"task": "cifar10"}).model == "cnn"
    assert configure({"task": "cifar10", "algorithm": "feddyn"}).set == {"alpha": 0.1}
    assert (digits().clients, digits().cohort) == (50, 10)


def test_later_layers_win() -> None:
    config = configure({"task": "digits", "rounds": 7, "lr": 0.2}, {"rounds": 9})
    assert (config.rounds, config.lr, config.clients) == (9, 0.2, 50)


def test_the_last_task_named_decides_the_defaults() -> None:
    assert configure({"task": "mnist"}, {"task": "digits"}).clients == 50


def test_epochs_and_steps_replace_each_other() -> None:
    steps = configure({"task": "digits", "epochs": 3}, {"steps": 24})
    assert (steps.epochs, steps.steps) == (None, 24)
    epochs = configure({"task": "digits", "steps": 24}, {"epochs": "1-5"})
    assert (epochs.epochs, epochs.steps) == ("1-5", None)
    with pytest.raises(UsageError, match="epochs or in steps: give one of the two"):
        digits(epochs=1, steps=5)


def test_hyper_parameters_add_up_over_layers() -> None:
    config = configure({"task": "digits", "set": {"gamma": 0.2, "a": 3}}, {"set": ["a=4"]})
    assert config.set == {"gamma": 0.2, "a": 4, "d": auto}


def test_hyper_parameters_belong_to_their_algorithm() -> None:
    stored = {"task": "digits", "algorithm": "fedprox", "set": {"mu": 0.3}}
    assert configure(stored, {"algorithm": "fedavg"}).set == {"averaging": "cohort"}
    assert configure(stored, {"algorithm": "fedprox", "set": {"averaging": "unbiased"}}).set == {
        "mu": 0.3,
        "averaging": "unbiased",
    }


# -- in and out ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", REGISTRY.names())
@pytest.mark.parametrize("task", TASKS.names())
def test_yaml_holds_everything(task: str, algorithm: str, tmp_path: Path) -> None:
    config = configure({"task": task, "algorithm": algorithm})
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert configure(read_config(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 12},
        {"epochs": "1-5"},
        {"batch_size": "full"},
        {"weights": "0.5,0.25,0.25", "clients": 3, "cohort": 2},
        {"set": {"gamma": 1e-05, "a": [1, 2, 3], "d": "1/p"}},
        {"set": {"gamma": 0.1, "a": "10:5@100:2.5@300", "d": "auto"}},
        {"set": {"gamma": 0.1, "a": "remark1", "d": "1/p"}},
        {"targets": "50,97.5", "data": "somewhere", "workers": 2, "drop": 0.1},
        {"lr": 1e-9},
        {"state_memory": "1.5GiB", "state_dtype": "bfloat16", "state_folder": "somewhere"},
    ],
)
def test_yaml_round_trip_of_other_values(options: dict[str, Any]) -> None:
    config = digits(**options)
    assert configure(yaml.safe_load(config.to_yaml())) == config
    assert config != digits()


def test_yaml_is_plain() -> None:
    plain = yaml.safe_load(digits(batch_size="full").to_yaml())
    assert plain["batch_size"] == "full"
    assert plain["set"] == {"gamma": "auto", "a": "auto", "d": "auto"}
    assert "steps" not in plain


def test_numbers_may_come_as_text() -> None:
    config = digits(lr="1e-3", rounds="12", epochs="2", batch_size="32", targets="95,90", workers="2", seed="3")
    assert (config.lr, config.rounds, config.epochs, config.batch_size) == (1e-3, 12, 2, 32)
    assert (config.targets, config.workers, config.seed) == ((90, 95), 2, 3)


def test_a_config_is_checked_however_it_is_made() -> None:
    with pytest.raises(UsageError, match="rounds must be at least 0"):
        dataclasses.replace(digits(), rounds=-1)


# -- what is refused ----------------------------------------------------------------------------------------------------

BAD = [
    ({"round": 3}, "there is no option 'round': did you mean 'rounds'"),
    ({"task": "digit"}, "there is no task 'digit': did you mean 'digits'"),
    ({"algorithm": "fedvrra"}, "there is no algorithm 'fedvrra': did you mean 'fedvra'"),
    ({"set": {"gama": 1}}, "there is no hyper-parameter of fedvra called 'gama': did you mean 'gamma'"),
    ({"algorithm": "fednova", "set": ["x=1"]}, "fednova has no hyper-parameters"),
    ({"set": ["gamma"]}, "set takes NAME=VALUE, got 'gamma'"),
    ({"set": ["=3"]}, "set takes NAME=VALUE, got '=3'"),
    ({"set": 5}, "set must map hyper-parameters to values"),
    ({"set": {"gamma": "abc"}}, "gamma of fedvra: 'abc' is neither a number nor a policy"),
    ({"set": {"gamma": "nan"}}, "gamma of fedvra must be a number"),
    ({"set": {"gamma": "1e"}}, "neither a number nor a policy"),
    ({"set": {"gamma": [1, "x"]}}, "gamma of fedvra: a table must hold numbers"),
    ({"set": {"gamma": -1}}, "gamma must be >= 0"),
    ({"algorithm": "feddyn", "set": {"alpha": "1/p"}}, "alpha of feddyn must be a number"),
    ({"algorithm": "fedavg", "set": {"averaging": "mean"}}, "averaging must be 'cohort' or 'unbiased'"),
    ({"rounds": "many"}, "rounds must be a whole number of at least 0, got 'many'"),
    ({"rounds": 2.5}, "rounds must be a whole number"),
    ({"rounds": True}, "rounds must be a whole number"),
    ({"rounds": None}, "rounds must be a whole number"),
    ({"clients": 0}, "clients must be at least 1"),
    ({"cohort": -3}, "cohort must be at least 1"),
    ({"steps": -1}, "steps must be at least 1, got -1"),
    ({"epochs": "-1"}, "epochs must be a whole number"),
    ({"epochs": "5-1"}, "low must be at most high"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0; or say 'full'"),
    ({"drop_last": "yes"}, "there is no value of drop_last 'yes'"),
    ({"lr": 0}, "lr must be greater than 0"),
    ({"lr": "inf"}, "lr must be a number"),
    (
        {"normalize": "imagenet"},
        "normalize must be 'dataset', 'sample' .* or MEAN/STD such as 0.5/0.25, got 'imagenet'",
    ),
    ({"normalize": "0.5"}, "normalize must be"),
    ({"normalize": "0.5/,"}, "normalize must be"),
    ({"lr": [1]}, "lr must be a number"),
    ({"weight_decay": -0.1}, "weight_decay must be at least 0"),
    ({"weights": "evenly"}, "there is no value of weights 'evenly'"),
    ({"drop": 1}, r"drop must be a probability in \[0, 1\)"),
    ({"targets": "0,50"}, "targets must be an accuracy in per cent"),
    ({"targets": 5}, "targets must be a list such as 90,95"),
    ({"address": "auto"}, "say engine ray"),
    ({"gpus_per_worker": 0.5}, "say engine ray"),
    ({"engine": "locl"}, "there is no value of engine 'locl': did you mean 'local'"),
    ({"precision": "float8"}, "there is no value of precision 'float8'"),
    (
        {"state_memory": "lots"},
        "state_memory must be an amount of memory such as 4GB or 500MB, got 'lots'; or say 'auto'",
    ),
    ({"state_memory": "-1GB"}, "state_memory must be an amount of memory"),
    ({"state_memory": True}, "state_memory must be an amount of memory"),
    ({"state_dtype": "float16"}, "there is no value of state_dtype 'float16'"),
    ({"workers": 0}, "workers must be at least 1, got 0; or say 'auto'"),
    ({"model": ""}, "model must be a name"),
    ({"seed": -1}, "seed must be at least 0"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refusal:
        configure({"task": "digits"}, options)
    assert "\n" not in str(refusal.value)


def test_a_run_that_leaves_its_cluster_leaves_the_options_of_one() -> None:
    there = {"task": "digits", "engine": "ray", "address": "auto", "gpus_per_worker": 0.5}
    here = configure(there, from_now_on(None, 2, "local", None))
    assert (here.engine, here.address, here.gpus_per_worker, here.workers) == ("local", None, 0.0, 2)
    stays = configure(there, from_now_on(9, None, None, None))
    assert (stays.engine, stays.address, stays.gpus_per_worker, stays.rounds) == ("ray", "auto", 0.5, 9)
    with pytest.raises(UsageError, match="say engine ray"):
        configure(there, from_now_on(None, None, "local", "auto"))


def test_every_option_refuses_nonsense() -> None:
    """Nothing can be added to RunConfig without a check of its values."""
    for name in OPTIONS:
        with pytest.raises(UsageError):
            digits(**{name: {"non": {"sense"}}})


def test_a_task_must_be_named() -> None:
    with pytest.raises(UsageError, match="say which task to run"):
        configure({"rounds": 3})


def test_config_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config file .*none.yaml cannot be read \(No such file"):
        read_config(tmp_path / "none.yaml")
    for content, message in [("a: [", "is not YAML"), ("- 1\n- 2\n", "must hold options"), ("\x00", "is not YAML")]:
        (tmp_path / "bad.yaml").write_text(content)
        with pytest.raises(UsageError, match=message):
            read_config(tmp_path / "bad.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_config(tmp_path / "empty.yaml") == {}


def test_config_files_run_no_code(tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(UsageError, match="is not YAML"):
        read_config(tmp_path / "evil.yaml")


# -- hyper-parameters ---------------------------------------------------------------------------------------------------


def test_hyper_parameters_are_read_by_type() -> None:
    assert make_algorithm("fedavg", {"averaging": "unbiased"}) == fv.FedAvg(averaging="unbiased")
    assert make_algorithm("feddyn", {"alpha": "0.05"}) == fv.FedDyn(alpha=0.05)
    assert make_algorithm("fedvra", {"gamma": "0.2", "a": 3, "d": "1/p"}) == fv.FedVRA(gamma=0.2, a=3.0, d=inverse_p)
    assert make_algorithm("fedvra", {"a": [1, 2]}) == fv.FedVRA(a=[1, 2])


@pytest.mark.parametrize("name", REGISTRY.names())
def test_settings_make_the_same_algorithm_again(name: str) -> None:
    algorithm = REGISTRY.get(name)()
    plain = {key: written(key, value) for key, value in settings_of(algorithm).items()}
    assert make_algorithm(name, plain) == algorithm


def test_a_nameless_function_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="d is a function without a name"):
        digits(set={"d": lambda cohort: 2.0}).to_yaml()


# -- the experiment -----------------------------------------------------------------------------------------------------


def test_build_does_what_the_options_say() -> None:
    config = digits(steps=7, weight_decay=0.02, drop=0.1, eval_every=3, seed=4, split="iid", clients=20, cohort=5)
    experiment = build(config)
    assert experiment.algorithm == fv.FedVRA()
    assert experiment.sampler == fv.Uniform(5)
    assert isinstance(experiment.work, fv.Steps)
    assert experiment.work.count == 7
    assert experiment.problem.decay == 0.02
    assert (experiment.drop, experiment.eval_every, experiment.seed) == (0.1, 3, 4)
    assert (experiment.lr, experiment.batch_size) == (config.lr, config.batch_size)
    assert experiment.data.clients == 20
    assert build(digits(epochs="1-5")).work == fv.RandomEpochs(1, 5)
    assert build(digits(batch_size="full")).batch_size is None


def test_the_seed_reaches_data_and_model() -> None:
    first, again, other = (build(digits(seed=seed)) for seed in (0, 0, 1))
    assert (first.data.indices == again.data.indices).all()
    assert not (first.data.indices == other.data.indices).all()
    assert first.problem.initial(0).equal(again.problem.initial(0))
    assert not first.problem.initial(0).equal(other.problem.initial(1))
