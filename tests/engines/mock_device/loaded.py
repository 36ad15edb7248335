"""Torch with the mock device. To be imported first, since torch looks for its accelerator once.

Its library is named by ``$MOCK_DEVICE``, so that processes that are started from here have it as well.
"""

from __future__ import annotations

import ctypes
import os

ctypes.CDLL(os.environ["MOCK_DEVICE"], mode=ctypes.RTLD_GLOBAL)

import torch  # noqa: E402

FREE = {"bytes": 1 << 30}
torch.cuda._lazy_init = lambda: None
torch.cuda.is_available = lambda: os.environ.get("CUDA_VISIBLE_DEVICES") != ""
torch.cuda.mem_get_info = lambda device=None: (FREE["bytes"], 1 << 30)
torch.cuda.get_device_name = lambda device=None: "the host in disguise"
torch.cuda.manual_seed_all = torch.cuda.manual_seed = lambda seed: None
