"""Models that the library had never seen, each beside a plain autograd loop."""
