"""Completion in real shells: what a script offers is what the parsers and registries know."""

import os
import shlex
import shutil
import subprocess

import pytest

from refimpl.cli import completion, main
from refimpl.prompt.compression import KINDS
from refimpl.systems import classes_by_word
from refimpl.verify.registry import THEOREMS

OTHERS = [
    pytest.param(shell, marks=pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed"))
    for shell in ("zsh", "fish")
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """A folder with a file, and the script of every shell."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in completion.USE:
        (folder / shell).write_text(completion.SCRIPTS[shell]() + "\n")
    (folder / "model.bin").touch()
    return folder


def bash(folder, *words):
    """What bash offers for the last of these words."""
    line = f"source ./bash; COMP_WORDS=(refimpl {shlex.join(words)}); COMP_CWORD={len(words)}; _refimpl"
    line += '; printf "%s\\n" "${COMPREPLY[@]}"'
    command = ["bash", "--norc", "-c", line]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def fish(folder, *words):
    home = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    command = ["fish", "-c", f"source ./fish; complete -C {shlex.quote(' '.join(['refimpl', *words]))}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=home)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\t")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("offers", [bash, pytest.param(fish, marks=OTHERS[1].marks)], ids=lambda f: f.__name__)
def test_what_a_shell_offers(offers, scripts):
    assert set(offers(scripts, "v")) == {"verify"} and set(offers(scripts, "do")) == {"doctor"}
    assert set(offers(scripts, "verify", "iclca_l")) == {name for name in THEOREMS if name.startswith("iclca_l")}
    assert set(offers(scripts, "verify", "--system", "flo")) == {"float64", "float32", "float16"}
    assert set(offers(scripts, "convert", "--by", "t")) == {kind for kind in KINDS if kind.startswith("t")}
    assert set(offers(scripts, "convert", "--k")) == {"--keep-positions"}
    assert set(offers(scripts, "convert", "mod")) == {"model.bin"} == set(offers(scripts, "generate", "--baked", "mod"))
    assert set(offers(scripts, "completion", "b")) == {"bash"}
    assert offers(scripts, "generate", "--seed", "mod") == [] == offers(scripts, "doctor", "mod")


def test_bash_knows_every_command_option_and_name(scripts):
    assert bash(scripts, "") == [*main.COMMANDS, "--help", "--version"]
    for command in main.COMMANDS:
        groups = [a for a in main.parser(command)._actions if a.choices]
        known = [o for a in groups[0].choices[command]._actions for o in a.option_strings if o.startswith("--")]
        assert bash(scripts, command, "--") == known and known
    assert bash(scripts, "verify", "") == [*THEOREMS]
    assert bash(scripts, "verify", "--system", "") == [*classes_by_word()]


@pytest.mark.parametrize("shell", ["bash", *OTHERS])
def test_the_script_is_one_of_its_shell(shell, scripts):
    done = subprocess.run([shell, "-n", shell], cwd=scripts, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", OTHERS[:1])
def test_zsh_takes_the_function_for_the_command(shell, scripts):
    line = "autoload -U compinit; compinit -u -D; source ./zsh; print $_comps[refimpl]; whence -w _refimpl"
    done = subprocess.run([shell, "-fc", line], cwd=scripts, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("_refimpl\n_refimpl: function\n", "")


def test_the_command_prints_the_script(capsys):
    for shell in completion.USE:
        assert main.main(["completion", shell]) == 0
        first, rest = capsys.readouterr().out.split("\n", 1)
        assert first == f"# {completion.USE[shell]}" and rest == completion.SCRIPTS[shell]() + "\n"
    assert main.main(["completion", "tcsh"]) == 2
