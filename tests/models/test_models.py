"""Named models: parameter counts worked out by hand, shapes that adapt, and refusal of what does not fit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedvra.core.errors import UsageError
from fedvra.models import MODELS

MNIST, CIFAR, DIGITS = (1, 28, 28), (3, 32, 32), (1, 8, 8)

COUNTS = [
    ("mlp", MNIST, 10, 199_210),
    ("mlp", DIGITS, 10, 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
    ("linear", MNIST, 10, 7850),
    ("linear", (5,), 3, 18),
    ("cnn", CIFAR, 10, 878_538),
    ("cnn", MNIST, 10, 32 * 25 + 32 + 64 * 32 * 25 + 64 + 1024 * 512 + 512 + 512 * 10 + 10),
    ("cnn-feddyn", CIFAR, 10, 797_962),
]


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    model = MODELS.get(name)(shape, classes)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", [name for name in MODELS.names() if name != "lstm"])
@pytest.mark.parametrize(("shape", "classes"), [(MNIST, 10), (CIFAR, 10), ((1, 20, 24), 7)])
def test_every_model_fits_images(name: str, shape: tuple[int, ...], classes: int) -> None:
    assert MODELS.get(name)(shape, classes)(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("name", ["cnn", "cnn-feddyn"])
@pytest.mark.parametrize("shape", [DIGITS, (64,), (1, 15, 28)])
def test_convolutions_refuse_what_is_too_small(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=f"'{name}' needs images .* at least 16 x 16 pixels"):
        MODELS.get(name)(shape, 10)


def test_the_smallest_image_a_convolution_takes() -> None:
    assert MODELS.get("cnn")((1, 16, 16), 10)(torch.zeros(1, 1, 16, 16)).shape == (1, 10)


def test_initialisation_is_pytorchs_own() -> None:
    torch.manual_seed(0)
    first = next(MODELS.get("mlp")(MNIST, 10).parameters())
    torch.manual_seed(0)
    assert torch.equal(first, torch.nn.Linear(784, 200).weight)


def test_unknown_models_name_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no model 'mpl': did you mean 'mlp'"):
        MODELS.get("mpl")


@pytest.mark.parametrize("name", ["cnn", "cnn-feddyn"])
def test_relu_after_pooling_is_relu_before_it_to_the_bit(name: str) -> None:
    """As the networks are usually written: conv, ReLU, pool. Ours swaps the last two, which is cheaper."""
    torch.manual_seed(0)
    model = MODELS.get(name)(CIFAR, 10)
    usual = copy.deepcopy(model)
    for conv in (0, 3):
        usual[conv + 1], usual[conv + 2] = usual[conv + 2], usual[conv + 1]
    assert [type(layer) for layer in usual[:3]] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    for _ in range(3):
        images, labels = torch.randn(7, *CIFAR), torch.randint(0, 10, (7,))
        for network in (model, usual):
            network.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 0.1 * parameter.grad
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), usual.parameters(), strict=True))
