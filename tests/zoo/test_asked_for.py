"""What was asked for is what happens: batches of one, models made under the seed, bytes, evaluation, the user's data."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedvra as fv
from fedvra.core.streams import Purpose, stream
from zoo import plain
from zoo.cases import Tree, images, quiet_generators
from zoo.collection import CASES
from zoo.running import compare, deviations, expected, federated, shape_of, simulate

NAMED = {case.name: case for case in CASES}
DOUBLE = torch.float64


@pytest.mark.parametrize("name", ["batchnorm-average", "resnet-batchnorm-local", "batchnorm-without-statistics"])
def test_a_batch_of_one_under_batchnorm_is_told_before_the_run(name: str) -> None:
    case = NAMED[name]
    if name.startswith("resnet"):  # images so small that a single pixel is left at the end
        case = replace(case, data=lambda n: images(n, side=2))
    shape = replace(shape_of(case, "even", DOUBLE), samples=28)  # seven each: the third batch holds one
    seen: list[int] = []
    with pytest.raises(fv.UsageError, match="drop_last"):
        simulate(case, shape, progress=lambda record: seen.append(record["round"]))
    assert not seen, "the run had started"


@pytest.mark.parametrize("name", ["batchnorm-average", "mlp", "dropout"])
def test_drop_last_leaves_out_the_smaller_batch(name: str) -> None:
    case = NAMED[name]
    shape = shape_of(case, "even", DOUBLE)
    setting = replace(shape.setting, drop_last=True, epochs=2, gamma=0.5, a=2.0, d=4 / 3)
    shape = replace(shape, samples=28, setting=setting)
    history = simulate(case, shape, drop_last=True)
    data = federated(case, shape)
    parts = [data.part(client) for client in range(data.clients)]
    want = plain.run(lambda: case.build(DOUBLE), case.data(28), parts, setting)
    got = plain.tensors(history.model())
    assert not deviations({n: got[n] for n in want.trained}, want.trained, 1e-9, 1e-3)
    assert not deviations({n: got[n] for n in want.statistics}, want.statistics, 1e-9, 1e-3)
    assert [record["local_steps"] for record in history.metrics] == [12, 12]  # three clients, twice two batches


@pytest.mark.parametrize("name", ["mlp", "lora-by-hand", "prompt-tuning", "constant-buffers", "batchnorm-local"])
def test_a_function_makes_the_model_under_the_seed(name: str) -> None:
    """Frozen weights too: they are part of what the seed decides."""
    case, shape = NAMED[name], shape_of(NAMED[name], "odd", DOUBLE)

    def make() -> nn.Module:
        return case.make().to(DOUBLE)

    said = {} if case.buffers is None else {"buffers": case.buffers}
    problem = fv.Supervised(make, loss=case.loss, weight_decay=shape.setting.decay, **said)
    history = simulate(case, shape, problem=problem)
    with quiet_generators(int(stream(shape.setting.seed, Purpose.INIT).integers(2**62))):
        initial = plain.tensors(make())
    data = federated(case, shape)
    parts = [data.part(client) for client in range(data.clients)]
    want = plain.run(lambda: (make(), case.loss), case.data(shape.samples), parts, shape.setting, initial)
    got = plain.tensors(history.model())
    assert not deviations({n: got[n] for n in want.trained}, want.trained, 1e-9, 1e-3)
    assert not deviations({n: got[n] for n in want.statistics}, want.statistics, 1e-9, 1e-3)


@pytest.mark.parametrize(
    "name", ["lora-by-hand", "frozen-layer", "frozen-backbone", "hf-bert-lora", "constant-buffers"]
)
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.* is deprecated")
def test_only_what_is_trained_is_sent_and_kept(name: str) -> None:
    case, shape = NAMED[name], shape_of(NAMED[name], "odd", DOUBLE)
    history = simulate(case, shape)
    size = sum(t.numel() for t in expected(case, "odd", DOUBLE).trained.values())
    assert history.x0.numel() == history.lam.numel() == size
    assert {row.numel() for row in history.duals.values()} == {size}
    for record, cohort in zip(history.metrics, shape.setting.cohorts, strict=True):
        assert record["bytes_up"] == len(cohort) * (size * 8 + 8)
        assert record["bytes_down"] == len(cohort) * size * 8


@pytest.mark.parametrize("name", ["input-in-place", "targets-in-place", "mlp", "cnn", "hf-bert"])
def test_the_users_data_are_left_as_they_were(name: str) -> None:
    case, shape = NAMED[name], shape_of(NAMED[name], "odd", DOUBLE)
    data, pristine = case.data(shape.samples), case.data(shape.samples)
    split = fv.split(data, fv.IID(), clients=4, seed=0, test=data)
    simulate(case, shape, data=split)
    for mine, before in zip(leaves(data), leaves(pristine), strict=True):
        assert torch.equal(mine, before)


EVALUATED = [
    "mlp",
    "batchnorm-average",
    "dropout",
    "causal-ignore-index",
    "labels-ignored",
    "outputs-dict",
    "outputs-model-output",
    "inputs-dict",
    "bce-integer-targets",
    "l1-penalty",
    "hf-bert",
    "hf-gpt2",
]


@pytest.mark.parametrize("name", EVALUATED)
def test_evaluation_is_that_of_the_whole_test_data(name: str) -> None:
    """1100 samples: more than one part, so that means of parts must be weighted rightly; in evaluation mode."""
    case, shape = NAMED[name], shape_of(NAMED[name], "even", DOUBLE)
    test = case.data(1100)
    split = fv.split(case.data(shape.samples), fv.IID(), clients=4, seed=0, test=test)
    history = simulate(case, shape, data=split)
    module, loss = case.build(DOUBLE)
    plain.load(module, plain.tensors(history.model()))
    module.eval()
    targets = plain.cast(test[1], DOUBLE, labels=True)
    targets = targets.to(DOUBLE) if case.float_targets else targets
    with torch.no_grad():
        outputs = plain.call(module, plain.cast(test[0], DOUBLE))
        whole = float(loss(outputs, targets))
    assert history.metrics[-1]["test_loss"] == pytest.approx(whole, rel=1e-9)
    if name in ("mlp", "batchnorm-average", "dropout", "inputs-dict"):
        right = float((outputs.argmax(1) == targets).double().mean())
        assert history.metrics[-1]["test_accuracy"] == pytest.approx(right, abs=1e-12)


@pytest.mark.parametrize("name", ["mlp", "counter", "batchnorm-local", "python-random", "hf-bert-dropout"])
def test_evaluation_changes_nothing(name: str) -> None:
    """Neither how often one evaluates, nor on what: no state of the module is carried from there into training."""
    case, shape = NAMED[name], shape_of(NAMED[name], "odd", DOUBLE)
    split = fv.split(case.data(shape.samples), fv.IID(), clients=4, seed=0, test=case.data(50))
    compare(case, simulate(case, shape, data=split), "odd", DOUBLE)


def test_partitions_go_by_the_labels_that_are_named() -> None:
    """Where targets are no labels, ``by`` says what a partition goes by."""
    case = NAMED["outputs-dict"]
    data = case.data(40)
    split = fv.split(data, fv.Shards(1), clients=4, seed=0, by=data[1]["label"])
    held = [{int(label) for label in data[1]["label"][torch.from_numpy(split.part(k))]} for k in range(4)]
    assert max(map(len, held)) <= 2


def leaves(tree: Tree) -> list[Tensor]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def test_old_and_new_generators_are_left_alone() -> None:
    """A run seeds Python's, NumPy's and torch's generators for its clients, and puts them back."""
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    case = NAMED["python-random"]
    simulate(case, shape_of(case, "even", DOUBLE))
    simulate(NAMED["dropout"], shape_of(NAMED["dropout"], "even", DOUBLE))
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])
