"""Who holds which samples: one file per partition.

A new partition is a frozen dataclass with an ``assign`` method and a line ``PARTITIONS.add("its-name", ItsClass)``, in a file
of this package or in a package of your own that names it under the entry-point group ``fedvra.data.partitions``.
"""

from fedvra.data.partitions.base import PARTITIONS, UNASSIGNED, Partition
from fedvra.data.partitions.column import ByColumn
from fedvra.data.partitions.dirichlet import Dirichlet
from fedvra.data.partitions.dirichlet_by_class import DirichletByClass
from fedvra.data.partitions.iid import IID
from fedvra.data.partitions.parsing import parse_partition
from fedvra.data.partitions.quantity import QuantitySkew
from fedvra.data.partitions.shards import Shards

__all__ = [
    "IID",
    "PARTITIONS",
    "UNASSIGNED",
    "ByColumn",
    "Dirichlet",
    "DirichletByClass",
    "Partition",
    "QuantitySkew",
    "Shards",
    "parse_partition",
]
