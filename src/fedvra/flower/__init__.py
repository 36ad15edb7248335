"""FedVRA and its relatives on a real federation, with Flower (https://flower.ai) as the engine.

The server side is :class:`Strategy`, the client side the decorator :func:`client` or, shorter, :func:`client_app`; see
``docs/federation.md``. Flower is the extra ``fedvra[flower]``: nothing else of the library needs it.

Imports core, compress, privacy, state, policies, samplers, models, data, algorithms, local, problems, engines, runs,
show, callbacks.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from fedvra.core.errors import UsageError

_HOMES = {
    "fedvra.local.own_loop": ["LocalWork"],
    "fedvra.flower.mask_table": ["MaskedSum"],
    "fedvra.flower.node": ["client", "client_app"],
    "fedvra.flower.client_ledger": ["Ledger"],
    "fedvra.flower.strategy": ["Audit", "Strategy"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def require_flower() -> None:
    """Say in one sentence what to install where Flower is missing."""
    if importlib.util.find_spec("flwr") is None:
        raise UsageError("fedvra.flower needs Flower, which is not installed: pip install 'fedvra[flower]'.")


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedvra.flower' has no attribute {name!r}")
    require_flower()
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
