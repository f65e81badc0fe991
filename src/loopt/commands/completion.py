"""loopt --install-completion: has a shell complete commands, presets and options."""

from __future__ import annotations

import os
from pathlib import Path

from loopt.commands.first_screens import kept_options
from loopt.errors import InputError

SHELLS = {
    "bash": (
        ".local/share/bash-completion/completions/loopt",
        """\
_loopt() {
    local IFS=$'\\n'
    COMPREPLY=($(loopt --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _loopt loopt
""",
        "new shells use it, where the package bash-completion is installed; elsewhere, add to ~/.bashrc: source {path}",
    ),
    "zsh": (
        ".zfunc/_loopt",
        """\
#compdef loopt
local -a found
found=(${(f)"$(loopt --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
if (( $#found )); then compadd -a found; else _files; fi
""",
        "new shells use it once ~/.zshrc has: fpath+=~/.zfunc; autoload -Uz compinit && compinit",
    ),
    "fish": (
        ".config/fish/completions/loopt.fish",
        "complete -c loopt -a '(loopt --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'\n",
        "new shells use it",
    ),
}


def install(arguments: list[str]) -> int:
    """Writes the script of a shell, the user's own unless named, to where that shell looks for it."""
    shell = arguments[0] if arguments else Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS or len(arguments) > 1:
        raise InputError(f"--install-completion {shell}: allowed is {' | '.join(SHELLS)}".replace("  ", " "))
    place, script, told = SHELLS[shell]
    path = Path.home() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    print(f"{path}: written; {told.format(path=path)}")
    return 0


def complete(words: list[str]) -> int:
    """Prints what the last word, begun or empty, may become after those before it; the scripts above ask for this."""
    *before, begun = words or [""]
    commands = kept_options()
    named = [word for word in before if not word.startswith("-")]
    known = next((one for n in range(len(named), 0, -1) if (one := " ".join(named[:n])) in commands), "")
    if begun.startswith("-"):
        found = commands.get(known, [])
    else:
        prefix = f"{known} " if known else ""
        below = (
            command.removeprefix(prefix) for command in commands if command.startswith(prefix) and command != known
        )
        found = [command for command in below if command and " " not in command]
    print("\n".join(word for word in found if word.startswith(begun)))
    return 0
