"""Checkpoints in a directory: every rank writes its own file, and the whole appears by one rename, or not at all.

    DIR/step-0000000123/manifest.json     step, vectors and the place of each piece, sizes and checksums, `meta`
                        rank-0000.bin …   what each rank held, one piece after the other

What is not complete has a hidden name, DIR/.step-…: a job that dies at any moment leaves whole checkpoints, and left-overs
that the next save removes. One run at a time may save in a directory.
"""

import os
import re
import secrets
import shutil
import socket
import sys
from contextlib import contextmanager
from pathlib import Path

from ...errors import LaunchError, MpicollError
from ...support.checks import check_integer
from .format import (
    Checkpoint,
    Damaged,
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

_NAME = re.compile(r"step-(\d+)(-replaced)?")


class Checkpoints:
    """The checkpoints in `directory`, which is made if need be; a save leaves the newest `keep` of them.

    Collective over `comm`, as save and load are. It makes sure that every rank can write in the directory and that rank 0
    sees what they write: LaunchError on all ranks otherwise, naming rank, host and path. So does every later failure of
    the file system.
    """

    def __init__(self, directory, comm, keep=3):
        check_integer("keep", keep, 1)
        self.directory, self.comm, self.keep = Path(directory), comm, keep
        self._root = comm.Get_rank() == 0
        self._on_root(f"make {directory}", lambda: self.directory.mkdir(parents=True, exist_ok=True))
        with self._staging("step-probe") as path:
            self._write_files(path, {})

    def save(self, step, vectors, totals, meta):
        """Write a checkpoint; returns its path. One with the same step is replaced.

        `vectors` is {name: [(start, 1-D array), …]}, what this rank holds, NumPy or CuPy, float16, bfloat16, float32 or
        float64: together the ranks hold each element of 0 to totals[name] once. `meta` is a dict that JSON can hold, equal
        on all ranks (rank 0's is written). Raises ArgumentError on all ranks where that is not so. When it returns, the
        checkpoint is on the disk. Cost: each rank writes its bytes once, and waits for its disk (fsync).
        """
        rows = self.comm.gather(self._together("save", lambda: _described(step, vectors, meta)))
        layout = self._on_root("save", lambda: vectors_of(totals, rows))
        name = f"step-{step:010d}"
        self._on_root(f"remove left-overs in {self.directory}", self._remove_leftovers)
        with self._staging(name) as path:
            files = self._write_files(path, vectors)
            self._on_root(f"write {path}", lambda: self._publish(path, step, layout, files, meta))
        self._on_root(f"remove old checkpoints in {self.directory}", lambda: self._prune(step))
        return self.directory / name

    def load(self, accept=None):
        """The newest checkpoint that is whole, as a `Checkpoint`, the same on all ranks; None if there is none.

        One that is damaged is skipped, and rank 0 says so on standard error. `accept(meta)` may raise an MpicollError,
        for a checkpoint of another model, say: it is raised on all ranks. Cost: the ranks read all bytes of the
        checkpoint once, each some of the files, to verify the checksums.
        """
        names = self.comm.bcast(self._on_root(f"list {self.directory}", self._names))
        for name in names:
            path = self.directory / name
            try:
                manifest = self._verified(path)
            except Damaged as damage:
                if self._root:
                    print(f"mpicoll: checkpoint {path} is skipped: {damage}", file=sys.stderr, flush=True)
                continue
            if accept:
                self._together(f"use {path}", lambda: accept(manifest["meta"]))
            return Checkpoint(path, manifest)
        return None

    def steps(self):
        """The steps of the checkpoints that are there, whole or not, newest first. Collective."""
        names = self.comm.bcast(self._on_root(f"list {self.directory}", self._names))
        return [int(_NAME.fullmatch(name)[1]) for name in names]

    def _verified(self, path):
        manifest = self.comm.bcast(self._on_root(f"read {path}", lambda: read_manifest(path)))
        rank, size, files = self.comm.Get_rank(), self.comm.Get_size(), manifest["files"]

        def check_mine():
            for index in range(rank, len(files), size):
                check_file(path, index, files[index])

        self._together(f"read {path}", check_mine)
        return manifest

    def _write_files(self, path, vectors):
        """Every rank's file; on rank 0 the list of their sizes and checksums."""
        file = path / file_name(self.comm.Get_rank())
        files = self.comm.gather(self._together(f"write {file}", lambda: write_file(file, chunks_of(vectors))))
        self._on_root(f"read {path}", lambda: _check_seen(path, files))
        return files

    def _publish(self, path, step, layout, files, meta):
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

    def _prune(self, step):
        """Remove all but the newest; later steps stay, as only the user knows whether another run still needs them."""
        names = [name for name in self._names() if int(_NAME.fullmatch(name)[1]) <= step]
        kept = [name for name in names if not name.endswith("-replaced")][: self.keep]
        for name in names:
            if name not in kept:
                self._discard(self.directory / name)

    def _discard(self, path):
        """Remove a checkpoint: hidden first, since one that is half removed would be reported as damaged."""
        hidden = self.directory / _hidden(path.name)
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)  # NFS keeps files that are still mapped; the next save removes them

    def _remove_leftovers(self):
        for path in self.directory.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _names(self):
        """Newest first; a replaced one after that which replaces it."""
        found = [match for match in map(_NAME.fullmatch, os.listdir(self.directory)) if match]
        return [match[0] for match in sorted(found, key=lambda match: (-int(match[1]), match[2] or ""))]

    @contextmanager
    def _staging(self, name):
        """A new directory under a hidden name of its own; it is gone afterwards, unless it was renamed."""
        path = self.directory / self.comm.bcast(_hidden(name))
        self._on_root(f"make {path}", path.mkdir)
        try:
            yield path
        finally:
            if self._root:
                shutil.rmtree(path, ignore_errors=True)

    def _on_root(self, what, act):
        """What act() gives on rank 0, None elsewhere; its failure is raised on all ranks."""
        return self._together(what, act if self._root else lambda: None)

    def _together(self, what, act):
        """What act() gives on this rank; where it fails on any, the first failure is raised on all: nobody waits."""
        result, failure = None, None
        try:
            result = act()
        except MpicollError as error:
            failure = error
        except OSError as error:
            failure = LaunchError(_explained(self.comm.Get_rank(), what, error))
        for first in self.comm.allgather(failure):
            if first:
                raise first
        return result


def _described(step, vectors, meta):
    check_integer("step", step, 0)
    check_meta(meta)
    return pieces_of(vectors)


def _explained(rank, what, error):
    text = f"checkpoints: rank {rank} on {socket.gethostname()} cannot {what} ({error.strerror or error})"
    if rank and isinstance(error, FileNotFoundError):
        return f"{text}: it does not see what rank 0 made there; the directory must be shared by all nodes"
    return f"{text}; expected a directory with enough room that every rank can write, shared by all nodes"


def _check_seen(path, files):
    """Raise LaunchError unless this rank sees the file of each rank."""
    for rank, file in enumerate(files):
        seen = path / file_name(rank)
        if not seen.exists() or seen.stat().st_size != file["bytes"]:
            raise LaunchError(f"checkpoints: rank 0 on {socket.gethostname()} does not see {seen} as rank {rank} wrote it; "
                              "the directory must be shared by all nodes")  # fmt: skip


def _hidden(name):
    return f".{name}.{secrets.token_hex(4)}"


def _flush(directory):
    """Let the names in a directory reach the disk."""
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
