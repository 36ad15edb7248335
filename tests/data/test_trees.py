"""Inputs and targets that are trees of arrays, from split() to the batch that a model is given."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.data import trees
from fedvra.data.picture import class_counts
from token_samples import AGE, IDS, LABELS, MASK, RNG, TAGS, TOKENS, Items, N, feed, same

# -- trees themselves ---------------------------------------------------------------------------------------------------


def made_trees(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, min_size=1, max_size=3)
        return several | several.map(tuple) | st.dictionaries(st.text("ab", min_size=1), inner, min_size=1, max_size=3)

    return st.recursive(leaf, nodes, max_leaves=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(made_trees(st.integers(0, 3).map(lambda ndim: torch.rand(7, *range(2, 2 + ndim)))), st.lists(st.integers(0, 6)))
def test_rows_are_taken_of_every_leaf(tree: Any, rows: list[int]) -> None:
    index = np.array(rows, dtype=np.int64)
    taken, part = trees.take(tree, index), trees.take(tree, slice(2, 5))
    assert trees.count(tree) == 7
    assert [path for path, _ in trees.named(taken, "x")] == [path for path, _ in trees.named(tree, "x")]
    for whole, some, middle in zip(trees.leaves(tree), trees.leaves(taken), trees.leaves(part), strict=True):
        assert torch.equal(some, whole[index])
        assert torch.equal(middle, whole[2:5])
        assert middle.data_ptr() == whole[2:5].data_ptr()


def test_counting_names_the_leaf_that_differs() -> None:
    with pytest.raises(UsageError, match=r"tree\['b'\]\[1\] has 3 rows and tree\['a'\] has 4"):
        trees.count({"a": torch.zeros(4), "b": (torch.zeros(4), torch.zeros(3))})
    with pytest.raises(UsageError, match="no arrays"):
        trees.count({})


def test_a_model_is_called_as_its_inputs_are_made_up() -> None:
    def model(*args: Any, **named: Any) -> Any:
        return args, named

    x = torch.zeros(2)
    assert trees.call(model, x) == ((x,), {})
    assert trees.call(model, {"x": 1, "y": 2}) == ((), {"x": 1, "y": 2})
    assert trees.call(model, (1, {"y": 2})) == ((1, {"y": 2}), {})
    assert trees.call(model, [1, 2]) == ((1, 2), {})
    packed = pack_sequence([torch.ones(3, 1), torch.ones(2, 1)])
    assert trees.call(model, packed) == ((packed,), {})
    assert trees.call(nn.LSTM(1, 2), packed)[0].data.shape == (5, 2)


# -- split --------------------------------------------------------------------------------------------------------------


def test_a_tree_keeps_its_form_its_types_and_its_memory() -> None:
    dataset = fv.split((TOKENS, {"tags": TAGS, "label": LABELS.astype(np.int32)}), fv.IID(), 3).dataset
    assert list(dataset.inputs) == ["ids", "mask", "more"]
    assert [leaf.dtype for leaf in trees.leaves(dataset.inputs)] == [torch.int64, torch.bool, torch.float64]
    assert dataset.inputs["more"]["age"].data_ptr() == AGE.ctypes.data
    assert dataset.targets["label"].dtype == torch.int32
    assert (len(dataset), dataset.test_samples, dataset.classes, dataset.labels) == (N, 0, None, None)
    for form, kind in (((IDS, AGE), tuple), ([IDS, AGE], list)):
        assert isinstance(fv.split((form, LABELS), fv.IID(), 3).dataset.inputs, kind)
    Named = namedtuple("Named", ["ids", "age"])
    assert fv.split((Named(IDS, AGE), LABELS), fv.IID(), 3).dataset.inputs.age.dtype == torch.float64


def test_lists_of_numbers_are_arrays() -> None:
    dataset = fv.split(([[1.0, 2.0], [3.0, 4.0]], (0, 1)), fv.IID(), 2).dataset
    assert dataset.inputs.tolist() == [[1, 2], [3, 4]]
    assert dataset.targets.tolist() == [0, 1]


def test_a_torch_dataset_of_trees_is_stacked() -> None:
    expected = fv.split((TOKENS, (TAGS, LABELS)), fv.IID(), 3).dataset
    samples = [
        ({"ids": IDS[k].tolist(), "mask": MASK[k], "more": {"age": AGE[k]}}, (TAGS[k], torch.tensor(LABELS[k])))
        for k in range(N)
    ]
    made = fv.split(Items(samples), fv.IID(), 3, test=Items(samples[:4])).dataset
    assert same(made.inputs, expected.inputs)
    assert same(made.targets, expected.targets)
    assert same(made.test_inputs, trees.take(expected.inputs, slice(0, 4)))
    assert made.test_samples == 4


def changed(**leaves: Any) -> dict[str, Any]:
    return {**TOKENS, **leaves}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": (changed(mask=MASK[:-1]), TAGS)}, r"inputs\['mask'\] has 11 rows and inputs\['ids'\] has 12"),
        ({"dataset": (TOKENS, TAGS[:-2])}, r"targets has 10 rows and inputs\['ids'\] has 12"),
        ({"dataset": (IDS, {"tags": TAGS, "n": LABELS[1:]})}, r"targets\['n'\] has 11 rows and inputs has 12"),
        ({"dataset": (list(AGE[:, None]), LABELS)}, "stack lists of samples first"),
        (
            {"dataset": (changed(more={"age": np.where(AGE > 0, np.nan, 0)}), TAGS)},
            r"inputs\['more'\]\['age'\] hold NaN",
        ),
        ({"dataset": (changed(word=["a"] * N), TAGS)}, r"inputs\['word'\]: expected numbers"),
        ({"dataset": (changed(rows=[[1], [1, 2]]), TAGS)}, r"inputs\['rows'\]: its rows have different lengths"),
        ({"dataset": (changed(one=3), TAGS)}, r"inputs\['one'\]: there must be one row per sample"),
        ({"dataset": ({0: IDS}, TAGS)}, "its keys must be names"),
        ({"dataset": ({}, TAGS[:0])}, "there are no samples"),
        ({"dataset": {"x": IDS, "y": TAGS}}, "expected a pair"),
        ({"test": ({"ids": IDS}, TAGS)}, r"the test inputs are inputs\['ids'\] and the training inputs .*must agree"),
        ({"test": (changed(ids=IDS[:, :3]), TAGS)}, r"shape \[3\] and a training sample \[5\] \(inputs\['ids'\]\)"),
        (
            {"test": (changed(ids=IDS[1:]), TAGS)},
            r"the test data: inputs\['mask'\] has 12 rows and inputs\['ids'\] has 11",
        ),
        ({"transform": fv.Transform((0.5,), (0.5,))}, "normalises or augments needs inputs that are one array"),
        ({"transform": fv.Transform(flip=True)}, "normalises or augments needs inputs that are one array"),
        ({"transform": fv.Transform(per_sample=True)}, "normalises or augments needs inputs that are one array"),
        ({"dataset": Items([({"a": 1}, 0), ({"b": 1}, 0)])}, "sample 1 is not made up as sample 0 is"),
        ({"dataset": Items([((IDS, AGE), 0), ((IDS,), 0)])}, "sample 1 is not made up as sample 0 is"),
        ({"dataset": Items([({"a": [1]}, 0), ({"a": [1, 2]}, 0)])}, r"samples\['a'\] have different shapes.*collate="),
        ({"dataset": fv.Dataset("own", {"x": IDS}, torch.zeros(N))}, r"inputs\['x'\] must be a tensor, got ndarray"),
    ],
)
def test_split_refuses_trees_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"dataset": (TOKENS, TAGS), "partition": fv.IID(), "clients": 2} | change
    with pytest.raises(UsageError, match=message):
        fv.split(**options)


# -- targets and labels -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "targets",
    [TAGS, TAGS.astype(np.int32), IDS.astype(np.uint8), MASK, MASK[:, 0], AGE, AGE[:, None], LABELS[:, None], IDS - 50],
)
def test_targets_are_kept_and_fed_as_they_are(targets: np.ndarray) -> None:
    data = fv.split((AGE, targets), fv.IID(), 3)
    rows = np.array([3, 0])
    assert same(feed(data).batch(rows)[1], torch.from_numpy(targets[rows]))


def test_minus_100_is_a_label_to_ignore_and_other_negatives_are_mistakes() -> None:
    ignored = np.where(LABELS == 1, -100, LABELS)
    data = fv.split((AGE, ignored), fv.Dirichlet(10.0), 3, test=(AGE, ignored))
    assert data.dataset.classes == 3
    assert class_counts(data).sum(0).tolist() == [4, 0, 4]
    assert fv.split((AGE, np.full(N, -100)), fv.IID(), 3).dataset.classes == 1
    for wrong in (-1, -99, -101):
        with pytest.raises(UsageError, match=f"labels run from {wrong} to 2"):
            fv.split((AGE, np.where(LABELS == 1, wrong, LABELS)), fv.IID(), 3)


LABEL_PARTITIONS = [fv.Dirichlet(0.5), fv.DirichletByClass(0.5), fv.Shards(2)]


@pytest.mark.parametrize("partition", LABEL_PARTITIONS, ids=repr)
@pytest.mark.parametrize("targets", [TAGS, AGE, {"tags": TAGS}, (TAGS, AGE)], ids=["2-d", "floats", "dict", "tuple"])
def test_by_names_the_labels_that_a_partition_goes_by(partition: fv.Partition, targets: Any) -> None:
    expected = fv.split((IDS, LABELS), partition, 3, seed=5)
    for by in (LABELS, torch.from_numpy(LABELS), LABELS.tolist(), np.array(["ant", "bee", "cat"])[LABELS]):
        made = fv.split((IDS, targets), partition, 3, seed=5, by=by)
        np.testing.assert_array_equal(made.indices, expected.indices)
        np.testing.assert_array_equal(made.offsets, expected.offsets)
    with pytest.raises(UsageError, match=r"by class label, and the targets are not one integer label.*by=labels"):
        fv.split((IDS, targets), partition, 3, seed=5)


def test_truth_values_are_labels_to_a_partition() -> None:
    expected = fv.split((IDS, MASK[:, 0].astype(int)), fv.Shards(2), 2)
    np.testing.assert_array_equal(fv.split((IDS, MASK[:, 0]), fv.Shards(2), 2).indices, expected.indices)


@pytest.mark.parametrize("by", [LABELS[1:], TAGS, AGE, 3, [None] * N], ids=["short", "2-d", "floats", "one", "none"])
def test_by_must_be_one_label_per_sample(by: Any) -> None:
    with pytest.raises(UsageError, match="by= must hold one label per sample, 12 whole numbers or names"):
        fv.split((IDS, TAGS), fv.Shards(2), 2, by=by)


@pytest.mark.parametrize("partition", [fv.IID(), fv.QuantitySkew(power=1.0), fv.ByColumn(LABELS)], ids=str)
@pytest.mark.parametrize(
    "targets", [TAGS, torch.rand(N, dtype=torch.bfloat16), {"a": AGE}], ids=["2-d", "bf16", "dict"]
)
def test_other_partitions_take_any_targets(partition: fv.Partition, targets: Any) -> None:
    expected = fv.split((IDS, LABELS), partition, 3)
    np.testing.assert_array_equal(fv.split((TOKENS, targets), partition, 3).indices, expected.indices)
    assert class_counts(fv.split((TOKENS, targets), partition, 3)).shape == (3, 1)


# -- batches ------------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_tree_and_only_its_floats_change_type() -> None:
    pixels = RNG.integers(256, size=(N, 1, 2, 2), dtype=np.uint8)
    data = fv.split(
        (changed(pixels=pixels), {"tags": TAGS, "age": AGE}), fv.IID(), 3, test=(changed(pixels=pixels), TAGS)
    )
    rows = np.array([5, 1, 1])
    inputs, targets = feed(data).batch(rows)
    assert list(inputs) == ["ids", "mask", "more", "pixels"]
    assert same(inputs["ids"], torch.from_numpy(IDS[rows]))
    assert same(inputs["mask"], torch.from_numpy(MASK[rows]))
    assert same(inputs["more"]["age"], torch.from_numpy(AGE[rows]).float())
    assert same(inputs["pixels"], torch.from_numpy(pixels[rows]).float() * (1 / 255))
    assert same(targets, {"tags": torch.from_numpy(TAGS[rows]), "age": torch.from_numpy(AGE[rows])})
    assert feed(data).batch(rows, dtype=torch.float64)[0]["more"]["age"].dtype == torch.float64
    inputs, targets = feed(data).test_batch(slice(2, 4), torch.float64)
    assert same(inputs["more"]["age"], torch.from_numpy(AGE[2:4]))
    assert same(targets, torch.from_numpy(TAGS[2:4]))
    assert same(feed(data).test_batch(np.array([2, 3]))[1], targets)
    assert feed(data).stacks


def test_targets_are_cast_leaf_by_leaf_where_a_loss_asks_for_it() -> None:
    data = fv.split((IDS, (AGE, TAGS)), fv.IID(), 3, test=(IDS, (AGE, TAGS)))

    def to_float(leaf: Tensor) -> Tensor:
        return leaf.float() if leaf.is_floating_point() else leaf

    for _, targets in (
        feed(data, target_cast=to_float).batch(np.arange(3)),
        feed(data, target_cast=to_float).test_batch(slice(3)),
    ):
        assert same(targets, (torch.from_numpy(AGE[:3]).float(), torch.from_numpy(TAGS[:3])))
    single = fv.split((IDS, AGE), fv.IID(), 3)
    assert feed(single, target_cast=to_float).batch(np.arange(3))[1].dtype == torch.float32


def test_a_single_array_is_fed_as_ever() -> None:
    images = RNG.integers(256, size=(N, 3, 4, 4), dtype=np.uint8)
    augmented = fv.Transform((0.5,), (0.25,), crop_padding=1, flip=True)
    source = feed(fv.split((images, LABELS), fv.IID(), 3, transform=augmented), channels_last=True)
    rows = np.array([4, 2])
    inputs, targets = source.batch(rows, np.random.default_rng(1))
    alone = augmented(torch.from_numpy(images[rows]), np.random.default_rng(1), torch.float32)
    assert same(inputs, alone)
    assert same(targets, torch.from_numpy(LABELS[rows]))
    assert inputs.is_contiguous(memory_format=torch.channels_last)


def test_channels_last_is_for_a_batch_of_images_alone() -> None:
    images = np.zeros((N, 3, 4, 4), dtype=np.float32)
    inputs, _ = feed(fv.split(({"image": images}, LABELS), fv.IID(), 3), channels_last=True).batch(np.arange(2))
    assert inputs["image"].is_contiguous()
    inputs, _ = feed(fv.split((images[:, :, 0], LABELS), fv.IID(), 3), channels_last=True).batch(np.arange(2))
    assert inputs.shape == (2, 3, 4)
