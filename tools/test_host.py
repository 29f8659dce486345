"""Run the tests that need ComfyUI against any ComfyUI: `make test-host COMFYUI_PATH=/your/ComfyUI`.

A ComfyUI of another release pins other versions of its own compiled packages (comfy-kitchen, comfy-aimdo). Where they
differ from those in .venv, the tests run in an environment of their own below build/, which has these packages in front
of what .venv holds. Nothing else is installed, and .venv stays as it is.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("host", "vae", "edits", "blocks", "server")
_PIN = re.compile(r"^(comfy-[\w-]+)==([\w.]+)")  # the host's own; comfyui-* are its web pages


def pins(requirements: str) -> dict[str, str]:
    """Return the versions of its own compiled packages that a ComfyUI's requirements.txt asks for."""
    return {found[1]: found[2] for line in requirements.splitlines() if (found := _PIN.match(line.strip()))}


def differing(wanted: Mapping[str, str]) -> list[str]:
    """Return the requirements that this environment does not meet, as `name==version`, sorted."""
    unmet = []
    for name, version in wanted.items():
        try:
            present = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            present = ""
        if present != version:
            unmet.append(f"{name}=={version}")
    return sorted(unmet)


def environment_with(requirements: list[str]) -> Path:
    """Make an environment with these packages in front of this one's, where there is none, and return its Python."""
    digest = hashlib.sha256(f"{sys.executable} {requirements}".encode()).hexdigest()[:12]
    folder = ROOT / "build" / "host-env" / digest
    python, done = folder / "bin" / "python", folder / "done"
    if done.is_file():
        return python
    print(f"installing {', '.join(requirements)} into {folder.relative_to(ROOT)}", flush=True)
    venv.create(folder, clear=True, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(folder), "platbase": str(folder)}))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), *requirements]
    subprocess.run(pip, check=True)
    (site / "below.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (site / "onegraph").symlink_to(ROOT, target_is_directory=True)  # .pth files in a folder that one names are not read
    done.touch()
    return python


def main(arguments: list[str]) -> int:
    comfyui = os.environ.get("COMFYUI_PATH", "")
    if not (Path(comfyui) / "main.py").is_file():
        print("COMFYUI_PATH must name the folder with ComfyUI's main.py: make test-host COMFYUI_PATH=/your/ComfyUI")
        return 2
    requirements = differing(pins((Path(comfyui) / "requirements.txt").read_text()))
    python = environment_with(requirements) if requirements else Path(sys.executable)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    layers = arguments[:split] or [*LAYERS]
    command = [str(python), "tools/run_tests.py", "--no-lint", *layers, *arguments[split:]]
    environ = {**os.environ, "COMFYUI_PATH": str(Path(comfyui).resolve())}
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
