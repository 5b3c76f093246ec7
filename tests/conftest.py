"""The outer run launches the MPI tests itself, so it does not collect them; under mpiexec they are all there is."""


def pytest_ignore_collect(collection_path, config):
    under_mpi = config.getoption("--with-mpi", default=False)
    if collection_path.name == "mpi" and collection_path.is_dir() and not under_mpi:
        return True
    return None
