"""A federation that fails on demand; driven by tests/flower_shards.py."""
