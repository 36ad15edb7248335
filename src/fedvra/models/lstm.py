"""A recurrent network that reads symbols and says which comes next."""

from __future__ import annotations

from torch import Tensor, nn

from fedvra.core.errors import require
from fedvra.models.base import Shape, register


class NextSymbol(nn.Module):
    """Symbols [B, T] -> scores [B, K] of the one that follows."""

    def __init__(self, symbols: int, features: int = 8, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, features)
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(symbols))
        scores: Tensor = self.head(states[:, -1])
        return scores


@register("lstm")
def lstm(input_shape: Shape, classes: int) -> nn.Module:
    """embedding 8, LSTM 128, fc K: a third of the width that LEAF has, in one layer instead of two.

    >>> import torch
    >>> lstm((40,), 97)(torch.zeros(2, 40, dtype=torch.long)).shape
    torch.Size([2, 97])
    """
    require(
        len(input_shape) == 1,
        f"the model 'lstm' reads sequences of symbols, got inputs of shape {list(input_shape)}; use 'mlp' or 'cnn'.",
    )
    return NextSymbol(classes)
