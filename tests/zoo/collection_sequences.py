"""Recurrent networks, attention and embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from zoo.cases import Case, next_words, padded, padded_words, sequences, token_loss, words


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.body = kind(6, 5, **options)
        self.head = nn.Linear(10 if options.get("bidirectional") else options.get("proj_size", 5), 3)
        self.batch_first = bool(options.get("batch_first"))

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.body(x if self.batch_first else x.transpose(0, 1))
        return self.head(out[:, -1] if self.batch_first else out[-1])


class Packed(nn.Module):
    """Padded sequences, packed by their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, hidden = self.body(packed)
        whole, _ = pad_packed_sequence(out, batch_first=True)
        return self.head(hidden[-1] + whole.mean(1))


class Cell(nn.Module):
    """Stepped by hand, as scheduled sampling does."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0])


class Encoder(nn.Module):
    def __init__(self, dropout: float = 0.0, norm_first: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.position = nn.Parameter(0.1 * torch.randn(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        h = self.embed(input_ids) + self.position
        ignored = None if attention_mask is None else attention_mask == 0
        return self.head(self.layer(h, src_key_padding_mask=ignored)[:, 0])


class Causal(nn.Module):
    """A small GPT: position ids and the causal mask are buffers, one of them not in the state dict; tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("position_ids", torch.arange(6)[None])
        self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.place(self.position_ids[:, : ids.shape[1]])
        h = h + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return self.head(self.norm(h))


class Rotary(nn.Module):
    """Frequencies in a constant float buffer, scaled dot products, grouped keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 16), nn.Linear(8, 3)
        self.register_buffer("inv_freq", 1 / 100 ** (torch.arange(0, 4, 2) / 4), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[2])[:, None] * self.inv_freq
        cos, sin = torch.cat([angles, angles], 1).cos(), torch.cat([angles, angles], 1).sin()
        return x * cos + torch.cat([-x[..., 2:], x[..., :2]], -1) * sin

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(ids)).split([8, 4, 4], -1)
        q = self.turned(q.unflatten(-1, (2, 4)).transpose(1, 2))
        k, v = self.turned(k[:, None]).expand_as(q), v[:, None].expand_as(q)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h.transpose(1, 2).flatten(2).mean(1))


class Alibi(nn.Module):
    """Attention written out, with a bias buffer and a softmax over a masked row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("bias", -(torch.arange(6)[None] - torch.arange(6)[:, None]).abs() * 0.5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.embed(input_ids)
        scores = torch.einsum("bqd,bkd->bqk", self.query(h), self.key(h)) / 8**0.5 + self.bias
        scores = scores.masked_fill(attention_mask[:, None] == 0, torch.finfo(h.dtype).min)
        return self.head((scores.softmax(-1) @ h).mean(1))


class Bag(nn.Module):
    def __init__(self, sparse: bool = False, mode: str = "mean") -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(11, 8, mode=mode, sparse=sparse), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.bag(ids))


class Words(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8, **options), nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embed(ids).mean(1))


class Tagger(nn.Module):
    """An LSTM with an answer at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.body, self.head = nn.LSTM(6, 5, batch_first=True, bidirectional=True), nn.Linear(10, 11)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids))[0])


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.body = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 11)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.head.weight.dtype)
        return self.head(self.body(self.embed(source), self.embed(target), tgt_mask=mask, tgt_is_causal=True))


def translations(n: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    source, target = next_words(n)
    return (source, source.flip(1)), target


def some_next_words(n: int) -> tuple[Tensor, Tensor]:
    return next_words(n, ignored=True)


FIRST = {"batch_first": True}
CASES = [
    Case("lstm", lambda: Recurrent(nn.LSTM, **FIRST), sequences),
    Case("gru", lambda: Recurrent(nn.GRU, **FIRST), sequences),
    Case("rnn", lambda: Recurrent(nn.RNN, nonlinearity="relu"), sequences),
    Case("lstm-time-first", lambda: Recurrent(nn.LSTM), sequences),
    Case("lstm-deep-dropout", lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3, **FIRST), sequences),
    Case("lstm-bidirectional", lambda: Recurrent(nn.LSTM, bidirectional=True, num_layers=2, **FIRST), sequences),
    Case("lstm-projected", lambda: Recurrent(nn.LSTM, proj_size=3, **FIRST), sequences, warns=("LSTM with proj",)),
    Case("gru-bidirectional", lambda: Recurrent(nn.GRU, bidirectional=True, **FIRST), sequences),
    Case("gru-packed", Packed, padded, eager=True),
    Case("lstm-cell", Cell, sequences),
    Case("tagger-ignore-index", Tagger, some_next_words, token_loss),
    Case("encoder", Encoder, words),
    Case("encoder-masked", Encoder, padded_words),
    Case("encoder-dropout", lambda: Encoder(0.1), words),
    Case("encoder-norm-first", lambda: Encoder(norm_first=True), words),
    Case("causal-tied-weights", Causal, next_words, token_loss),
    Case("causal-ignore-index", Causal, some_next_words, token_loss),
    Case("rotary", Rotary, words),
    Case("alibi-masked", Alibi, padded_words),
    Case("translator", Translator, translations, token_loss),
    Case("embedding", Words, words),
    Case("embedding-padding", lambda: Words(padding_idx=2, scale_grad_by_freq=True), words),
    Case("embedding-max-norm", lambda: Words(max_norm=1.0), words),
    Case("embedding-sparse", lambda: Words(sparse=True), words, eager=True),
    Case("embedding-bag", Bag, words),
    Case("embedding-bag-sparse", lambda: Bag(True, "sum"), words, eager=True),
]
