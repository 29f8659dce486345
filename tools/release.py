"""What is published: `release.py pack` writes the archive, `release.py check TAG` refuses a tag that does not fit.

The archive holds what ComfyUI's registry takes: the files that git tracks, without those that .comfyignore names.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IGNORED = ".comfyignore"


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(root), "ls-files", "-z", *arguments], capture_output=True, check=True)
    return [name for name in done.stdout.decode().split("\0") if name]


def files(root: Path = ROOT) -> list[str]:
    """Names of the files that are published, relative to the root."""
    left_out = set(_git(root, "--cached", "--ignored", f"--exclude-from={root / IGNORED}"))
    return [name for name in _git(root) if name not in left_out and (root / name).is_file()]


def version(root: Path = ROOT) -> str:
    """The version in pyproject.toml."""
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def pack(to: Path, root: Path = ROOT) -> Path:
    """Write the archive; its path."""
    to.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files(root):
            archive.write(root / name, name)
    return to


def troubles(tag: str, root: Path = ROOT) -> list[str]:
    """Why this tag cannot be published; empty where it can."""
    number = version(root)
    found = []
    if tag != f"v{number}":
        found.append(f"The tag {tag} is not v{number}, the version in pyproject.toml.")
    if f'__version__ = "{number}"' not in (root / "common" / "version.py").read_text():
        found.append(f"__version__ in common/version.py is not {number}.")
    dated = rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(dated, (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        found.append(f"CHANGELOG.md has no section for {number} with a date.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pack", help="write the archive below build/pack")
    commands.add_parser("check", help="does a tag fit the version and the changelog?").add_argument("tag")
    given = parser.parse_args()
    if given.command == "pack":
        archive = pack(ROOT / "build" / "pack" / f"onegraph-{version()}.zip")
        print(f"{archive.relative_to(ROOT)}: {len(files())} files, {archive.stat().st_size / 1e6:.1f} MB")
        return
    found = troubles(given.tag)
    for trouble in found:
        print(trouble, file=sys.stderr)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
