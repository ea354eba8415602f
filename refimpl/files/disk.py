"""Files on disk are written completely or not at all, and checked as they are read."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import brief

PathLike = str | os.PathLike[str]
LARGEST_TEXT = 2**24  # bytes of a text or a tokenizer; the published ones have about 2^20


def target_file(who: str, path: PathLike) -> Path:
    """The file to be written, behind any symbolic link; refused now if it cannot be written."""
    target = Path(os.path.realpath(path))
    is_other = os.path.exists(path) and not os.path.isfile(path)
    if is_other or os.fspath(path) in ("", "-", "/dev/stdout", "/dev/stderr"):
        problem = "not a regular file"
    elif not target.parent.is_dir():
        problem = "no such folder"
    elif not os.access(target.parent, os.W_OK | os.X_OK):
        problem = "the folder is not writable"
    else:
        return target
    raise OSError(f"{who}: cannot write {path}: {problem}")


@contextmanager
def located(about: str) -> Iterator[None]:
    """The message of a ValueError inside this block begins with `about`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{about}: {error}") from error


@contextmanager
def replacing(who: str, target: Path, mode: str = "xb") -> Iterator[IO[Any]]:
    """A new file that replaces the target if the block succeeds, and otherwise leaves no trace."""
    draft = target.with_name(f".refimpl-{os.getpid()}-{time.time_ns()}.tmp")
    try:
        with open(draft, mode, encoding=None if "b" in mode else "utf-8") as file:
            yield file
        os.replace(draft, target)
    except OSError as error:
        raise OSError(f"{who}: cannot write {target}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def file_size(who: str, path: PathLike) -> int:
    if not os.path.isfile(path):
        raise OSError(f"{who}: cannot read {path}: {'not a regular file' if os.path.exists(path) else 'no such file'}")
    return os.path.getsize(path)


def read_bytes(who: str, path: PathLike, most: int = LARGEST_TEXT) -> bytes:
    if (size := file_size(who, path)) > most:
        raise ValueError(f"{who}: {path}: the file must have at most {most} bytes, got {size}")
    return Path(path).read_bytes()


def read_text(who: str, path: PathLike, most: int = LARGEST_TEXT) -> str:
    try:
        return read_bytes(who, path, most).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{who}: {path}: the file must be text in UTF-8: {error}") from error


def read_object(who: str, path: PathLike, most: int = LARGEST_TEXT) -> dict[str, Any]:
    text = read_text(who, path, most)
    try:
        found = parse_json(text)
    except RecursionError:
        raise ValueError(f"{who}: {path}: the JSON must have fewer nested levels, got more than can be read") from None
    except ValueError as error:
        raise ValueError(f"{who}: {path}: the file must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{who}: {path}: the JSON must be an object, got {brief(found)}")
    return found


def parse_json(text: str) -> Any:
    """The value of a JSON text. Repeated keys, NaN and Infinity are refused."""

    def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        if len(counts) < len(pairs):
            raise ValueError(f"the key {brief(counts.most_common(1)[0][0])} occurs twice")
        return dict(pairs)

    def refuse_constant(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    return json.loads(text, object_pairs_hook=distinct_keys, parse_constant=refuse_constant)


def is_shape(x: Any) -> bool:
    """Is this JSON value a list of integers ≥ 0?"""
    return isinstance(x, list) and all(type(n) is int and n >= 0 for n in x)
