"""Pictures and tables of runs, made from what they left on disk."""
