"""Multinomial logistic regression."""

from __future__ import annotations

from math import prod

from torch import nn

from fedvra.models.base import Shape, register


@register("linear")
def linear(input_shape: Shape, classes: int) -> nn.Module:
    """One layer: with cross-entropy and weight decay, a smooth and strongly convex problem.

    >>> sum(p.numel() for p in linear((1, 28, 28), 10).parameters())
    7850
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))
