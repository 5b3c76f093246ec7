"""Spack: `spack repo add` a repository with this folder under `packages/`, and `spack install mpicoll ^openmpi`."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import depends_on, license, run_after, version


class Mpicoll(PythonPackage):
    """Collective communication for Python on MPI: algorithms as data, proved, measured, used for training."""

    # the sdist that .ci/wheels writes, in the folder where spack runs; its SHA-256 is in the bill of materials beside it
    url = "file:///opt/sources/mpicoll-0.1.0.tar.gz"

    license("BSD-3-Clause", checked_by="the mpicoll developers")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-numpy@1.25:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))

    @run_after("install")
    def verify(self):
        """The proof of every algorithm needs no MPI job."""
        python = self.spec["python"].command
        python("-m", "mpicoll", "verify", "--max-size", "4")
