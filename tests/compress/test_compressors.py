"""C alone: what it does to a vector, how long its messages are, what cannot be a message."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedvra as fv
from fedvra.compress import COMPRESSORS, parse_compressor, parse_download
from fedvra.compress.base import as_compressor, as_download
from fedvra.core.bits import packed, packed_bytes, unpacked
from fedvra.core.compressor import BadCodeError, Compressor

EVERY: list[Compressor] = [
    *(fv.Quantize(bits) for bits in range(2, 9)),
    fv.Quantize(2, block=7, rounding="nearest"),
    fv.Quantize(4, block=1000, rounding="nearest"),
    fv.TopK(0.1),
    fv.TopK(0.01),
    fv.TopK(1),
    fv.BFloat16(),
    fv.Chain(fv.TopK(0.1), fv.Quantize(bits=4)),
    fv.Chain(fv.TopK(0.5), fv.TopK(0.1), fv.BFloat16()),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def vectors(width: int) -> list[torch.Tensor]:
    """Usual ones, a lone great number, zeros."""
    lone = torch.full((width,), 1e-3, dtype=torch.float64)
    lone[width // 2] = 1.0
    usual = torch.from_numpy(rng(1).standard_normal(width))
    return [usual, usual.float(), 1e-30 * usual, lone, torch.zeros(width)]


@pytest.mark.parametrize("compressor", EVERY, ids=lambda c: c.text())
@pytest.mark.parametrize("width", [1, 5, 256, 1000])
def test_messages_have_the_length_that_was_said_and_hold_c_of_v_to_the_bit(compressor: Compressor, width: int) -> None:
    for v in vectors(width):
        shrunk = compressor.shrink(v, rng())
        message = compressor.encode(shrunk, width)
        assert message.dtype == torch.uint8
        assert len(message) == compressor.nbytes(width, v.element_size())
        assert torch.equal(compressor.decode(message, width, v.dtype), compressor.apply(v, rng()))


@pytest.mark.parametrize("compressor", EVERY, ids=lambda c: c.text())
def test_zero_stays_zero_and_scale_does_not_matter(compressor: Compressor) -> None:
    v = vectors(1000)[0]
    assert not compressor.apply(torch.zeros(1000), rng()).any()
    assert torch.equal(compressor.apply(8 * v, rng()), 8 * compressor.apply(v, rng()))


@pytest.mark.parametrize("compressor", EVERY, ids=lambda c: c.text())
def test_text_and_back(compressor: Compressor) -> None:
    assert parse_compressor(compressor.text()) == compressor


@pytest.mark.parametrize("compressor", EVERY, ids=lambda c: c.text())
def test_mean_error_is_within_its_bound(compressor: Compressor) -> None:
    """Also where the bound is attained: one great number and 255 at the worst place beside it."""
    worst = []
    most = 2 ** (getattr(compressor, "bits", 2) - 1) - 1
    for t in (1 / (1 + np.sqrt(1 + 255 / most**2)), 0.4999):
        v = torch.full((256,), t, dtype=torch.float64)
        v[0] = most
        worst.append(v)
    for v in [*vectors(256)[:4], *worst]:
        squares = [float((compressor.apply(v, rng(k)) - v).square().sum() / v.square().sum()) for k in range(200)]
        spread = np.std(squares) / np.sqrt(len(squares))
        assert np.mean(squares) <= compressor.error(256) * (1 + 1e-9) + 4 * spread


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_bounds_of_quantize_are_attained(bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    for rounding, t in (("stochastic", 1 / (1 + np.sqrt(1 + 255 / most**2))), ("nearest", 0.49999)):
        v = torch.full((256,), t, dtype=torch.float64)
        v[0] = most
        c = fv.Quantize(bits, 256, rounding)
        found = np.mean([float((c.apply(v, rng(k)) - v).square().sum() / v.square().sum()) for k in range(200)])
        assert found == pytest.approx(c.error(256), rel=0.05)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounding_at_random_is_right_on_average_and_to_the_nearest_is_not(bits: int) -> None:
    v = torch.from_numpy(rng(3).standard_normal(256))
    step = float(v.abs().max()) / (2 ** (bits - 1) - 1)
    mean = torch.stack([fv.Quantize(bits).apply(v, rng(k)) for k in range(4000)]).mean(0)
    assert float((mean - v).abs().max()) < 4.5 * step / 2 / np.sqrt(4000)
    nearest = fv.Quantize(bits, rounding="nearest").apply(v, rng())
    assert float((nearest - v).abs().max()) > 4.5 * step / 2 / np.sqrt(4000)
    assert float((nearest - v).abs().max()) <= step / 2 * (1 + 1e-12)


def test_what_goes_with_a_residual_contracts() -> None:
    for compressor in EVERY:
        assert compressor.contractive().error(256) < 1 or compressor.contractive().error(256) == 0
    assert fv.Quantize(2).error(256) == 7.5
    assert fv.Quantize(2).contractive() == fv.Quantize(2, rounding="nearest")
    assert fv.Quantize(4).contractive() == fv.Quantize(4)


@pytest.mark.parametrize("bits", range(1, 20))
def test_bits_are_packed_densely_and_come_back(bits: int) -> None:
    codes = rng(bits).integers(0, 2**bits, 1003)
    data = packed(torch.from_numpy(codes), bits)
    assert len(data) == packed_bytes(1003, bits) == -(-1003 * bits // 8)
    assert np.array_equal(unpacked(data, 1003, bits), codes)
    as_bits = np.unpackbits(data, bitorder="little")[: 1003 * bits].reshape(1003, bits)
    assert np.array_equal(as_bits @ (1 << np.arange(bits)), codes)


def test_long_stretches_of_odd_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedvra.core.bits.AT_ONCE", 64)
    codes = rng().integers(0, 2**11, 1003)
    assert np.array_equal(unpacked(packed(torch.from_numpy(codes), 11), 1003, 11), codes)


def test_what_nobody_sent_is_refused() -> None:
    v = torch.arange(1.0, 101.0)
    for c in (fv.Quantize(4), fv.TopK(0.1), fv.TopK(0.02)):
        good = c.encode(c.shrink(v, rng()), 100)
        for bad in (good[:-1], torch.cat([good, good[:1]]), good[:0]):
            with pytest.raises(BadCodeError, match="bytes, expected"):
                c.decode(bad, 100, v.dtype)
    mask = fv.TopK(0.5).encode(fv.TopK(0.5).shrink(v, rng()), 100)
    mask[0] ^= 1  # one place more than numbers
    with pytest.raises(BadCodeError, match="places"):
        fv.TopK(0.5).decode(mask, 100, v.dtype)
    few = fv.TopK(0.02)
    places = few.encode(few.shrink(v, rng()), 100)
    for wrong in (127, 0):  # beyond the end, and the same place twice
        places[0], places[1] = (wrong | wrong << 7) & 255, (wrong | wrong << 7) >> 8
        with pytest.raises(BadCodeError, match="places"):
            few.decode(places, 100, v.dtype)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fv.Quantize(1), "2 to 8"),
        (lambda: fv.Quantize(16), "2 to 8"),
        (lambda: fv.Quantize(4, block=0), "block"),
        (lambda: fv.Quantize(4, rounding="up"), "rounding"),
        (lambda: fv.TopK(0), "share"),
        (lambda: fv.TopK(1.5), "share"),
        (lambda: fv.Chain(), "Chain takes compressors"),
        (lambda: fv.Chain(fv.Quantize(4), fv.TopK(0.1)), "has to come last"),
        (lambda: parse_compressor("quantise:4"), "did you mean 'quantize'"),
        (lambda: parse_compressor("quantize:four"), "whole number"),
        (lambda: parse_download("topk:0.1"), "bfloat16 or int8"),
        (lambda: as_download(fv.Chain(fv.TopK(0.1), fv.BFloat16())), "bfloat16 or int8"),
        (lambda: as_compressor(4), "fv.Quantize"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make: object, words: str) -> None:
    with pytest.raises(fv.UsageError, match=words):
        make()  # type: ignore[operator]


def test_every_compressor_is_found_by_name() -> None:
    assert {"quantize", "topk", "bfloat16", "int8"} <= set(COMPRESSORS.names())
    assert as_download("int8") == fv.Quantize(8, rounding="nearest")
    assert as_download("bfloat16") == fv.BFloat16()
    assert as_compressor("quantize:2") == fv.Quantize(2)
    assert as_compressor(None) is None


def test_what_is_not_finite_stays_so() -> None:
    """A run that diverges must be noticed, not rounded to something that looks right."""
    for bad in (float("nan"), float("inf")):
        v = torch.ones(300)
        v[5] = bad
        for c in (fv.Quantize(4), fv.BFloat16(), fv.TopK(0.1)):
            assert not bool(torch.isfinite(c.apply(v, rng())).all())
