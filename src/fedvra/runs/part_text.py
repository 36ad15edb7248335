"""Options that name a part of a run, each read into the shortest text that stands for it: see ``option_text``."""

from __future__ import annotations

from typing import Any

from fedvra.runs.option_text import text


def local(name: str, value: Any) -> str:
    """A local optimiser with what differs from its default.

    >>> local("local", "sgd: momentum = 0.9")
    'sgd:momentum=0.9'
    """
    from fedvra.core.optimisers import parse_local

    return parse_local(text(name, value)).text()


def deploy(name: str, value: Any) -> str:
    """The model that a run is for.

    >>> deploy("deploy", "ema: 0.90")
    'ema:0.9'
    """
    from fedvra.core.deploy import parse_deploy

    return parse_deploy(text(name, value)).text()


def compressor(name: str, value: Any) -> str:
    """A compressor with what differs from its default.

    >>> compressor("compress", "topk: 0.1 + quantize:4"), compressor("compress_down", "int8")
    ('topk:share=0.1+quantize', 'quantize:bits=8,rounding=nearest')
    """
    from fedvra.compress import parse_compressor, parse_download

    return (parse_download if name == "compress_down" else parse_compressor)(text(name, value)).text()


def privacy(name: str, value: Any) -> str:
    """Record-level privacy with what differs from its default.

    >>> privacy("privacy", "record: noise=2, delta=1e-5")
    'record:clip=1,noise=2'
    """
    from fedvra.core.record_dp import parse_privacy

    return parse_privacy(text(name, value)).text()
