"""A federation that fails on demand; driven by tests/test_flower_processes.py."""
