"""Scaling, normalisation and augmentation of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedvra.core.errors import UsageError
from fedvra.core.streams import Purpose, stream
from fedvra.data.transform import Transform


def images(batch: int = 6, channels: int = 3, height: int = 5, width: int = 7) -> torch.Tensor:
    """Random images without a single black pixel, so that padding shows."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(1, 256, size=(batch, channels, height, width), dtype=np.uint8))


def test_bytes_are_scaled_and_normalised_per_channel() -> None:
    x = images()
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    m, s = (torch.tensor(each, dtype=torch.float64).view(1, 3, 1, 1) for each in (mean, std))
    by_hand = (x.double() / 255 - m) / s
    out = Transform(mean, std)(x, dtype=torch.float64)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, by_hand, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(Transform(mean, std)(x), by_hand.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(Transform()(x), x.float() / 255)
    torch.testing.assert_close(Transform((0.1307,), (0.3081,))(x), (x.float() / 255 - 0.1307) / 0.3081)


def test_floats_are_normalised_only_when_asked_and_keep_their_type() -> None:
    x = torch.randn(4, 2, dtype=torch.float64)
    assert torch.equal(Transform()(x), x)
    assert Transform()(x).dtype == torch.float64
    assert Transform()(x, dtype=torch.float32).dtype == torch.float32
    before = x.clone()
    out = Transform((1.0, 2.0), (2.0, 4.0))(x)
    torch.testing.assert_close(out, (x - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0]))
    assert torch.equal(x, before), "the caller's data must not be written to"


def test_token_numbers_pass_untouched() -> None:
    tokens = torch.randint(0, 1000, (4, 9))
    assert Transform()(tokens, dtype=torch.float32) is tokens


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.booleans(), st.integers(0, 1000), st.integers(1, 8))
def test_every_output_is_a_window_of_the_padded_image_perhaps_mirrored(
    padding: int, flip: bool, seed: int, batch: int
) -> None:
    x = images(batch)
    out = Transform(crop_padding=padding, flip=flip)(x, np.random.default_rng(seed), dtype=torch.float64)
    padded = torch.nn.functional.pad(x, (padding,) * 4).double() / 255
    for image, candidates in zip(out, padded, strict=True):
        windows = [
            candidates[:, top : top + 5, left : left + 7]
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
        ]
        if flip:
            windows += [window.flip(2) for window in windows]
        assert any(torch.allclose(image, window) for window in windows)


def test_offsets_and_mirroring_are_uniform() -> None:
    # A single bright pixel in the middle of 5 x 5 tells by where it lands which offsets were drawn (padding 2 keeps it inside).
    x = torch.zeros(20_000, 1, 5, 5, dtype=torch.uint8)
    x[:, :, 2, 2] = 255
    out = Transform(crop_padding=2)(x, np.random.default_rng(0))
    np.testing.assert_allclose(out.mean(dim=0)[0].numpy(), 1 / 25, atol=0.007)
    x = torch.tensor([[[[0, 255]]]], dtype=torch.uint8).expand(20_000, 1, 1, 2)
    out = Transform(flip=True)(x, np.random.default_rng(0))
    assert out[:, 0, 0, 0].mean() == pytest.approx(0.5, abs=0.02)
    assert torch.equal(out.sum(dim=3), torch.ones(20_000, 1, 1))


def test_augmentation_is_a_function_of_the_stream_and_off_without_one() -> None:
    x = images(50)
    before = x.clone()
    augment = Transform(crop_padding=2, flip=True)

    def drawn(client: int) -> torch.Tensor:
        return augment(x, stream(0, Purpose.AUGMENT, round=1, client=client))

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))
    assert torch.equal(augment(x), Transform()(x))
    Transform(flip=True)(x, np.random.default_rng(0))
    assert torch.equal(x, before), "the caller's data must not be written to"


def test_float_images_are_augmented_too() -> None:
    x = images().float()
    out = Transform(crop_padding=1)(x, np.random.default_rng(0))
    assert out.dtype == torch.float32
    assert not torch.equal(out, x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Transform((0.1,), ()),
        lambda: Transform((0.1,), (0.0,)),
        lambda: Transform(crop_padding=-1),
        lambda: Transform(flip=True)(torch.zeros(3, 4), np.random.default_rng(0)),
    ],
)
def test_nonsense_is_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]


def test_every_sample_by_its_own_mean_and_deviation() -> None:
    rng = np.random.default_rng(0)
    images = torch.as_tensor(rng.integers(0, 256, (5, 3, 4, 4)), dtype=torch.uint8)
    images[2] = 77  # blank: nothing to divide by
    out = Transform(per_sample=True)(images, dtype=torch.float64)
    for image, got in zip(images.numpy() / 255.0, out.numpy(), strict=True):
        expected = (image - image.mean()) / max(image.std(), 48**-0.5)
        np.testing.assert_allclose(got, expected, atol=1e-12)
    floats = torch.as_tensor(rng.normal(3.0, 2.0, (4, 6)))
    before = floats.clone()
    np.testing.assert_allclose(Transform(per_sample=True)(floats).std(dim=1, correction=0), 1.0, atol=1e-12)
    assert torch.equal(floats, before)


def test_normalisation_by_name() -> None:
    own = Transform((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), crop_padding=2, flip=True)
    assert own.normalized("dataset") is own
    assert own.normalized("0.5/0.25") == Transform((0.5,), (0.25,), crop_padding=2, flip=True)
    assert own.normalized(".4,.5,.6/1,2,3.5") == Transform((0.4, 0.5, 0.6), (1, 2, 3.5), crop_padding=2, flip=True)
    assert own.normalized("sample").normalized("0/1") == Transform((0.0,), (1.0,), crop_padding=2, flip=True)
    with pytest.raises(UsageError, match="per_sample, but not both"):
        Transform((0.1,), (1.0,), per_sample=True)
