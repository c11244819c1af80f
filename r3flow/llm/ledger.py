"""The ledger of paid calls: one append-only file for the whole workspace; the resume point, the cache and the audit of what was bought.

A line is one answered request: its key (see `ChatClient.key`), where and whom it asked, the answer, the token usage and the time. Never a
key or a header. Processes share the file: every append holds its lock, and a line that a dead process left half-written is cut off first.

Power loss may cost the last second (the file is synced that often); a killed process costs nothing that was appended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from r3flow.errors import DataError

DEFAULT = ".work/ledger.jsonl"
SYNC_S = 1.0
_PREFIX, _KEY = b'{"key": "', 32
_log = logging.getLogger(__name__)


class Ledger:
    """Key -> record. Only keys and places are kept in memory (about 150 bytes a record); records are read when asked for."""

    def __init__(self, path: str | Path = DEFAULT) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataError(f"{self.path}: the ledger of paid calls can not be opened: {error.strerror}") from None
        self._places: dict[bytes, tuple[int, int]] = {}
        self._end = 0  # everything before is indexed
        self._synced = time.monotonic()
        self._damaged = 0
        with self._locked():
            self._repair()
            self._catch_up()

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of `key`, also one that another process appended meanwhile; None if nobody paid for it yet."""
        name = key.encode()
        place = self._places.get(name)
        if place is None:
            self._catch_up()
            place = self._places.get(name)
        if place is None:
            return None
        record = _parse(os.pread(self._file, place[1], place[0]))
        if record is None or record.get("key") != key:
            self._note_damage(place[0])
            del self._places[name]
            return None
        return record

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Append `record` (JSON-able, without "key"). Raises DataError if the disk is full; the file stays whole."""
        line = json.dumps({"key": key, **record}, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._locked():
            self._repair()
            self._catch_up()
            start = os.fstat(self._file).st_size
            try:
                written = os.write(self._file, line)
            except OSError as error:
                written, problem = 0, error.strerror
            else:
                problem = "the disk is full"
            if written != len(line):
                os.ftruncate(self._file, start)
                raise DataError(f"{self.path}: the ledger of paid calls can not be written: {problem}; free space and run again")
            self._places[key.encode()] = (start, len(line))
            self._end = start + len(line)
        if time.monotonic() - self._synced > SYNC_S:
            self.sync()

    def records(self) -> Iterator[dict[str, Any]]:
        """Every record, oldest first. Reads the whole file."""
        with open(self.path, "rb") as file:
            for line in file:
                record = _parse(line)
                if record is not None:
                    yield record

    def sync(self) -> None:
        """Make what was appended safe from power loss."""
        os.fsync(self._file)
        self._synced = time.monotonic()

    def close(self) -> None:
        self.sync()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _repair(self) -> None:
        """Cut off a last line without its end. Only with the lock: nobody is in the middle of a write then."""
        size = os.fstat(self._file).st_size
        if size == 0 or os.pread(self._file, 1, size - 1) == b"\n":
            return
        cut = size
        while cut > 0:
            start = max(0, cut - (1 << 16))
            found = os.pread(self._file, cut - start, start).rfind(b"\n")
            if found >= 0:
                cut = start + found + 1
                break
            cut = start
        _log.warning("%s: cut off a half-written last line of %d bytes", self.path, size - cut)
        os.ftruncate(self._file, cut)

    def _catch_up(self) -> None:
        """Index the whole lines that were appended since the last time, by this process or another."""
        size = os.fstat(self._file).st_size
        if size < self._end:
            raise DataError(f"{self.path}: the ledger of paid calls became shorter while it was in use; run again")
        while self._end < size:
            block = os.pread(self._file, min(size - self._end, 1 << 24), self._end)
            last = block.rfind(b"\n") + 1
            if not last:
                if len(block) < size - self._end:
                    raise DataError(f"{self.path}: a line of more than 16 MB at byte {self._end}; this is no ledger of R3Flow")
                return  # another process is in the middle of a line
            start = 0
            while start < last:
                stop = block.index(b"\n", start) + 1
                key = block[start + len(_PREFIX) : start + len(_PREFIX) + _KEY]
                if block.startswith(_PREFIX, start) and block[start + len(_PREFIX) + _KEY : start + len(_PREFIX) + _KEY + 1] == b'"':
                    self._places[key] = (self._end + start, stop - start)
                elif block[start:stop].strip():
                    self._note_damage(self._end + start)
                start = stop
            self._end += last

    def _note_damage(self, place: int) -> None:
        self._damaged += 1
        if self._damaged == 1:
            _log.warning("%s: a damaged line at byte %d is left out; its request will be asked again", self.path, place)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "key" in record else None
