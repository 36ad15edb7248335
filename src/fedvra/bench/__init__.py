"""Speed and memory, measured against a bare PyTorch loop and against the machine's own limits."""
