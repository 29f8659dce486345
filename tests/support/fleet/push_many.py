"""A machine of a publisher's that makes graphs of a few bytes and pushes them one after the other.

`python -m support.fleet.push_many HOME URL COUNT [NAME]`; with a part of a name, it is killed when it is about to write
such a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from onegraph.graph_cache.sources.transport import Remote
from onegraph.graph_cache.store import Store
from support.fleet.stores import Publisher
from support.store.entries import key

_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # by which Windows ends a process as abruptly
DIED = -_KILL if os.name == "posix" else int(_KILL)  # how a process ended that was killed so


def begin(home: Path, url: str, count: int, *dies_at: str) -> subprocess.Popen[bytes]:
    """Start such a machine, whose graph folder has the publisher's key."""
    command = [sys.executable, "-m", "support.fleet.push_many", str(home), url, str(count), *dies_at]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    )


def another_machine(of: Publisher, home: Path) -> Publisher:
    """Another machine of a publisher's: the same key, and a graph folder that knows nothing."""
    home.mkdir()
    (home / "publisher.key").write_bytes(of.private)
    (home / "publisher.key").chmod(0o600)
    return Publisher(Store(home))


def main() -> None:
    """Push the graphs."""
    home, url, count, *dies_at = sys.argv[1:]
    machine, write = Publisher(Store(Path(home))), Remote.write

    def deadly(self: Remote, name: str, data: bytes, **mode: str) -> None:
        if dies_at and dies_at[0] in name:
            os.kill(os.getpid(), _KILL)
        write(self, name, data, **mode)

    Remote.write = deadly  # type: ignore[method-assign]
    for number in range(int(count)):
        architecture = f"{Path(home).name}-{number}"
        assert machine.push(url, machine.make(key(architecture=architecture), architecture.encode())) == ["pushed"]


if __name__ == "__main__":
    main()
