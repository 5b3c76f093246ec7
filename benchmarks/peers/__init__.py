"""What mpicoll is measured against: MPI's forced algorithms, gloo, and PyTorch's own data
parallelism on a transformer.
"""
