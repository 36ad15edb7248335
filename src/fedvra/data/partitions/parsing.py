"""Partitions as the command line writes them."""

from __future__ import annotations

from fedvra.core.calls import Language
from fedvra.data.partitions.base import PARTITIONS, Partition


def parse_partition(text: str) -> Partition:
    """Read ``name``, ``name:value`` or ``name:field=value,field=value``; the fields are those of the dataclass, in order.

    >>> parse_partition("iid"), parse_partition("dirichlet:0.2")
    (IID(), Dirichlet(alpha=0.2))
    >>> parse_partition("quantity:power=1.5,min_size=3")
    QuantitySkew(alpha=None, power=1.5, min_size=3)
    """
    return Language("partition").make(text, lambda name: PARTITIONS.get(name.lower()))
