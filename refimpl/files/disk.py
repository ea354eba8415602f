"""Files on disk are written completely or not at all, and checked as they are read."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from ..budget import spend
from ..errors import brief

PathLike = str | os.PathLike[str]
MOST_DIGITS = 4300  # of an integer; Python reads no more
LARGEST_TEXT = 2**24  # bytes of a text or a tokenizer; the published ones have about 2^20
VALUE_BYTES = 100  # memory for each bracket, comma and colon of a JSON text


def target_file(who: str, path: PathLike) -> Path:
    """The file to be written, behind any symbolic link; refused now if it cannot be written."""
    target = Path(os.path.realpath(path))
    is_other = os.path.exists(path) and not os.path.isfile(path)
    if is_other or os.fspath(path) in ("", "-", "/dev/stdout", "/dev/stderr"):
        problem = "not a regular file"
    elif os.path.islink(target):  # what realpath cannot follow
        problem = "a symbolic link that leads to itself"
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
    """A new file that replaces the target if the block succeeds, and otherwise leaves no trace.

    It has the permissions of the file that it replaces and, where that is allowed, its owner and
    group; without one, the usual ones. Text is in UTF-8; what UTF-8 lacks, such as a byte of a path
    that is no text, becomes an escape.
    """
    draft = target.with_name(f".refimpl-{secrets.token_hex(8)}.tmp")  # of no other process or thread
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "backslashreplace"}
    try:
        old = target.stat() if target.exists() else None
        allowed = stat.S_IMODE(old.st_mode) & 0o777 if old else None
        usual = 0o666 if allowed is None else allowed
        with open(draft, mode, opener=lambda path, flags: os.open(path, flags, usual), **text) as file:
            if old and allowed is not None:
                os.chmod(draft, allowed)  # some of it may be beyond the umask
                keep_owner(draft, old)
            yield file
        os.replace(draft, target)
    except OSError as error:
        raise OSError(f"{who}: cannot write {target}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def keep_owner(path: Path, old: os.stat_result) -> None:
    """Give a new file the owner and the group of an old one, as far as that is allowed."""
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):  # only root may change the owner
        with suppress(OSError, AttributeError):  # Windows has no chown
            os.chown(path, owner, group)


_recorded: ContextVar[set[Path] | None] = ContextVar("files that were read", default=None)


@contextmanager
def recording() -> Iterator[set[Path]]:
    """The set to which, in this block, every file that is read is added, behind any links."""
    files = set[Path]()
    token = _recorded.set(files)
    try:
        yield files
    finally:
        _recorded.reset(token)


LONGEST_PATH = 4096  # characters; Linux takes no more


def check_path(who: str, path: object) -> None:
    """A path is a str or a PathLike of one. An integer would be a file that is open already."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise TypeError(f"{who}: `path` must be a str or a Path, got {type(path).__name__}")
    if len(name) > LONGEST_PATH:
        raise ValueError(f"{who}: `path` must have at most {LONGEST_PATH} characters, got {len(name)}")
    if "\0" in name:
        raise ValueError(f"{who}: `path` must have no null character, got {brief(name)}")


@contextmanager
def opened(who: str, path: PathLike) -> Iterator[tuple[IO[bytes], int]]:
    """A regular file, open for reading, and its size. Nothing else is opened: a pipe would hang."""
    check_path(who, path)
    try:
        file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)), "rb")
    except (OSError, UnicodeEncodeError) as error:
        missing, folder = isinstance(error, FileNotFoundError), os.path.isdir(path)
        problem = "no such file" if missing else "not a regular file" if folder else getattr(error, "strerror", None)
        raise OSError(f"{who}: cannot read {path}: {(problem or str(error)).lower()}") from error
    with file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{who}: cannot read {path}: not a regular file")
        if (files := _recorded.get()) is not None:
            files.add(Path(os.path.realpath(path)))
        yield file, found.st_size


def read_bytes(who: str, path: PathLike, most: int = LARGEST_TEXT) -> bytes:
    with opened(who, path) as (file, size):
        data = file.read(most + 1) if size <= most else b""  # files of /proc are longer than they say
    if max(size, len(data)) > most:
        raise ValueError(f"{who}: {path}: the file must have at most {most} bytes, got {max(size, len(data))} or more")
    return data


def read_text(who: str, path: PathLike, most: int = LARGEST_TEXT) -> str:
    try:
        return read_bytes(who, path, most).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{who}: {path}: the file must be text in UTF-8: {error}") from error


def read_object(who: str, path: PathLike, most: int = LARGEST_TEXT) -> dict[str, Any]:
    data = read_bytes(who, path, most)
    with located(f"{who}: {path}"):
        found = parse_json("the file", data)
    if not isinstance(found, dict):
        raise ValueError(f"{who}: {path}: the JSON must be an object, got {brief(found)}")
    return found


def parse_json(what: str, data: bytes) -> Any:
    """The value of a JSON text in UTF-8. Repeated keys, NaN and Infinity are refused.

    A bracket or a comma can make an object of Python of 100 bytes or so; such memory is spent.
    """

    def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"the key {brief(twice)} occurs twice")
        return found

    def refuse_constant(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    values = sum(data.count(mark) for mark in (b",", b":", b"[", b"{"))
    spend(f"{what}: its JSON", memory=VALUE_BYTES * values + (3 if data.isascii() else 9) * len(data))
    try:
        return json.loads(
            data.decode(), object_pairs_hook=distinct_keys, parse_constant=refuse_constant, parse_int=short_integer
        )
    except RecursionError:
        raise ValueError(f"{what} must be JSON with fewer nested levels, got more than can be read") from None
    except ValueError as error:
        raise ValueError(f"{what} must be JSON in UTF-8: {error}") from error


def short_integer(text: str) -> int:
    """An integer in JSON. Python's own error would advise to change a setting of Python."""
    if len(text) > MOST_DIGITS:
        raise ValueError(f"an integer must have at most {MOST_DIGITS} characters, got {len(text)}")
    return int(text)


def is_shape(x: Any) -> bool:
    """Is this JSON value a list of integers ≥ 0?"""
    return isinstance(x, list) and all(type(n) is int and n >= 0 for n in x)
