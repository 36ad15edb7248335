"""Compressors by name, and as the command line writes them: ``quantize:4``, ``topk:0.1`` or ``topk:0.1+quantize:4``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fedvra.core.calls import Language
from fedvra.core.compressor import Compressor
from fedvra.core.errors import UsageError, require
from fedvra.core.registry import Registry

COMPRESSORS: Registry[Callable[..., Compressor]] = Registry("compressor", "fedvra.compress", group="fedvra.compressors")
"""Every compressor by its name on the command line."""

C = TypeVar("C", bound=Compressor)


def register(cls: type[C]) -> type[C]:
    """Class decorator: make a compressor known by its ``name``."""
    COMPRESSORS.add(cls.name, cls)
    return cls


def parse_compressor(text: str) -> Compressor:
    """The compressor that a text stands for; several, each of what the one before keeps, are joined by ``+``.

    >>> parse_compressor("quantize:4"), parse_compressor("topk:0.1+bfloat16").text()
    (Quantize(bits=4, block=256, rounding='stochastic'), 'topk:share=0.1+bfloat16')
    """
    from fedvra.compress.chain import Chain

    parts = [Language("compressor").make(part, COMPRESSORS.get) for part in text.split("+")]
    return parts[0] if len(parts) == 1 else Chain(*parts)


def as_compressor(value: Any, option: str = "compress") -> Compressor | None:
    """An upload's compressor from what a user gives: an object, its text, or None."""
    found = parse_compressor(value) if isinstance(value, str) else value
    require(
        found is None or isinstance(found, Compressor),
        f"{option} must be a compressor such as fv.Quantize(bits=4), its text 'quantize:4', or None, got {value!r}.",
    )
    return None if found is None else found


def parse_download(text: str) -> Compressor:
    """The compressor of a download: ``bfloat16``, ``int8``, or any other that sends every number.

    >>> parse_download("int8")
    Quantize(bits=8, block=256, rounding='nearest')
    """
    found = parse_compressor(text)
    if not found.dense:
        raise UsageError(
            f"compress_down: {text} leaves out most of the model, and clients have to start from all of it: use bfloat16 or "
            "int8."
        )
    return found


def as_download(value: Any) -> Compressor | None:
    """A download's compressor from what a user gives."""
    found = as_compressor(value, "compress_down")
    return None if found is None else parse_download(found.text())
