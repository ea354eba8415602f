"""Theorems checked by several processes at once: the same results, in the same order.

A worker is a process of the same Python, with one thread for BLAS. As lines of JSON it is told what
`verify` is asked, then the number of one task after another, and it answers with the result of
each. It ends when nobody asks any more, or asks for no more.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NoReturn

from ..checks import check_integer
from ..systems import System, system
from .check import Draws, check, source
from .registry import Task, tasks
from .theorem import Result

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
# The path is that of the first process: the current folder may hold other modules.
WORKER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import refimpl.verify.processes as p; p.work()"


def verify_in_processes(
    jobs: int,
    names: Sequence[str] = (),
    systems: Sequence[System] | None = None,
    *,
    full: bool = False,
    draws: Draws | None = None,
    progress: Callable[[str], None] = lambda line: None,
    found: Callable[[Result], object] = lambda result: None,
) -> list[Result]:
    """As `verify` with one BLAS thread, by so many processes. If one dies, its task is NOT RUN."""
    check_integer("verify", "jobs", jobs, least=1)
    draws = draws or Draws()
    todo = tasks(names, systems, full=full, seed=draws.seed)
    labels = None if systems is None else [each.label for each in systems]
    request = {"names": list(names), "systems": labels, "full": full}
    team = Team(todo, request | {"seed": draws.seed, "source": draws.source or source()})
    results: dict[int, Result] = {}
    applying = {i for i, task in enumerate(todo) if task.applies}  # the others are no checks
    try:
        team.start(min(jobs, len(todo)))
        for i, answer in iter(team.events.get, None):
            if isinstance(answer, Result):
                results[i] = answer
                found(answer)
            elif i in applying:
                progress(f"{len(applying & results.keys())} of {len(applying)} done: {answer}")
    finally:
        team.stop()
    missing = "no process could be started for it"
    return [results.get(i) or not_run(task, missing) for i, task in enumerate(todo)]


class Team:
    """Threads, each with a worker: they take tasks and tell of them in `events`, at last None."""

    def __init__(self, todo: list[Task], request: dict[str, Any]) -> None:
        self.todo, self.request = todo, request
        # What takes longest comes first. Then tasks in one system stand together, and every second
        # thread begins at the other end: so a worker makes fewer tables that another one has, too.
        long = [bool(task.theorem.only) or "sampled" in task.theorem.ways for task in todo]
        self.waiting = deque(sorted(range(len(todo)), key=lambda i: (not long[i], todo[i].system.label)))
        self.events: queue.SimpleQueue[tuple[int, str | Result] | None] = queue.SimpleQueue()
        self.lock, self.stopped = threading.Lock(), False
        self.workers: list[Worker] = []
        self.threads: list[threading.Thread] = []

    def start(self, count: int) -> None:
        ends = (self.waiting.popleft, self.waiting.pop)
        self.threads = [threading.Thread(target=self.serve, args=(ends[k % 2],), daemon=True) for k in range(count)]
        for thread in self.threads:
            thread.start()
        threading.Thread(target=self.end, daemon=True).start()

    def end(self) -> None:
        for thread in self.threads:
            thread.join()
        self.events.put(None)

    def stop(self) -> None:
        """End all workers, now."""
        with self.lock:
            self.stopped = True
        for worker in self.workers:
            worker.process.kill()
        for thread in self.threads:
            thread.join()
        for worker in self.workers:
            worker.close()

    def serve(self, take: Callable[[], int]) -> None:
        """Have tasks done, each by a worker that is alive, until there are none."""
        worker = None
        while self.waiting and (worker := worker or self.new_worker()):
            with suppress(IndexError):  # another thread took the last task
                i = take()
                self.events.put((i, f"{self.todo[i].theorem.name} in {self.todo[i].system.name}"))
                answer = worker.ask(i)
                if answer is None:
                    self.events.put((i, not_run(self.todo[i], worker.cause_of_death())))
                    worker = None
                else:
                    self.events.put((i, from_json(answer, self.todo[i])))

    def new_worker(self) -> Worker | None:
        """A worker that is ready; None if it could not begin, or is no longer wanted."""
        with self.lock:
            if self.stopped:
                return None
            try:
                self.workers.append(worker := Worker())
            except OSError:
                return None
        return worker if worker.ask(self.request) == "ready" else None


class Worker:
    """A process that does `work`."""

    def __init__(self) -> None:
        # A group of its own: Ctrl-C is for the first process, which then ends this one.
        group: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
        command, pipe = [sys.executable, "-P", "-c", WORKER, json.dumps(sys.path)], subprocess.PIPE
        self.process = subprocess.Popen(
            command, text=True, stdin=pipe, stdout=pipe, env=os.environ | ONE_THREAD, **group
        )

    def ask(self, question: Any) -> Any:
        """The answer; None if the process has ended."""
        assert self.process.stdin and self.process.stdout
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):  # a closed pipe; no line, or a part of one
            return None

    def cause_of_death(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()  # it answers no more
        status = self.process.wait()
        return f"its process ended by {signal.Signals(-status).name if status < 0 else f'itself, with status {status}'}"

    def close(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # what was not read
                assert pipe
                pipe.close()


def not_run(task: Task, why: str) -> Result:
    return Result(task.theorem.name, task.system.label, "NOT RUN", why)


def to_json(result: Result, task: Task) -> dict[str, Any]:
    """A result for the first process, which knows the cases by their numbers."""
    return asdict(replace(result, cases=())) | {"cases": [task.cases.index(case) for case in result.cases]}


def from_json(data: dict[str, Any], task: Task) -> Result:
    return Result(**data | {"cases": tuple(task.cases[i] for i in data["cases"])})


def work() -> None:
    """Read a request, and answer the tasks that follow, as a worker does."""
    answers = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)  # what a library may print is no answer
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(lines,), daemon=True).start()
    with suppress(BrokenPipeError):  # the first process has ended
        answer(lines, lambda data: answers.write(json.dumps(data).encode() + b"\n"))


def listen(lines: queue.SimpleQueue[str]) -> None:
    """Read the lines of stdin. When nobody asks any more, end this process, whatever it does."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def answer(lines: queue.SimpleQueue[str], send: Callable[[Any], object]) -> NoReturn:
    asked = json.loads(lines.get())
    systems = None if asked["systems"] is None else [system(label) for label in asked["systems"]]
    todo = tasks(asked["names"], systems, full=asked["full"], seed=asked["seed"])
    draws = Draws(asked["seed"], asked["source"])
    send("ready")
    while True:
        task = todo[int(lines.get())]
        try:
            result = check(task.theorem, task.system, task.cases, draws)
        except Exception as error:
            result = not_run(task, f"raised {type(error).__name__}: {error}")
        send(to_json(result, task))
