"""Paths on the command line. What is not there, or is no such thing, ends the command with exit code 2."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

_FOLDERS = "Folders with checkpoints; your own graph folder is always included."
_SHARED = "Folders with checkpoints or graphs, or of single graphs; else your graph folder."


def _is_there(path: Path) -> bool:
    """Whether something has a name, which may be too long for one."""
    try:
        return path.exists()
    except OSError:
        return False


def only_folders(paths: list[Path] | None) -> list[Path] | None:
    """Refuse what is no folder, in words that say what to name in its place."""
    for path in paths or ():
        there = _is_there(path)
        if there and path.is_file():
            raise typer.BadParameter(f"'{path}' is a file. Name the folder it lies in.")
        if not (there and path.is_dir()):
            raise typer.BadParameter(f"'{path}' does not exist: nothing has that name. Name a folder with checkpoints.")
    return paths


def only_existing(paths: list[Path] | None) -> list[Path] | None:
    """Refuse what is not there."""
    for path in paths or ():
        if not _is_there(path):
            raise typer.BadParameter(f"'{path}' does not exist: nothing has that name.")
    return paths


Folders = Annotated[list[Path] | None, typer.Argument(callback=only_folders, help=_FOLDERS)]
SharedFolders = Annotated[list[Path] | None, typer.Argument(callback=only_folders, help=_SHARED)]


def existing_file(about: str, **more: Any) -> Any:
    """Describe an argument that is a file and not empty, as a download leaves one that never began."""
    return typer.Argument(callback=_file, help=about, **more)


def workflow_file(about: str, **more: Any) -> Any:
    """Describe an argument that is such a file, or the name of one of ComfyUI's templates."""
    return typer.Argument(
        callback=lambda path: _file(path if _is_there(path) else _template(path) or path), help=about, **more
    )


def _template(name: Path) -> Path | None:
    """The workflow of a template, from the package that ComfyUI has them from."""
    if name.name != str(name):
        return None
    try:
        templates = import_module("comfyui_workflow_templates")
        return Path(templates.get_asset_path(name.name, f"{name.name}.json"))
    except (ImportError, KeyError, FileNotFoundError):
        return None


def _file(path: Path) -> Path:
    there = _is_there(path)
    if not (there and path.is_file()):
        what = (
            "is a folder. Name a file in it." if there and path.is_dir() else "does not exist: nothing has that name."
        )
        raise typer.BadParameter(f"'{path}' {what}")
    if not path.stat().st_size:
        raise typer.BadParameter(f"{path} is empty. Download or save it again.")
    return path


def comfyui_in(folder: Path | None) -> Path:
    """Return the whole path of ComfyUI's folder, or end the command: there is none."""
    if folder is None or not _is_there(folder / "main.py"):
        wrong = "ComfyUI's folder is not known" if folder is None else f"ComfyUI is not in '{folder}'"
        raise typer.BadParameter(f"{wrong}. Name its folder with --comfyui or COMFYUI_PATH.")
    return folder.resolve()
