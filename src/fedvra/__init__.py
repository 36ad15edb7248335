"""fedvra: client-variance-reduced adaptive federated learning.

Names are imported on first use, so that ``import fedvra`` and ``fedvra --help`` do not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "fedvra.algorithms.base": ["Algorithm", "register"],
    "fedvra.algorithms.fedavg": ["FedAvg"],
    "fedvra.algorithms.fedprox": ["FedProx"],
    "fedvra.algorithms.fednova": ["FedNova"],
    "fedvra.algorithms.scaffold": ["Scaffold"],
    "fedvra.algorithms.vrlsgd": ["VRLSGD"],
    "fedvra.algorithms.fedadmm": ["FedADMM"],
    "fedvra.algorithms.fedpd": ["FedPD"],
    "fedvra.algorithms.feddyn": ["FedDyn"],
    "fedvra.algorithms.fedvra": ["FedVRA"],
    "fedvra.algorithms.fedvrau": ["FedVRAU"],
    "fedvra.clock.system": ["System"],
    "fedvra.clock.windows": ["Windows"],
    "fedvra.compress": ["BFloat16", "Chain", "Quantize", "TopK"],
    "fedvra.core.compressor": ["Compressor"],
    "fedvra.core.cohort": ["Cohort"],
    "fedvra.core.rule": ["Coefficients"],
    "fedvra.core.loops": ["Loop"],
    "fedvra.core.record_dp": ["RecordDP"],
    "fedvra.core.optimisers": ["SGD", "Adam", "AdamW", "Torch"],
    "fedvra.data.adapters.tables": ["from_table"],
    "fedvra.data.adapters.hugging_face": ["from_hf"],
    "fedvra.data.adapters.leaf": ["from_leaf"],
    "fedvra.data.adapters.flamby": ["from_centers", "from_flamby_heart"],
    "fedvra.data.dataset": ["Dataset", "FederatedData", "Transform", "per_client", "split"],
    "fedvra.data.partitions": [
        "Partition",
        "IID",
        "ByColumn",
        "Dirichlet",
        "DirichletByClass",
        "QuantitySkew",
        "Shards",
    ],
    "fedvra.data.sources": ["load"],
    "fedvra.callbacks.base": ["Callback"],
    "fedvra.callbacks.client_results": ["ClientResults", "TrainLosses"],
    "fedvra.callbacks.diagnostics": ["Diagnostics"],
    "fedvra.callbacks.observer": ["Observer"],
    "fedvra.callbacks.stationarity": ["StationarityGap"],
    "fedvra.callbacks.stopping": ["Patience", "Until"],
    "fedvra.core.errors": ["DivergedError", "FedvraError", "StopRun", "UsageError"],
    "fedvra.runs.history": ["History"],
    "fedvra.policies": ["Auto", "InverseP", "Remark1", "Schedule", "Stepwise", "over_rounds"],
    "fedvra.engines.experiment": ["Experiment"],
    "fedvra.engines.federation": ["Federation"],
    "fedvra.engines.ray_engine": ["Ray"],
    "fedvra.local.metrics": ["Perplexity", "RMSE"],
    "fedvra.local.own_loop": ["LocalWork"],
    "fedvra.local.protocol": ["LocalSolver", "Solver", "SolverSettings"],
    "fedvra.problems.base": ["Problem"],
    "fedvra.problems.clustering": ["Clustering"],
    "fedvra.problems.quadratic": ["Quadratic"],
    "fedvra.problems.semisupervised": ["SemiSupervised"],
    "fedvra.problems.supervised": ["Supervised"],
    "fedvra.problems.two_block": ["TwoBlock"],
    "fedvra.problems.projections": [
        "Affine",
        "Ball",
        "Box",
        "NonNegative",
        "Own",
        "Product",
        "Projection",
        "Simplex",
        "WholeSpace",
    ],
    "fedvra.policies.refusals": ["MedianNorm", "MultiKrum"],
    "fedvra.samplers": [
        "Availability",
        "Bernoulli",
        "Cyclic",
        "Full",
        "PowerOfChoice",
        "Replay",
        "Sampler",
        "Uniform",
        "Weighted",
    ],
    "fedvra.theory": ["Theorem1", "Theorem2"],
    "fedvra.theory.check": ["check"],
    "fedvra.studies.objects": ["compare", "tune"],
    "fedvra.studies.simulation": ["simulate"],
    "fedvra.state.model_file": ["load_model", "save_model"],
    "fedvra.tasks.base": ["Task"],
    "fedvra.samplers.work": ["Epochs", "RandomEpochs", "Speeds", "Steps", "Work"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedvra' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
