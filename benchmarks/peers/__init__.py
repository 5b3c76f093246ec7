"""Peers: MPI's forced algorithms, gloo, and PyTorch's own data parallelism on a transformer."""
