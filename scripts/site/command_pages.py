"""The reference of the commands, made by walking the app itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from polar.cli.app import app


def command_page() -> str:
    root: Any = typer.main.get_command(app)
    parts = [
        "# Commands\n",
        "Every command of `polar` with its arguments and options, as `polar COMMAND --help` shows them.\n",
        _options(root),
        *(_command(path, command) for path, command in commands()),
    ]
    return "\n".join(parts)


def commands() -> Iterator[tuple[str, Any]]:
    """Each command that runs something, with what is typed for it, in the order of the help."""
    yield from _below("polar", typer.main.get_command(app))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if not inner:
        yield path, command
        return
    for name, each in inner.items():
        yield from _below(f"{path} {name}", each)


def _command(path: str, command: Any) -> str:
    arguments = " ".join(_usage(each) for each in command.params if each.param_type_name == "argument")
    text = inspect.cleandoc(command.help or "")
    return f"## {path}\n\n```sh\n{path} {arguments} [OPTIONS]\n```\n\n{text}\n\n{_options(command)}".replace(
        "  [", " ["
    )


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper().strip("[]")
    return name if argument.required else f"[{name}]"


def _options(command: Any) -> str:
    rows = [_row(each) for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    return "\n".join(["| | | default |", "|---|---|---|", *rows, ""]) if rows else ""


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_usage(parameter).strip('[]')}`"
    else:
        name = ", ".join(f"`{option}`" for option in parameter.opts)
    return f"| {name} | {_cell(parameter.help or '')} | {_cell(_default(parameter))} |"


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    default = parameter.default
    if parameter.required:
        return "required"
    if default is None or default is False or callable(default) or default in ((), []):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
