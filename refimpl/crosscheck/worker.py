"""A kernel in a process of its own: it may crash, hang, print or eat memory there.

A message is the length of its JSON, the JSON, and the numbers of its arrays as float64. The worker
is told the kernel once, and then answers one case after another, until nobody asks any more.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import printable
from .mistakes import all_families
from .plan import Case
from .spec import Arrays, Spec
from .subject import Answer, call

WORKER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import refimpl.crosscheck.worker as w; w.work()"
SECONDS, STARTING = 20.0, 120.0  # that a case may take, and imports
MEMORY = 8 << 30  # bytes that a kernel may hold
DEATHS = 3  # after which only smaller cases are asked
MORE_DEATHS = 10  # that are worth a smaller case
MARK = "__array__"


def load_kernel(place: str) -> Callable[..., Any]:
    """The function that FILE.py:NAME or package.module:NAME names."""
    where, colon, name = place.rpartition(":")
    if not colon or not where or not name:
        raise ValueError(f"KERNEL must be FILE.py:NAME or package.module:NAME, got {printable(place)!r}")
    if where.endswith(".py"):
        if not os.path.isfile(where):
            raise ValueError(f"KERNEL: {printable(where)}: no such file")
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # as an import would, for dataclasses and torch.compile
        sys.path.insert(0, str(Path(where).resolve().parent))
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"KERNEL: {printable(where)} must have {printable(name)!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"KERNEL: {printable(name)!r} must be a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


@dataclass
class Process:
    """A kernel by its name, in a process that is started again when it has died."""

    place: str
    seconds: float = SECONDS
    prints: bool = False
    patience: int = DEATHS
    deaths: list[Case] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    def ask(self, spec: Spec, case: Case, arrays: Arrays, dtype: str) -> Answer:
        if len(self.deaths) >= self.patience and case.size >= min(each.size for each in self.deaths):
            return Answer(asked=False)
        if self.process is None:
            self.start()
        given = {name: arrays[name] for name in spec.calls.given if name in arrays}
        question = {"family": spec.family, "spec": spec.differences(), "case": asdict(case), "dtype": dtype}
        try:
            self.send(question | {"arrays": given})
            answer = self.receive(self.seconds)
        except TimeoutError:
            self.deaths.append(case)
            self.close()
            return Answer(problem=f"it did not return within {self.seconds:g} s")
        except (OSError, EOFError):
            self.deaths.append(case)
            return Answer(problem=ended(self.close()))
        self.prints |= answer.pop("prints")
        return Answer(**answer | {"touched": tuple(answer["touched"]), "notes": tuple(answer["notes"])})

    def forgive(self) -> None:
        """Let it die some more times, so that a small case is found."""
        self.deaths, self.patience = [], MORE_DEATHS

    def start(self) -> None:
        """Start the worker, and have it import the kernel."""
        command = [sys.executable, "-P", "-c", WORKER, json.dumps(["", *sys.path])]
        own = {"process_group": 0} if os.name == "posix" else {}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **own)  # type: ignore[call-overload]
        problem = ""
        try:
            self.send({"kernel": self.place})
            problem = self.receive(STARTING)["problem"]
        except TimeoutError:
            problem = f"KERNEL: its module was not imported within {STARTING:g} s"
        except (OSError, EOFError):
            problem = f"KERNEL: when its module was imported, {ended(self.close())}"
        if problem:
            self.close()
            raise ValueError(problem)

    def close(self) -> int:
        """End the worker; its exit status."""
        if (process := self.process) is None:
            return 0
        self.process = None
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                assert pipe
                pipe.close()
        return process.wait()

    def send(self, data: dict[str, Any]) -> None:
        assert self.process and self.process.stdin
        write_message(self.process.stdin, data)

    def receive(self, seconds: float) -> dict[str, Any]:
        assert self.process and self.process.stdout
        deadline = time.monotonic() + seconds

        def read(size: int) -> bytes:
            assert self.process and self.process.stdout
            parts, left = [], size
            while left:
                pipe = self.process.stdout
                if not select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
                    raise TimeoutError
                if not (part := os.read(pipe.fileno(), min(left, 1 << 20))):
                    raise EOFError
                parts.append(part)
                left -= len(part)
            return b"".join(parts)

        return read_message(read)


def ended(status: int) -> str:
    return f"it ended its process by {signal.Signals(-status).name}" if status < 0 else f"it ended its process with status {status}"


def write_message(file: IO[bytes], data: Any) -> None:
    numbers: list[np.ndarray] = []

    def plain(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            numbers.append(np.ascontiguousarray(x, dtype=np.float64))
            return {MARK: list(x.shape)}
        if isinstance(x, dict):
            return {key: plain(value) for key, value in x.items()}
        return x

    head = json.dumps(plain(data)).encode()
    file.write(struct.pack("<Q", len(head)) + head)
    for x in numbers:
        file.write(x.tobytes())
    file.flush()


def read_message(read: Callable[[int], bytes]) -> Any:
    def full(x: Any) -> Any:
        if isinstance(x, dict) and list(x) == [MARK]:
            shape = tuple(x[MARK])
            data = read(8 * int(np.prod(shape, dtype=int)))
            return np.frombuffer(data, dtype=np.float64).reshape(shape).copy()
        return {key: full(value) for key, value in x.items()} if isinstance(x, dict) else x

    (size,) = struct.unpack("<Q", read(8))
    return full(json.loads(read(size)))


def work() -> None:
    """Answer cases on stdin, as a worker does; what the kernel prints goes into a file."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    printed = tempfile.TemporaryFile()
    for number in (1, 2):
        os.dup2(printed.fileno(), number)
    if hasattr(signal, "SIGINT"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    limit_memory()

    def read(size: int) -> bytes:
        data = questions.read(size)
        if len(data) < size:
            os._exit(0)
        return data

    problem = ""
    try:
        function = load_kernel(read_message(read)["kernel"])
    except BaseException as error:
        problem = str(error) if isinstance(error, ValueError) else f"KERNEL: its module raised {type(error).__name__}: {error}"
    write_message(answers, {"problem": printable(problem)})
    while not problem:
        asked = read_message(read)
        spec = all_families()[asked["family"]](**asked["spec"])
        case = Case(**{f.name: asked["case"][f.name] for f in fields(Case)})
        answer = call(function, spec, case, asked["arrays"], asked["dtype"])
        write_message(answers, vars(answer) | {"prints": os.fstat(1).st_size > 0})


def limit_memory() -> None:
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY if hard < 0 else min(MEMORY, hard), hard))
    except (ImportError, ValueError, OSError):  # on Windows
        pass
