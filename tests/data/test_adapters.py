"""Data in the forms of other libraries and benchmarks: small files and data sets made here, nothing downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import fedvra as fv
from fedvra.core.errors import UsageError
from fedvra.models import MODELS

RNG = np.random.default_rng(0)
N = 60
FRAME = pandas.DataFrame(
    {
        "hospital": RNG.choice(["north", "south", "east"], size=N),
        "age": RNG.integers(20, 90, size=N),
        "marker": RNG.normal(size=N),
        "ill": np.where(RNG.random(N) < 0.5, "yes", "no"),
    }
)


def run(data: fv.FederatedData, model: Any, **settings: Any) -> fv.History:
    given: dict[str, Any] = {"work": fv.Epochs(1), "batch_size": 8, "rounds": 2, "workers": 1, "lr": 0.01} | settings
    return fv.simulate(fv.FedVRA(), problem=fv.Supervised(model), data=data, sampler=fv.Full(), **given)


@pytest.mark.parametrize("form", ["frame", "csv", "parquet"])
def test_tables(form: str, tmp_path: Path) -> None:
    source: Any = FRAME
    if form != "frame":
        source = tmp_path / f"visits.{form}"
        FRAME.to_csv(source, index=False) if form == "csv" else FRAME.to_parquet(source)
    data = fv.from_table(source, client="hospital", target="ill", test=FRAME[:9])
    assert data.sizes.tolist() == FRAME.groupby("hospital").size().tolist()
    assert data.dataset.class_names == ("no", "yes")
    np.testing.assert_allclose(data.dataset.inputs, FRAME[["age", "marker"]].to_numpy(), rtol=1e-6)
    assert data.dataset.targets.tolist() == (FRAME["ill"] == "yes").astype(int).tolist()
    assert data.dataset.test_samples == 9
    assert run(data, nn.Linear(2, 2)).metrics[-1]["test_accuracy"] is not None
    some = fv.from_table(source, client="hospital", target="marker", inputs=["age"])
    assert some.dataset.targets.shape == (N, 1)
    assert some.dataset.inputs.shape == (N, 1)
    iid = fv.from_table(FRAME.drop(columns="hospital"), target="ill", partition=fv.IID(), clients=4)
    assert iid.sizes.tolist() == [15] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "gone"}, "there is no column 'gone'"),
        ({"inputs": ["gone"]}, "there is no column 'gone'"),
        ({"client": "gone"}, "there is no column 'gone'"),
        ({"client": "age"}, "column 'hospital' holds .*get_dummies"),
        ({"client": None}, "give client"),
        ({"source": FRAME.assign(age=np.nan)}, "column 'age' has 60 empty cells"),
        ({"source": 3}, "give a DataFrame or a path"),
        ({"source": "visits.xls"}, "neither .csv nor .parquet"),
        ({"source": "nowhere.csv"}, "cannot be read"),
        ({"test": FRAME.assign(ill="perhaps")}, "'perhaps' is no class"),
    ],
)
def test_tables_refused(given: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"source": FRAME, "client": "hospital", "target": "ill"} | given
    with pytest.raises(UsageError, match=message):
        fv.from_table(settings.pop("source"), **settings)


def pictures() -> Any:
    from datasets import ClassLabel, Dataset, Features, Image, Value
    from PIL import Image as Pixels

    images = [Pixels.fromarray(RNG.integers(256, size=(8, 8, 3), dtype=np.uint8)) for _ in range(24)]
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog", "owl"]), "writer": Value("string")})
    return Dataset.from_dict(
        {"image": images, "label": [k % 3 for k in range(24)], "writer": ["ann", "bob"] * 12}, features=features
    )


def test_hugging_face() -> None:
    from datasets import DatasetDict

    source = pictures()
    data = fv.from_hf(source, fv.Shards(1), clients=3, inputs="image", target="label", test=source.select(range(6)))
    assert data.dataset.inputs.shape == (24, 3, 8, 8)
    assert data.dataset.inputs.dtype == torch.uint8
    assert data.dataset.class_names == ("cat", "dog", "owl")
    expected = np.asarray(source[5]["image"]).transpose(2, 0, 1)
    np.testing.assert_array_equal(data.dataset.inputs[5], expected)
    lazily = fv.from_hf(
        DatasetDict(train=source, test=source), fv.Shards(1), 3, inputs="image", target="label", lazy=True
    )
    assert lazily.dataset.reader is not None
    np.testing.assert_array_equal(lazily.indices, data.indices)
    assert lazily.dataset.test_samples == 24
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    assert torch.equal(run(data, model).x0, run(lazily, model, eval_every=0).x0)
    writers = fv.from_hf(source, client="writer", inputs="image", target="label")
    assert writers.sizes.tolist() == [12, 12]


def test_columns_by_name() -> None:
    from datasets import Dataset

    source = Dataset.from_dict({"a": RNG.normal(size=(12, 2)).tolist(), "b": list(range(12)), "y": [0, 1] * 6})
    data = fv.from_hf(source, fv.IID(), 3, target="y")
    assert set(data.dataset.inputs) == {"a", "b"}
    assert data.dataset.inputs["b"].tolist() == list(range(12))


def test_hugging_face_refused() -> None:
    source = pictures()
    for given, message in (
        ({"dataset": source.to_iterable_dataset()}, "cannot be asked for row 17"),
        ({"dataset": 3}, "expected a data set of datasets"),
        ({"target": "gone"}, "there is no column 'gone'"),
        ({"partition": None}, "give a partition"),
        ({"client": "writer"}, "give a partition"),
        ({"test": "test"}, "has no splits"),
    ):
        settings: dict[str, Any] = {"dataset": source, "partition": fv.IID(), "clients": 3, "inputs": "image"}
        with pytest.raises(UsageError, match=message):
            fv.from_hf(**(settings | {"target": "label"} | given))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of datasets
def test_flower_partitioners_and_federated_datasets(tmp_path: Path) -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    from flwr_datasets import FederatedDataset

    source = pictures().remove_columns(["image", "writer"]).add_column("x", np.arange(24.0))
    partitioner = partitioners.DirichletPartitioner(4, partition_by="label", alpha=1.0, min_partition_size=1, seed=3)
    data = fv.from_hf(source, partitioner, inputs="x", target="label")
    assert not partitioner.is_dataset_assigned()
    partitioner.dataset = source
    for k in range(4):
        assert sorted(data.dataset.inputs[data.part(k)].tolist()) == sorted(partitioner.load_partition(k)["x"][:])
    FRAME.assign(label=np.arange(N) % 2).to_csv(tmp_path / "train.csv", index=False)
    whole = FederatedDataset(
        dataset=str(tmp_path),
        partitioners={"train": partitioners.IidPartitioner(5)},
        cache_dir=str(tmp_path / "cache"),
    )
    dealt = fv.from_hf(whole, inputs=["age", "marker"], target="label")
    assert dealt.sizes.tolist() == [12] * 5
    assert dealt.dataset.inputs["age"][dealt.part(2)].tolist() == whole.load_partition(2)["age"][:]
    with pytest.raises(UsageError, match="has a data set already"):
        fv.from_hf(source, partitioner, inputs="x", target="label")


def leaf(folder: Path, name: str, users: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"users": list(users), "num_samples": [len(each["y"]) for each in users.values()], "user_data": users}
    (folder / name).write_text(json.dumps(content))


def test_femnist(tmp_path: Path) -> None:
    pixels = RNG.random((5, 784)).round(3).tolist()
    leaf(tmp_path / "train", "a.json", {"w2": {"x": pixels[:2], "y": [61, 3]}, "w1": {"x": pixels[2:3], "y": [0]}})
    leaf(tmp_path / "train", "b.json", {"w2": {"x": pixels[3:4], "y": [5]}})
    leaf(tmp_path / "test", "a.json", {"w1": {"x": pixels[4:], "y": [7]}})
    data = fv.from_leaf(tmp_path)
    assert data.sizes.tolist() == [1, 3]
    assert data.dataset.classes == 62
    assert data.dataset.targets[data.part(1)].tolist() == [61, 3, 5]
    np.testing.assert_allclose(data.dataset.inputs[data.part(0)][0, 0].reshape(-1), pixels[2], rtol=1e-6)
    assert run(data, MODELS.get("cnn")((1, 28, 28), 62)).metrics[-1]["test_loss"] is not None
    assert fv.from_leaf(tmp_path, clients=1).clients == 1


def test_shakespeare(tmp_path: Path) -> None:
    lines = ["To be, or not to be".ljust(80), "#" * 80]
    leaf(
        tmp_path / "train", "a.json", {"HAMLET": {"x": lines, "y": ["t", "e"]}, "YORICK": {"x": lines[:1], "y": ["\n"]}}
    )
    data = fv.from_leaf(tmp_path)
    assert data.dataset.inputs.shape == (3, 80)
    assert data.dataset.inputs[1].tolist() == [80] * 80, "a symbol that LEAF does not know"
    assert data.dataset.targets.tolist()[2] == 0
    assert run(data, MODELS.get("lstm")((80,), 81)).metrics[-1]["train_loss"] > 0


def test_leaf_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no LEAF files"):
        fv.from_leaf(tmp_path)
    leaf(tmp_path / "train", "a.json", {"w": {"x": [[1.0, 2.0]], "y": [1]}})
    with pytest.raises(UsageError, match="expected images of 784 pixels"):
        fv.from_leaf(tmp_path)
    (tmp_path / "train" / "a.json").write_text("[]")
    with pytest.raises(UsageError, match="is no file of LEAF"):
        fv.from_leaf(tmp_path)


def heart(folder: Path, patients: int = 12) -> None:
    for center in ("cleveland", "hungarian", "switzerland", "va"):
        rows = []
        for k in range(patients):
            ages = [40 + k, k % 2, 1 + k % 4, 120 + k, 200 + k, 0, k % 3, 150, 0, 1.5, "?", "?", "?", k % 5]
            rows.append(",".join(map(str, ages)))
        rows.append("50,1,?,120,200,0,0,150,0,1.5,2,0,3,1")
        (folder / f"processed.{center}.data").write_text("\n".join(rows) + "\n")


def test_heart_disease(tmp_path: Path) -> None:
    heart(tmp_path)
    data = fv.from_flamby_heart(tmp_path, test_share=0.25)
    assert data.sizes.tolist() == [9] * 4
    assert data.dataset.inputs.shape == (36, 8 + 4 + 3)
    assert data.dataset.targets[data.part(0)].tolist() == [int(k % 5 > 0) for k in range(9)]
    assert data.dataset.test_samples == 12
    assert run(data, nn.Linear(15, 2)).metrics[-1]["test_accuracy"] is not None
    (tmp_path / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(UsageError, match="line 1: expected 14 figures"):
        fv.from_flamby_heart(tmp_path)
    (tmp_path / "processed.va.data").unlink()
    with pytest.raises(UsageError, match="is missing"):
        fv.from_flamby_heart(tmp_path)
