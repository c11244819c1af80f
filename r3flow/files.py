"""Reading and writing of files: nothing half-written stays, and bad input is named by file and line."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from r3flow.errors import DataError

T = TypeVar("T")
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ", b"PK\x03\x04")
"""How packed files begin: gzip, zstd, bzip2, xz, zip."""

UNREADABLE = (IsADirectoryError, NotADirectoryError, PermissionError)
"""What opening a path throws that is there but is no file, stands below a file, or may not be read."""


def check_folder_of(path: str | Path) -> None:
    """Raises DataError if a file stands where a folder on the way to `path` must be."""
    blocked = next((parent for parent in Path(path).parents if parent.exists() and not parent.is_dir()), None)
    if blocked is not None:
        raise DataError(f"{blocked}: is a file, but {path} needs a folder there; move it away and run again")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it over `path` (file or folder) when the block ends without error.

    Raises DataError where `path` can have no folder.
    """
    target = Path(path)
    check_folder_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if temporary.is_dir() and target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        elif temporary.exists():
            temporary.unlink()


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, atomically; equal values give equal bytes."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Parse a JSON file. Raises DataError that names the file (also one that cannot be read), and the line where the JSON breaks."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a UTF-8 file, blank lines left out.

    Raises DataError for a file that is missing or cannot be read, and for invalid UTF-8, with the line's number.
    """
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    if number == 1 and raw.startswith(_PACKED):
                        raise DataError(f"{path}: is packed (gzip, zstd, bzip2, xz or zip); unpack it first") from None
                    raise DataError(f"{path}:{number}: not valid UTF-8; convert the file to UTF-8") from None
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def read_jsonl(path: str | Path, build: Callable[[dict[str, Any]], T]) -> Iterator[T]:
    """Yield `build(object)` for each line. A ValueError, KeyError or TypeError of `build` becomes a DataError with file and line."""
    for number, line in read_lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or thousands of brackets
            raise DataError(f"{path}:{number}: not valid JSON: {getattr(error, 'msg', error)}{_array(line)}") from None
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, got {type(value).__name__}{_array(line)}")
        try:
            if "\\u" in line:  # JSON may spell half a surrogate pair, which no file can hold as UTF-8 later on
                json.dumps(value, ensure_ascii=False).encode()
            yield build(value)
        except KeyError as error:
            raise DataError(f"{path}:{number}: missing field {error}") from None
        except UnicodeEncodeError:
            raise DataError(f"{path}:{number}: holds half a surrogate pair, which is no character; write it as UTF-8") from None
        except (TypeError, ValueError) as error:
            raise DataError(f"{path}:{number}: {error}") from None


def _array(line: str) -> str:
    """What to do about a file that is one JSON array."""
    return "; one object a line is wanted, not an array: jq -c '.[]' FILE" if line.lstrip().startswith("[") else ""


def write_jsonl(path: str | Path, records: Iterable[dict[str, Any]]) -> int:
    """Write one JSON object a line, atomically; returns the number of lines."""
    count = 0
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def digest(value: Any) -> str:
    """32 hex digits (128 bits of SHA-256) of a JSON-able value, independent of key order."""
    text = json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def file_digest(path: str | Path) -> str:
    """32 hex digits of SHA-256 over a file's bytes, or over the names and bytes of a folder's files.

    What Python writes beside modules (`__pycache__`) does not count, as it does not for DVC: importing a module changes nothing.
    """
    path = Path(path)
    total = hashlib.sha256()
    for item in sorted(p for p in path.rglob("*") if p.is_file() and p.parent.name != "__pycache__") if path.is_dir() else [path]:
        if path.is_dir():
            total.update(item.relative_to(path).as_posix().encode() + b"\0")
        with open(item, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                total.update(block)
    return total.hexdigest()[:32]
