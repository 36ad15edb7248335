"""Data that come in the forms of other libraries and benchmarks, one file each: tables, Hugging Face, LEAF, FLamby."""
