"""`refimpl completion`: a script that completes commands, options and names in a shell.

The script is made from the parsers of all commands, and from the names of theorems, systems and
memories, whenever it is asked for: it knows what this version knows.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .output import Outcome

USE = {
    "bash": 'eval "$(refimpl completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(refimpl completion zsh)"  # in ~/.zshrc, after compinit',
    "fish": "refimpl completion fish > ~/.config/fish/completions/refimpl.fish",
}


class Word(NamedTuple):
    """What a command takes: an option, or "" for its positional arguments.

    values : the words that may follow, as far as they are known
    files : may a file follow?
    """

    option: str
    help: str
    takes_value: bool
    values: tuple[str, ...]
    files: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "To use it: " + "; ".join(f"{shell}: {use}" for shell, use in USE.items())
    parser.add_argument("shell", choices=tuple(USE), help="the shell that is to read the script")


def run(options: argparse.Namespace) -> Outcome:
    return Outcome(0, f"# {USE[options.shell]}\n{SCRIPTS[options.shell]()}")


def known_values(action: argparse.Action) -> tuple[str, ...]:
    """The words that may follow an option, or stand for a positional argument."""
    from ..prompt.compression import KINDS
    from ..systems import classes_by_word
    from ..systems.floats import FILE_DTYPES, LIBRARIES
    from ..verify.registry import THEOREMS

    known: dict[str, Iterable[str]]
    known = {"system": classes_by_word(), "backend": LIBRARIES, "by": (*KINDS, "best"), "dtype": FILE_DTYPES}
    known |= {"names": THEOREMS, "name": THEOREMS}
    return tuple(action.choices or known.get(action.dest, ())) if action.nargs != 0 else ()


def commands() -> Iterator[tuple[str, str, list[Word]]]:
    """Every command, its help, and what it takes."""
    from .main import COMMANDS, parser

    for command, help in COMMANDS.items():
        top = parser(command)
        groups = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
        words = []
        for action in groups[0].choices[command]._actions:
            files = any(word in str(action.metavar) for word in ("FILE", "MODEL"))
            text = (action.help or "").partition(";")[0].replace("%%", "%")
            for option in [o for o in action.option_strings if o.startswith("--")] or [""]:
                words.append(Word(option, text, action.nargs != 0, known_values(action), files))
        yield command, help, words


def bash() -> str:
    """A function that bash calls with the word before the cursor in COMP_WORDS."""
    lines, every = [], list(commands())
    for command, _, words in every:
        options = " ".join(w.option for w in words if w.option)
        place = next((w for w in words if not w.option), None)
        for w in words:
            if w.option and w.takes_value:
                lines.append(f"    {command},{w.option}) {reply(w.values, w.files)} ;;")
        lines.append(f"    {command},*) if [[ $word == -* ]]; then {reply((options,))}")
        lines.append(f"        else {reply(place.values, place.files) if place else ':'}; fi ;;")
    names = " ".join([command for command, _, _ in every])
    return "\n".join(
        [
            "_refimpl() {",
            "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}",
            f"    if [[ $COMP_CWORD == 1 ]]; then {reply((names, '--help --version'))}; return; fi",
            "    COMPREPLY=()",
            '    case "$command,$before" in',
            *lines,
            "    esac",
            "}",
            "complete -F _refimpl refimpl",
        ]
    )


def reply(values: tuple[str, ...], files: bool = False) -> str:
    """Bash that offers these words, or files, or nothing."""
    if files:
        return 'compopt -o filenames 2> /dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word")'
    return f'mapfile -t COMPREPLY < <(compgen -W {shlex.quote(" ".join(values))} -- "$word")' if values else ":"


def zsh() -> str:
    """The same for zsh, by `_arguments` for each command."""
    cases, every = [], list(commands())
    for command, _, words in every:
        specs = []
        for w in words:
            values = f":value:({' '.join(w.values)})" if w.values else ":file:_files" if w.files else ":value:"
            text = w.help.replace("[", "(").replace("]", ")").replace(":", " ")
            specs.append(f"*{w.option}[{text}]{values if w.takes_value else ''}" if w.option else f"*{values}")
        cases.append(f"        {command}) _arguments {' '.join(map(shlex.quote, specs))} ;;")
    described = " ".join(shlex.quote(f"{command}:{help}") for command, help, _ in every)
    return "\n".join(
        [
            "_refimpl() {",
            f"    local -a commands=({described})",
            "    if (( CURRENT == 2 )); then _describe command commands; return; fi",
            "    local command=$words[2]",
            "    shift words; (( CURRENT-- ))",
            "    case $command in",
            *cases,
            "    esac",
            "}",
            "compdef _refimpl refimpl",
        ]
    )


def fish() -> str:
    """A line for each word that fish may offer."""
    lines, every = ["complete -c refimpl -e"], list(commands())
    for command, help, words in every:
        lines.append(f"complete -c refimpl -n __fish_use_subcommand -f -a {command} -d {shlex.quote(help)}")
        if not any(w.files for w in words if not w.option):
            lines.append(f"complete -c refimpl -n '__fish_seen_subcommand_from {command}' -f")
        for w in words:
            line = f"complete -c refimpl -n '__fish_seen_subcommand_from {command}'"
            line += "" if w.files else " -f"
            if w.option:
                line += f" -l {w.option[2:]} -d {shlex.quote(w.help)}{' -r' if w.takes_value else ''}"
            lines.append(line + (f" -a {shlex.quote(' '.join(w.values))}" if w.values else ""))
    return "\n".join(lines)


SCRIPTS: dict[str, Callable[[], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
