"""``logstore completion``: print a completion script for a shell."""

from __future__ import annotations

import argparse

EXAMPLE = """\
examples:
  source <(logstore completion bash)              # in ~/.bashrc
  logstore completion zsh > "${fpath[1]}/_logstore"
  logstore completion fish > ~/.config/fish/completions/logstore.fish
"""

SHELLS = ("bash", "zsh", "fish")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this subcommand."""
    parser = commands.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        epilog=EXAMPLE,
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=lambda arguments: _run(arguments, commands))


def _run(
    arguments: argparse.Namespace, commands: argparse._SubParsersAction[argparse.ArgumentParser]
) -> int:
    # The script is made from the parser itself, so that it cannot fall behind it.
    options = {
        name: sorted(option for option in parser._option_string_actions if option.startswith("--"))
        for name, parser in commands.choices.items()
    }
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](options), end="")
    return 0


def _bash(options: dict[str, list[str]]) -> str:
    cases = "\n".join(
        f'        {name}) words="{" ".join(words)}" ;;' for name, words in options.items()
    )
    return f"""\
_logstore() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(options)} --help --version" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$current" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
        *) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$current")) ;;
    esac
}}
complete -F _logstore logstore
"""


def _zsh(options: dict[str, list[str]]) -> str:
    cases = "\n".join(
        f"        {name}) compadd -- {' '.join(words)} ;;" for name, words in options.items()
    )
    return f"""\
#compdef logstore
_logstore() {{
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(options)} --help --version
        return
    fi
    if [[ $words[CURRENT] != -* ]]; then
        _files
        return
    fi
    case $words[2] in
{cases}
    esac
}}
_logstore "$@"
"""


def _fish(options: dict[str, list[str]]) -> str:
    lines = [f"complete -c logstore -n __fish_use_subcommand -f -a {name}" for name in options]
    for name, words in options.items():
        lines += [
            f"complete -c logstore -n '__fish_seen_subcommand_from {name}' -l {word[2:]}"
            for word in words
        ]
    return "\n".join(lines) + "\n"
