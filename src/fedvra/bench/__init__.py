"""Speed and memory, measured against a bare PyTorch loop, another checkout, and the machine's own limits.

Imports core, state, models, data, algorithms, engines.
"""
