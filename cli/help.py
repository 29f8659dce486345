"""Help of the commands, as plain text that is wrapped at words: Typer's boxes cut words on narrow terminals."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_WIDEST = 100  # columns: longer lines are hard to read
_LEAST_TEXT = 28  # columns that an explanation has beside its name; with less it stands beneath
_EXAMPLES = {
    "bake": "workflow.json --comfyui ~/ComfyUI --size 1024x1024", "explain": "workflow.json --comfyui ~/ComfyUI",
    "bench": "model.safetensors --comfyui ~/ComfyUI", "insert": "workflow.json", "ls": "--long --sort used",
    "prune": "--dry-run --budget 5GB", "pin": "photo", "export": "--to for-bob.tar", "push": "s3://bucket/graphs",
    "import": "--trust alice for-bob.tar", "pull": "s3://bucket/graphs --trust alice",
}  # fmt: skip


class _Help:
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_render(self, ctx, min(shutil.get_terminal_size().columns, _WIDEST))))

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_usage(self, ctx, shutil.get_terminal_size().columns)))


class Command(_Help, TyperCommand):
    """A command with that help."""


class Group(_Help, TyperGroup):
    """A command that has commands."""


def _render(command: Any, ctx: Any, width: int) -> list[str]:
    """Write what a command does, an example, its usage, its commands, arguments and options, and notes."""
    sentence, *notes = _paragraphs(command)
    lines = [*_wrap(sentence, width), ""]
    if ctx.info_name in _EXAMPLES:  # broken so that a shell takes it all the same
        example = _wrap(f"{ctx.command_path} {_EXAMPLES[ctx.info_name]}", width - 2, "  $ ", "      ")
        lines += [*(f"{line} \\" for line in example[:-1]), example[-1], ""]
    lines += _usage(command, ctx, width)
    sections = dict[str, list[tuple[str, str]]]()
    for name in command.list_commands(ctx) if isinstance(command, Group) else ():
        one: Any = command.get_command(ctx, name)
        sections.setdefault(one.rich_help_panel or "Commands", []).append((name, _paragraphs(one)[0].rstrip(".")))
    for param in command.get_params(ctx):
        heading = "Arguments" if param.param_type_name == "argument" else "Options"
        sections.setdefault(heading, []).append((_name(param), _about(param)))
    for heading, rows in sections.items():
        lines += ["", typer.style(f"{heading}:", bold=True), *_table(rows, width)]
    for note in notes:
        lines += ["", *_wrap(note, width)]
    return lines


def _paragraphs(command: Any) -> list[str]:
    """Split a command's help into its first sentence and what follows."""
    sentence, _, more = re.sub(r"(?<=\.)\s+", "\n\n", command.help or "", count=1).partition("\n\n")
    return [sentence, *filter(None, more.split("\n\n"))]


def _wrap(text: str, width: int, indent: str = "", further: str | None = None) -> list[str]:
    """Break a text at spaces alone: a name that is longer than the line stays whole."""
    further = indent if further is None else further
    return textwrap.TextWrapper(width, indent, further, break_long_words=False, break_on_hyphens=False).wrap(text)


def _usage(command: Any, ctx: Any, width: int) -> list[str]:
    arguments = [one for one in command.get_params(ctx) if one.param_type_name == "argument"]
    names = [_name(one) if one.required else f"[{_name(one)}]" for one in arguments]
    pieces = [ctx.command_path, "[OPTIONS]", *names, *(["COMMAND"] if isinstance(command, Group) else [])]
    return _wrap(" ".join(pieces), width, "Usage: ", "  ")


def _name(param: Any) -> str:
    """What an argument or an option is written as: `[FOLDERS]...`, or `--sort <SORT>`."""
    value = param.metavar or param.name.upper()
    if param.param_type_name == "argument":
        return value + ("..." if param.nargs != 1 else "")
    names = ", ".join(sorted(param.opts, key=len))
    return names if param.is_flag else f"{names} <{value}>"


def _about(param: Any) -> str:
    default = param.default if isinstance(param.default, str | float) and not param.is_flag else ""
    notes = [f" [{name}: {value}]" for name, value in (("default", default), ("env", param.envvar)) if value]
    return (param.help or "") + "".join(notes)


def _table(rows: Iterable[Sequence[str]], width: int) -> list[str]:
    edge = max(len(name) for name, _ in rows) + 4
    if width - edge < _LEAST_TEXT:
        return [line for name, text in rows for line in (f"  {name}", *_wrap(text, width, "      "))]
    return [line for name, text in rows for line in _wrap(text, width, f"  {name:{edge - 2}}", " " * edge)]
