"""The tests, by what they need: `unit` nothing, `mpi` to be run under mpiexec, `system` whole machines; `support` is theirs."""
