"""Checkpoints in a directory: each is published whole, by one rename, or not at all.

Every rank writes its own file.

    DIR/step-0000000123/manifest.json     step, vectors and the place of each piece, sizes and
    checksums, `meta`
                        rank-0000.bin …   what each rank held, one piece after the other

What is not complete has a hidden name, DIR/.step-…: a job that dies at any moment leaves whole
checkpoints, and left-overs that the next save removes. One run at a time may save in a directory:
it holds a lock on DIR/.lock, which the system takes away from a process that ends, however it does.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...errors import LaunchError
from ...support.checks import check_integer, together
from .format import (
    Checkpoint,
    Damaged,
    Json,
    Piece,
    Vectors,
    check_file,
    check_meta,
    chunks_of,
    file_name,
    pieces_of,
    read_manifest,
    vectors_of,
    write_file,
    write_manifest,
)
from .locking import lock

if TYPE_CHECKING:
    from mpi4py import MPI

Result = TypeVar("Result")

_NAME = re.compile(r"step-(\d+)(-replaced)?")


class Checkpoints:
    """The checkpoints in a directory. Collective, as its methods are.

    Parameters
    ----------
    directory : path
        Shared by all ranks; it is made if need be.
    comm : MPI.Intracomm
        Of the ranks that save and load together.
    keep : int
        A save leaves the newest `keep` of them.

    Raises
    ------
    LaunchError
        On all ranks, naming rank, host and path, where one cannot write there or rank 0 does not
        see what it wrote; and at every later failure of the file system.
    """

    def __init__(
        self, directory: str | os.PathLike[str], comm: MPI.Intracomm, keep: int = 3
    ) -> None:
        check_integer("keep", keep, 1)
        self.directory = Path(directory)
        self.comm = comm
        self.keep = keep
        self._root = comm.Get_rank() == 0
        self._on_root(
            f"make {directory}", lambda: self.directory.mkdir(parents=True, exist_ok=True)
        )
        with self._staging("step-probe") as path:
            self._write_files(path, {})

    def save(self, step: int, vectors: Vectors, totals: Mapping[str, int], meta: Json) -> Path:
        """Write a checkpoint; one with the same step is replaced.

        When it returns, the checkpoint is on the disk.

        Parameters
        ----------
        step : int
            From 0.
        vectors : dict of str to list of (int, ndarray)
            What this rank holds: ``{name: [(start, 1-D array), …]}``, NumPy or CuPy, float16,
            bfloat16, float32 or float64. Together the ranks hold each element of 0 to
            ``totals[name]`` once.
        totals : dict of str to int
            Elements of each vector.
        meta : dict
            What JSON can hold, equal on all ranks (rank 0's is written).

        Returns
        -------
        Path

        Raises
        ------
        ArgumentError
            On all ranks, where that is not so.
        LaunchError
            On all ranks, where one cannot write.

        Notes
        -----
        Cost: each rank writes its bytes once, and waits for its disk (fsync); messages only
        describe the pieces.
        """
        described = (
            self.comm.gather(self.together("save", lambda: _described(step, vectors, meta))) or []
        )
        layout = self._on_root("save", lambda: vectors_of(totals, described)) or {}
        name = f"step-{step:010d}"
        self._on_root(f"remove left-overs in {self.directory}", self._remove_leftovers)
        with self._staging(name) as path:
            files = self._write_files(path, vectors)
            self._on_root(f"write {path}", lambda: self._publish(path, step, layout, files, meta))
        self._on_root(f"remove old checkpoints in {self.directory}", lambda: self._prune(step))
        return self.directory / name

    def load(self, accept: Callable[[Json], None] | None = None) -> Checkpoint | None:
        """The newest checkpoint that is whole.

        A damaged one is skipped, and rank 0 says so on standard error.

        Parameters
        ----------
        accept : callable, optional
            ``accept(meta)`` may raise an MpicollError, for a checkpoint of another model, say: on
            all ranks.

        Returns
        -------
        Checkpoint or None
            The same on all ranks; None if there is none.

        Raises
        ------
        LaunchError
            On all ranks, where one cannot read the directory.

        Notes
        -----
        Cost: the ranks read all bytes of the checkpoint once, each some of the files, to verify
        the checksums.
        """
        for name in self._listed():
            path = self.directory / name
            try:
                manifest = self._verified(path)
            except Damaged as damage:
                if self._root:
                    print(
                        f"mpicoll: checkpoint {path} is skipped: {damage}",
                        file=sys.stderr,
                        flush=True,
                    )
                continue
            if accept:
                self.together(f"use {path}", lambda: accept(manifest["meta"]))
            return Checkpoint(path, manifest)
        return None

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are there, whole or not, newest first. Collective."""
        return [_step_of(name) for name in self._listed()]

    def _listed(self) -> list[str]:
        names: list[str] = self.comm.bcast(self._on_root(f"list {self.directory}", self._names))
        return names

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else save in the directory meanwhile. Collective.

        Raises
        ------
        LaunchError
            On all ranks, where another run does.
        """
        with ExitStack() as stack:
            what = f"lock {self.directory}"
            self._on_root(
                what, lambda: stack.enter_context(lock(self.directory / ".lock", self.directory))
            )
            yield

    def together(self, what: str, act: Callable[[], Result]) -> Result:
        """What act() gives on this rank; the first failure of any rank is raised on all."""

        def explained() -> Result:
            try:
                return act()
            except OSError as error:
                raise LaunchError(_explained(self.comm.Get_rank(), what, error)) from None

        return together(self.comm, explained)

    def _verified(self, path: Path) -> Json:
        manifest: Json = self.comm.bcast(self._on_root(f"read {path}", lambda: read_manifest(path)))
        rank = self.comm.Get_rank()
        size = self.comm.Get_size()
        files = manifest["files"]

        def check_mine() -> None:
            for index in range(rank, len(files), size):
                check_file(path, index, files[index])

        self.together(f"read {path}", check_mine)
        return manifest

    def _write_files(self, path: Path, vectors: Vectors) -> Sequence[dict[str, int]]:
        """Every rank's file; on rank 0 the list of their sizes and checksums."""
        file = path / file_name(self.comm.Get_rank())
        files = (
            self.comm.gather(
                self.together(f"write {file}", lambda: write_file(file, chunks_of(vectors)))
            )
            or []
        )
        self._on_root(f"read {path}", lambda: _check_seen(path, files))
        return files

    def _publish(
        self, path: Path, step: int, layout: Json, files: Sequence[dict[str, int]], meta: Json
    ) -> None:
        """Give a finished directory its name; each state on the way is one that load can use."""
        write_manifest(path, step, layout, files, meta)
        _flush(path)
        final = self.directory / f"step-{step:010d}"
        if final.exists():
            replaced = final.with_name(f"{final.name}-replaced")
            if replaced.exists():
                self._discard(replaced)
            final.rename(replaced)
        path.rename(final)
        _flush(self.directory)

    def _prune(self, step: int) -> None:
        """Remove all but the newest.

        Later steps stay: only the user knows whether another run still needs them.
        """
        names = [name for name in self._names() if _step_of(name) <= step]
        kept = [name for name in names if not name.endswith("-replaced")][: self.keep]
        for name in names:
            if name not in kept:
                self._discard(self.directory / name)

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint, hidden first: half removed it would be reported as damaged."""
        hidden = self.directory / _hidden(path.name)
        path.rename(hidden)
        # NFS keeps files that are still mapped; the next save removes them
        shutil.rmtree(hidden, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        for path in self.directory.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _names(self) -> list[str]:
        """Newest first; a replaced one after that which replaces it."""
        found = [match for match in map(_NAME.fullmatch, os.listdir(self.directory)) if match]
        return [
            match[0] for match in sorted(found, key=lambda match: (-int(match[1]), match[2] or ""))
        ]

    @contextmanager
    def _staging(self, name: str) -> Iterator[Path]:
        """A new directory under a hidden name; removed afterwards unless it was renamed."""
        path = self.directory / self.comm.bcast(_hidden(name))
        self._on_root(f"make {path}", path.mkdir)
        try:
            yield path
        finally:
            if self._root:
                shutil.rmtree(path, ignore_errors=True)

    def _on_root(self, what: str, act: Callable[[], Result]) -> Result | None:
        """What act() gives on rank 0, None elsewhere; its failure is raised on all ranks."""
        return self.together(what, act if self._root else lambda: None)


def _step_of(name: str) -> int:
    """The step of a checkpoint, by its name."""
    return int(name.removesuffix("-replaced").removeprefix("step-"))


def _described(step: int, vectors: Vectors, meta: Json) -> list[Piece]:
    check_integer("step", step, 0)
    check_meta(meta)
    return pieces_of(vectors)


def _explained(rank: int, what: str, error: OSError) -> str:
    text = (
        f"checkpoints: rank {rank} on {socket.gethostname()} cannot {what} "
        f"({error.strerror or error})"
    )
    if rank and isinstance(error, FileNotFoundError):
        return (
            f"{text}: it does not see what rank 0 made there; the directory must be shared by all "
            "nodes"
        )
    return (
        f"{text}; expected a directory with enough room that every rank can write, shared by all "
        "nodes"
    )


def _check_seen(path: Path, files: Sequence[dict[str, int]]) -> None:
    """Raise LaunchError unless this rank sees the file of each rank."""
    for rank, file in enumerate(files):
        seen = path / file_name(rank)
        if not seen.exists() or seen.stat().st_size != file["bytes"]:
            raise LaunchError(
                f"checkpoints: rank 0 on {socket.gethostname()} does not see {seen} as rank "
                f"{rank} wrote it; the directory must be shared by all nodes"
            )


def _hidden(name: str) -> str:
    return f".{name}.{secrets.token_hex(4)}"


def _flush(directory: str | os.PathLike[str]) -> None:
    """Let the names in a directory reach the disk."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
