"""Finding, publishing and discarding entries. An entry is one directory, published whole by one rename.

Layout: `<checkpoint stem>.graphs/<model hash>/<component>/<label>-<dtype>-<backend>-<target>-<key digest>/`,
next to the checkpoint, or below the user's graph folder when the checkpoint's folder cannot be written or the
checkpoint is not known. Folder names are for people; the manifest alone decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import platformdirs
from blake3 import blake3
from pydantic import ValidationError

from ..common.tensor_meta import TensorMeta
from .key import GraphKey, difference
from .manifest import MANIFEST_FILE, OUTCOME_FILE, CodeRecord, FileRecord, Manifest, Outcome, Outcomes
from .model_hash import ModelSource

log = logging.getLogger("onegraph.graph_cache")

GRAPHS_SUFFIX = ".graphs"
COMPILER_CACHE = "compiler-cache"  # below the user's folder: what compiles share, no graphs
_STAGING = ".staging-"
_BROKEN = ".broken-"
_LOADING = ".loading"
_RECORDING = ".recording"
_STALE_SECONDS = 24 * 3600

Differs = Callable[[Manifest], str | None]


@dataclass(frozen=True)
class Entry:
    """A published graph: its directory and its manifest."""

    folder: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.manifest.files.values())


@dataclass(frozen=True)
class Sound:
    """Every file of the entry is what the manifest says."""


@dataclass(frozen=True)
class Damaged:
    """A file is missing, cut short or altered."""

    reason: str


@dataclass(frozen=True)
class Hit:
    """A sound entry for the key. `adopted_from` names the model that compiled it, when it was another one."""

    entry: Entry
    adopted_from: str = ""


@dataclass(frozen=True)
class Miss:
    """No entry for the key; `reason` says what was nearest."""

    reason: str


@dataclass(frozen=True)
class Broken:
    """An entry for the key was there, but damaged; it has been moved aside."""

    reason: str


def user_folder() -> Path:
    """Where graphs go that cannot live beside their checkpoint: `ONEGRAPH_HOME` or the platform's cache folder."""
    chosen = os.environ.get("ONEGRAPH_HOME")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("onegraph", appauthor=False))


def machine_id() -> str:
    """Names this machine in outcome records; two machines may share one store."""
    import platform

    return blake3(f"{platform.node()} {platform.machine()} {os.cpu_count()}".encode()).hexdigest(length=6)


def _alive(pid: int) -> bool:
    """Whether a process of that id runs; True when that cannot be told."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def record(path: Path) -> FileRecord:
    """Size and digest of a file."""
    return FileRecord(bytes=path.stat().st_size, blake3=blake3(path.read_bytes()).hexdigest())


def read(folder: Path) -> Entry | Damaged:
    """The entry in `folder`, without checking its files."""
    try:
        return Entry(folder, Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes()))
    except (OSError, ValidationError) as error:
        return Damaged(f"its manifest cannot be read ({str(error).splitlines()[0]})")


def check(entry: Entry) -> Sound | Damaged:
    """Compare every file with the manifest. Done before anything of an entry is parsed or loaded."""
    for name, wanted in entry.manifest.files.items():
        path = entry.folder / name
        if Path(name).name != name or not path.is_file() or path.is_symlink():
            return Damaged(f"its file {name} is missing")
        size = path.stat().st_size
        if size != wanted.bytes:
            return Damaged(f"its file {name} has {size} bytes instead of {wanted.bytes}")
        if record(path) != wanted:
            return Damaged(f"the contents of its file {name} have changed")
    return Sound()


class Store:
    """All entries reachable from one user: beside checkpoints and in the user's graph folder."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or user_folder()
        self.compiler_cache = self.home / COMPILER_CACHE
        self.compile_times = self.home / f"{machine_id()}-compile-times.json"

    # Places -------------------------------------------------------------------------------------------------

    def places(self, source: ModelSource) -> list[Path]:
        """The folders in which this model's graphs may live, best first."""
        at_home = self.home / source.digest
        if source.path is None:
            return [at_home]
        return [source.path.with_name(source.path.stem + GRAPHS_SUFFIX) / source.digest, at_home]

    def _writable(self, source: ModelSource) -> Path:
        """The first place that can be written. Raises OSError when none can."""
        last: OSError | None = None
        for place in self.places(source):
            try:
                place.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=place):
                    return place
            except OSError as error:
                last = error
                log.debug("cannot keep graphs in %s: %s", place, error)
        raise last or OSError("no place for graphs")

    @contextlib.contextmanager
    def staging(self, source: ModelSource) -> Iterator[Path]:
        """An empty folder on the file system of the model's place; gone when the block ends."""
        place = self._writable(source)
        for old in place.glob(_STAGING + "*"):
            with contextlib.suppress(OSError):
                if time.time() - old.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_STAGING, dir=place))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for empty in (place, place.parent):
                with contextlib.suppress(OSError):
                    empty.rmdir()

    # Looking up ---------------------------------------------------------------------------------------------

    def find(
        self,
        key: GraphKey,
        source: ModelSource,
        neighbours: Iterable[Path] = (),
        differs: Differs = lambda manifest: None,
    ) -> Hit | Miss | Broken:
        """The entry for `key`: this model's own, or another model's of the same architecture, adopted.

        Args:
            neighbours: folders with checkpoints, whose `.graphs` folders are searched too.
            differs: why an entry of the same key cannot be used here all the same, or None.
        """
        nearest: list[str] = []
        for place in self.places(source):
            for folder in self._candidates(place / key.component, key.digest):
                judged = self._judge(folder, key, differs)
                if not isinstance(judged, Miss):
                    return judged
                nearest.append(judged.reason)
            nearest += [
                f"the graphs kept for this model differ in {d}"
                for d in self._differences(place / key.component, key)
                if d
            ]
        for folder in self._foreign(key, source, neighbours):
            judged = self._judge(folder, key, differs)
            if isinstance(judged, Hit):
                with contextlib.suppress(OSError):
                    judged = Hit(self._adopt(judged.entry, key, source), folder.parents[2].name)
                return judged
        if nearest:
            return Miss(nearest[0])
        return Miss("no graph is kept for this model yet")

    def sibling(
        self,
        key: GraphKey,
        source: ModelSource,
        neighbours: Iterable[Path] = (),
        differs: Differs = lambda manifest: None,
    ) -> Entry | None:
        """A sound entry that differs from `key` in the shapes alone, this model's or another's."""
        wanted = {name: value for name, value in key.fields().items() if name != "shapes"}
        for place in [*self.places(source), *self._other_models(source, neighbours)]:
            for folder in sorted((place / key.component).glob("*")):
                entry = read(folder) if not folder.name.startswith(".") else None
                if not isinstance(entry, Entry):
                    continue
                found = {name: value for name, value in entry.manifest.key.items() if name != "shapes"}
                if found == wanted and differs(entry.manifest) is None and isinstance(check(entry), Sound):
                    return entry
        return None

    def _candidates(self, component: Path, digest: str) -> list[Path]:
        try:
            return sorted(p for p in component.glob(f"*-{digest}*") if not p.name.startswith("."))
        except OSError:
            return []

    def _judge(self, folder: Path, key: GraphKey, differs: Differs) -> Hit | Miss | Broken:
        entry = read(folder)
        if isinstance(entry, Entry):
            if entry.manifest.key != key.fields():
                return Miss(f"the graph in its folder differs in {difference(key.fields(), entry.manifest.key)}")
            reason = differs(entry.manifest)
            if reason is not None:
                return Miss(reason)
            state = check(entry)
            if isinstance(state, Sound):
                if not self._crashed(folder):
                    return Hit(entry)
                self.quarantine(folder)
                return Broken("the kept graph was set aside, because the process that took it up last died meanwhile")
            entry = state
        self.quarantine(folder)
        return Broken(f"the kept graph is damaged: {entry.reason}")

    def _differences(self, component: Path, key: GraphKey) -> list[str]:
        found = (read(folder) for folder in sorted(component.glob("*")) if not folder.name.startswith("."))
        return sorted((difference(key.fields(), e.manifest.key) for e in found if isinstance(e, Entry)), key=len)

    def _foreign(self, key: GraphKey, source: ModelSource, neighbours: Iterable[Path]) -> Iterator[Path]:
        for model in self._other_models(source, neighbours):
            yield from self._candidates(model / key.component, key.digest)

    def _other_models(self, source: ModelSource, neighbours: Iterable[Path]) -> Iterator[Path]:
        """The places of other models' graphs, in the user's folder and beside checkpoints."""
        roots = list(neighbours)
        if source.path is not None:
            roots.append(source.path.parent)
        own = set(self.places(source))
        seen: set[Path] = set()
        for root in [self.home, *dict.fromkeys(roots)]:
            pattern = "*" if root == self.home else f"*{GRAPHS_SUFFIX}/*"
            with contextlib.suppress(OSError):
                for model in sorted(root.glob(pattern)):
                    if model in own or model in seen:
                        continue
                    seen.add(model)
                    yield model

    def _adopt(self, entry: Entry, key: GraphKey, source: ModelSource) -> Entry:
        """Take another model's entry over into this model's place, by hard links where they work. Raises OSError."""
        with self.staging(source) as staging:
            for name in entry.manifest.files:
                try:
                    os.link(entry.folder / name, staging / name)
                except OSError:
                    shutil.copyfile(entry.folder / name, staging / name)
            return self._publish(key, source, staging, entry.manifest, self.outcomes(entry))

    # Publishing ---------------------------------------------------------------------------------------------

    def publish(
        self,
        key: GraphKey,
        source: ModelSource,
        staging: Path,
        *,
        label: str,
        files: Iterable[str],
        constants: tuple[TensorMeta, ...],
        compile_seconds: float,
        made_by: str,
        code: CodeRecord | None = None,
    ) -> Entry:
        """Make the files in `staging` (from `self.staging`) an entry. Raises OSError."""
        manifest = Manifest(
            key=key.fields(),
            label=label,
            files={name: record(staging / name) for name in sorted(files)},
            constants=constants,
            code=code,
            compile_seconds=round(compile_seconds, 3),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            made_by=made_by,
        )
        return self._publish(key, source, staging, manifest, Outcomes())

    def _publish(
        self, key: GraphKey, source: ModelSource, staging: Path, manifest: Manifest, outcomes: Outcomes
    ) -> Entry:
        place = staging.parent
        target = "-".join(key.target.get(k, "") for k in ("device", "cpu") if key.target.get(k))
        name = f"{_slug(manifest.label)}-{key.dtype}-{key.backend}-{target}-{key.digest}"
        if manifest.code is not None:  # graphs of one key for two versions of the host stand beside each other
            name += f"-{manifest.code.digest}"
        final = place / key.component / name
        final.parent.mkdir(parents=True, exist_ok=True)
        for leftover in list(staging.iterdir()):
            if leftover.name not in manifest.files:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        for file in manifest.files:
            with (staging / file).open("rb") as f:
                os.fsync(f.fileno())
        if outcomes.machines:
            _write(staging / OUTCOME_FILE, outcomes.model_dump_json(indent=1))
        _write(staging / MANIFEST_FILE, manifest.model_dump_json(indent=1))  # last: without it there is no entry
        _sync_folder(staging)
        staging.chmod(0o755)
        try:
            staging.rename(final)
        except OSError:
            # Somebody else published the same graph meanwhile; theirs is as good when it is whole.
            entry = read(final)
            if isinstance(entry, Entry) and isinstance(check(entry), Sound):
                return entry
            self.quarantine(final)
            staging.rename(final)
        _sync_folder(final.parent)
        return Entry(final, manifest)

    def quarantine(self, folder: Path) -> None:
        """Move an entry aside, so that it is never loaded again; the last one is kept for a look, older ones go."""
        for older in folder.parent.glob(f"{_BROKEN}{folder.name}-*"):
            shutil.rmtree(older, ignore_errors=True)
        aside = folder.with_name(f"{_BROKEN}{folder.name}-{time.time_ns():x}")
        try:
            folder.rename(aside)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)

    # First use ----------------------------------------------------------------------------------------------

    def outcomes(self, entry: Entry) -> Outcomes:
        """What first uses showed so far; empty when nothing (readable) is recorded."""
        try:
            return Outcomes.model_validate_json((entry.folder / OUTCOME_FILE).read_bytes())
        except (OSError, ValidationError):
            return Outcomes()

    def outcome(self, entry: Entry) -> Outcome:
        """What the first use on this machine showed."""
        return self.outcomes(entry).machines.get(machine_id(), Outcome())

    def remember(self, entry: Entry, outcome: Outcome) -> None:
        """Record the outcome on this machine. A read-only store is no error: it is measured again next time."""
        try:
            machines = {**self.outcomes(entry).machines, machine_id(): outcome}
            temporary = entry.folder / f".{OUTCOME_FILE}.{os.getpid()}"
            _write(temporary, Outcomes(machines=machines).model_dump_json(indent=1))
            temporary.replace(entry.folder / OUTCOME_FILE)
        except OSError as error:
            log.debug("the outcome of %s could not be recorded: %s", entry.folder, error)

    # Crash marker -------------------------------------------------------------------------------------------

    def _markers(self, folder: Path, kind: str) -> Path:
        """Where processes of this machine mark what they are about to do with the entry; the store may be read-only."""
        name = blake3(str(folder.resolve()).encode()).hexdigest(length=8)
        return self.home / kind / f"{machine_id()}-{name}"

    def loading(self, entry: Entry) -> contextlib.AbstractContextManager[None]:
        """Around the moments in which a bad graph could take the process down: a marker stays if it does."""
        return self._marked(entry, _LOADING)

    def recording(self, entry: Entry) -> contextlib.AbstractContextManager[None]:
        """The same around recording a call as a CUDA graph, which is never tried again here if it goes wrong."""
        return self._marked(entry, _RECORDING)

    def recording_crashed(self, entry: Entry) -> bool:
        """Whether a process of this machine ended while it recorded a call of this graph."""
        with contextlib.suppress(OSError):
            markers = self._markers(entry.folder, _RECORDING).iterdir()
            return any(marker.name.isdigit() and not _alive(int(marker.name)) for marker in markers)
        return False

    @contextlib.contextmanager
    def _marked(self, entry: Entry, kind: str) -> Iterator[None]:
        marker = self._markers(entry.folder, kind) / str(os.getpid())
        try:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            log.debug("no crash marker for %s: %s", entry.folder, error)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                marker.unlink(missing_ok=True)

    def _crashed(self, folder: Path) -> bool:
        """Whether a process ended while it took this entry into use; its markers are cleared."""
        crashed = False
        with contextlib.suppress(OSError):
            for marker in self._markers(folder, _LOADING).iterdir():
                own = marker.name == str(os.getpid())
                if not own and marker.name.isdigit() and not _alive(int(marker.name)):
                    crashed = True
                    marker.unlink(missing_ok=True)
        return crashed

    # Listing ------------------------------------------------------------------------------------------------

    def entries(self, neighbours: Iterable[Path] = ()) -> Iterator[Entry]:
        """Every readable entry in the user's folder and beside the checkpoints in `neighbours`."""
        for root in [self.home, *neighbours]:
            pattern = f"*/*/*/{MANIFEST_FILE}" if root == self.home else f"*{GRAPHS_SUFFIX}/*/*/*/{MANIFEST_FILE}"
            for path in sorted(root.glob(pattern)):
                entry = read(path.parent)
                if isinstance(entry, Entry) and not path.parent.name.startswith("."):
                    yield entry
