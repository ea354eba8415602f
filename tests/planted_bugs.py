"""`python tests/planted_bugs.py` plants bugs in the library's source and counts who finds them.

planted_bugs.toml has a table for each bug, under its name: the file, the text `old` that `new`
replaces, the mistake (`wrong`) and the conditions under which it shows (`when`). `theorem` is the
one by which `verify` finds it, at its default seed; it is "" if none does, and missing if the bug
is outside the scope of all theorems: files, tokenizers, the command line, sizes in bytes, refusals.
`test` is one that fails, under the profile of the README and without real weights. Neither has
gmpy2 and python-flint, even where they are installed: what they do instead of us has no bugs.

Each bug is planted alone, in a copy of the project. First the theorems and tests run without a bug,
and all must hold. The exit status is 0 if all bugs are found as they should be, 1 if some are not,
and 2 if the table is stale or something fails without a bug.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "proofs", "benchmarks")
LONGEST = 300  # seconds; a bug may make a loop endless
VERIFY = """
import sys
from refimpl.verify.check import Draws, check
from refimpl.verify.registry import tasks
for task in tasks(sys.argv[1:], None, full=False, seed=0):
    result = check(*task, Draws(0))
    if result.verdict not in ("EXACT", "ENCLOSED", "WITHIN BOUND", "MEASURED", "N/A"):
        print(result.theorem, "in", result.system, result.verdict, result.evidence)
        raise SystemExit(1)
"""

# A sitecustomize.py, which Python runs when it starts: these two cannot be found.
WITHOUT = """
import sys
from importlib.machinery import PathFinder
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in ("gmpy2", "flint") else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    old: str
    new: str
    wrong: str
    when: str
    test: str
    theorem: str | None = None

    def planted(self, source: str) -> str:
        """The source with the bug. The text that it replaces must be there once."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.name}: `old` must be in refimpl/{self.file} once, got it {count} times")
        return source.replace(self.old, self.new)


def read_bugs(path: Path = TABLE) -> list[Bug]:
    return [Bug(name, **fields) for name, fields in tomllib.loads(path.read_text()).items()]


class Copy:
    """A copy of the project, in which one bug at a time is planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = shutil.copytree(ROOT, folder, ignore=LEFT_OUT)
        (self.folder / "sitecustomize.py").write_text(WITHOUT)

    @contextmanager
    def bug(self, bug: Bug) -> Iterator[None]:
        path = self.folder / "refimpl" / bug.file
        source = path.read_text()
        path.write_text(bug.planted(source))
        try:
            yield
        finally:
            path.write_text(source)

    def run(self, *arguments: str) -> int:
        """The exit status of Python with these arguments; 1 if it takes too long."""
        own = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
        others = {name: x for name, x in os.environ.items() if name not in ("HYPOTHESIS_PROFILE", "REFIMPL_MODELS")}
        command, quiet = [sys.executable, *arguments], subprocess.DEVNULL
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=others | own, stdout=quiet, stderr=quiet, timeout=LONGEST
            )
        except subprocess.TimeoutExpired:
            return 1
        return done.returncode

    def verify(self, theorems: Iterable[str]) -> bool:
        """Do these theorems hold? Without names, all theorems."""
        return self.run("-c", VERIFY, *theorems) == 0

    def test(self, tests: Iterable[str]) -> bool:
        """Do these tests pass? There must be such tests."""
        status = self.run("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests)
        if status not in (0, 1):
            raise ValueError(f"{' '.join(tests)}: pytest must run, got exit status {status}")
        return status == 0


@dataclass(frozen=True)
class Finding:
    """Whether `verify` and the test found a bug; None for what was not run."""

    bug: Bug
    verify: bool | None
    test: bool

    def __str__(self) -> str:
        word = {True: "found", False: "MISSED", None: "-"}
        by = f"{self.bug.theorem or 'no theorem'}, {self.bug.test.rpartition('::')[2]}"
        return f"{word[self.verify]:7} {word[self.test]:7} {self.bug.name:34} {self.bug.when}  [{by}]"


def look_for(copy: Copy, bug: Bug, every: bool) -> Finding:
    """Plant the bug, and run what should find it; if `every`, all theorems."""
    with copy.bug(bug):
        seen = None
        if bug.theorem is not None:
            seen = bool(bug.theorem or every) and not copy.verify([bug.theorem] if bug.theorem and not every else [])
        return Finding(bug, seen, not copy.test([bug.test]))


def find(bugs: list[Bug], jobs: int = 2, every: bool = False) -> list[Finding]:
    """Look for each bug, in that many processes, and print a line for each."""
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for i in range(jobs):
            copies.put(Copy(Path(folder) / str(i)))
        first = copies.get()
        theorems = sorted({bug.theorem for bug in bugs if bug.theorem})
        held = pool.submit(lambda: not theorems or first.verify(theorems))
        passed = pool.submit(first.test, sorted({bug.test for bug in bugs}))
        if not held.result() or not passed.result():
            raise ValueError("planted_bugs: all must hold without a bug, got a theorem or test that fails")
        copies.put(first)

        def one(bug: Bug) -> Finding:
            copy = copies.get()
            try:
                return look_for(copy, bug, every)
            finally:
                copies.put(copy)

        for finding in pool.map(one, bugs):
            print(finding, flush=True)
            findings.append(finding)
    return findings


def share(found: list[bool]) -> str:
    return f"{sum(found)} of {len(found)} ({100 * sum(found) / max(len(found), 1):.0f} %)"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="only N bugs, drawn from the seed")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the seed of the sample (default: 0)")
    parser.add_argument("--every", action="store_true", help="run all theorems on each bug, and not the one named")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many processes (default: 2)")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    bugs = [bug for bug in read_bugs() if not options.names or bug.name in options.names]
    if options.sample is not None:
        bugs = random.Random(options.seed).sample(bugs, min(options.sample, len(bugs)))
    try:
        findings = find(bugs, options.jobs, options.every)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    by_verify = share([f.verify for f in findings if f.verify is not None])
    by_tests = share([f.test for f in findings])
    seconds = time.perf_counter() - began
    print(f"verify found {by_verify} within the scope of its theorems; tests found {by_tests}; {seconds:.0f} s")
    return 0 if all(f.test and (f.verify or not f.bug.theorem) for f in findings) else 1


if __name__ == "__main__":
    raise SystemExit(main())
