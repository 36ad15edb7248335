"""Data: what there is (``sources``), who holds it (``partitions``, ``split``), and in what order it is read (``batches``).

Nothing is imported here, so that naming a data set or a partition does not cost the import of torch.

Imports core.
"""
