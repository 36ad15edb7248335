"""From stored samples to what a model is fed: scaling, normalisation, and augmentation drawn from a given stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from fedvra.core.errors import require
from fedvra.data import trees
from fedvra.data.trees import Tree


@dataclass(frozen=True)
class Transform:
    r"""Per batch: random crop and flip (only when a generator is given), then :math:`(x - \text{mean}) / \text{std}`.

    - uint8 inputs are images: scaled to [0, 1] first, then normalised by ``mean`` and ``std`` where these are given.
    - Float inputs are normalised where ``mean`` and ``std`` are given, and otherwise only brought to ``dtype``.
    - Other inputs (token numbers, masks) pass through untouched.
    - In a tree of inputs this goes for each array; it can be neither normalised nor augmented.

    ``mean`` and ``std`` have one entry, or one per channel (dimension 1). With ``per_sample`` they are those of each sample
    itself, over all its n entries (a standard deviation below 1/sqrt(n) counts as that). Augmentation works on the samples
    as stored, so images stay uint8 until the last step and the padding of a crop is black, as if the image had been padded
    on disk.

    >>> import numpy as np, torch
    >>> images = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    >>> Transform(mean=(0.5,), std=(0.25,))(images)
    tensor([[[[-2.,  2.]]]])
    >>> augmented = Transform(crop_padding=1, flip=True)(images, np.random.default_rng(0))
    >>> augmented.shape
    torch.Size([1, 1, 1, 2])
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_padding: int = 0
    flip: bool = False
    per_sample: bool = False

    def __post_init__(self) -> None:
        require(
            len(self.mean) == len(self.std),
            f"Transform: mean has {len(self.mean)} entries and std {len(self.std)}; give one of each per channel.",
        )
        require(all(value > 0 for value in self.std), f"Transform: every std must be positive, got {self.std}.")
        require(not (self.per_sample and self.mean), "Transform: give mean and std, or per_sample, but not both.")
        require(self.crop_padding >= 0, f"Transform: crop_padding must be 0 or more, got {self.crop_padding}.")

    @property
    def augments(self) -> bool:
        """Whether a generator makes a difference."""
        return self.crop_padding > 0 or self.flip

    def __call__(self, inputs: Tree, rng: np.random.Generator | None = None, dtype: torch.dtype | None = None) -> Tree:
        """Transform a batch [B, ...]. Without ``dtype`` floats keep theirs and uint8 becomes float32."""
        if not isinstance(inputs, Tensor):
            self.check(inputs, "a batch")
            return trees.map(lambda leaf: self(leaf, None, dtype), inputs)
        if rng is not None and self.augments:
            inputs = self._augment(inputs, rng)
        if inputs.dtype == torch.uint8:
            scaled = inputs.to(dtype or torch.float32)
            scale, shift = _affine(self, 255.0, inputs.ndim, scaled.dtype)
        elif inputs.is_floating_point():
            scaled = inputs.to(dtype or inputs.dtype)
            if self.per_sample:
                return _standardised(scaled)
            if not self.mean:
                return scaled
            if scaled is inputs:
                scaled = inputs.clone()
            scale, shift = _affine(self, 1.0, inputs.ndim, scaled.dtype)
        else:
            return inputs
        scaled.mul_(scale).add_(shift)
        return _standardised(scaled) if self.per_sample else scaled

    def check(self, inputs: Tree, where: str) -> None:
        """Raise a UsageError where it does not fit such inputs."""
        if not isinstance(inputs, Tensor):
            require(
                not (self.mean or self.per_sample or self.augments),
                f"{where}: a transform that normalises or augments needs inputs that are one array, not a tree of them; "
                "prepare the arrays yourself and leave the transform out.",
            )
            return
        channels = inputs.shape[1] if inputs.ndim > 1 else 1
        require(
            len(self.mean) in (0, 1, channels),
            f"{where}: the transform normalises {len(self.mean)} channels, the inputs have {channels}.",
        )

    def normalized(self, how: str) -> Transform:
        """The same augmentation with another normalisation, named as on a command line.

        >>> own = Transform(mean=(0.1,), std=(0.3,), flip=True)
        >>> own.normalized("0.5/0.25")
        Transform(mean=(0.5,), std=(0.25,), crop_padding=0, flip=True, per_sample=False)
        >>> own.normalized("sample").per_sample, own.normalized("dataset") == own
        (True, True)
        """
        if how == "dataset":
            return self
        if how == "sample":
            return replace(self, mean=(), std=(), per_sample=True)
        mean, std = (tuple(float(number) for number in part.split(",")) for part in how.split("/"))
        return replace(self, mean=mean, std=std, per_sample=False)

    def _augment(self, inputs: Tensor, rng: np.random.Generator) -> Tensor:
        require(
            inputs.ndim == 4,
            f"Transform: crop and flip need images [B, C, H, W], got shape {list(inputs.shape)}; switch them off.",
        )
        images = inputs.numpy()
        if self.crop_padding:
            images = _random_crop(images, self.crop_padding, rng)
        if self.flip:
            mirrored = rng.random(len(images)) < 0.5
            images = images if self.crop_padding else images.copy()  # never write into the caller's data
            images[mirrored] = images[mirrored][..., ::-1]
        return torch.from_numpy(images)


def _standardised(samples: Tensor) -> Tensor:
    """Every sample less its mean, over its standard deviation or, for a blank one, 1/sqrt(n)."""
    flat = samples.flatten(1)
    std, mean = torch.std_mean(flat, dim=1, correction=0, keepdim=True)
    return flat.sub(mean).div_(std.clamp_min(flat.shape[1] ** -0.5)).reshape(samples.shape)


def _random_crop(images: NDArray[np.generic], padding: int, rng: np.random.Generator) -> NDArray[np.generic]:
    """Windows of the original size at random offsets in the zero-padded images, all gathered by one index operation.

    NumPy copies whole windows row by row here; torch's indexing of the same view moves single elements and is three
    times slower.
    """
    batch, channels, height, width = images.shape
    padded = np.zeros((batch, channels, height + 2 * padding, width + 2 * padding), dtype=images.dtype)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    offsets = 2 * padding + 1
    per_image, per_channel, per_row, per_pixel = padded.strides
    windows = as_strided(
        padded,
        shape=(batch, offsets, offsets, channels, height, width),
        strides=(per_image, per_row, per_pixel, per_channel, per_row, per_pixel),
        writeable=False,
    )
    top, left = rng.integers(offsets, size=(2, batch))
    return np.asarray(windows[np.arange(batch), top, left])


@lru_cache(maxsize=64)
def _affine(
    transform: Transform, unit: float, dimensions: int, dtype: torch.dtype
) -> tuple[Tensor | float, Tensor | float]:
    """(scale, shift) with (x / unit - mean) / std = scale * x + shift, shaped to broadcast over the channels."""
    if not transform.mean:
        return 1.0 / unit, 0.0
    mean, std = np.array(transform.mean), np.array(transform.std)
    scale, shift = 1.0 / (unit * std), -mean / std
    if len(mean) == 1:
        return float(scale[0]), float(shift[0])
    shape = [1, len(mean)] + [1] * (dimensions - 2)
    return torch.tensor(scale, dtype=dtype).reshape(shape), torch.tensor(shift, dtype=dtype).reshape(shape)
