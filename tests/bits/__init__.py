"""Runs of every kind, by the public names alone, so that an older checkout can be asked for the same numbers."""
