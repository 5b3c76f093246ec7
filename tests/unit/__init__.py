"""Tests in this process; no MPI is launched."""
