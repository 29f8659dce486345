"""One server for all random cases, on small seeded models with the graphs that all layers share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless import host, server
from support.comfyui.shared_graphs import SharedGraphs, dit_graphs
from support.dit_matrix.weights import lora_of
from support.fuzz import cases
from support.fuzz.report import Tally
from support.scenes.bench import Bench, running, write_models
from support.scenes.workflow import (
    LORAS,
    TRANSFORMERS,
    Case,
    Family,
    Ingredient,
    Settings,
    checkpoint_file,
    lora_file,
    prompt_of,
)

REPORT = host.ROOT / "build" / "fuzz" / "report.json"
RECIPES = Path(__file__).with_name("recipes.jsonl")  # cases that failed once, in their order
DEFAULT_CASES, DEFAULT_SEED = 16, 1
SHORT = ("flux", "z-image")  # transformers of a short run, whose graphs tests/host needs as well
_tally = pytest.StashKey[Tally]()
_drawn = pytest.StashKey[list[Case]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "random workflows")
    group.addoption("--fuzz-cases", type=int, default=DEFAULT_CASES, help="how many")
    group.addoption("--fuzz-seed", type=int, default=DEFAULT_SEED, help="of which seed")
    group.addoption("--fuzz-replay", type=Path, help="a file with a recipe in each line, instead of all others")
    group.addoption("--fuzz-base", type=Path, help="a folder for models and graphs that stay for the next run")
    group.addoption("--fuzz-report", type=Path, default=REPORT, help="where the report goes")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_tally] = Tally(config.getoption("fuzz_seed"))
    replay = config.getoption("fuzz_replay")
    seed, number = config.getoption("fuzz_seed"), config.getoption("fuzz_cases")
    drawn = [Case.from_json(line) for line in (replay or RECIPES).read_text().splitlines() if line.strip()]
    if replay is None:
        drawn += _draw(seed, number)
    config.stash[_drawn] = drawn


def _steers_sd15(case: Case) -> bool:
    return case.settings.family == "sd15" and any(i.kind == "controlnet" for i in case.ingredients)


def _draw(seed: int, number: int) -> list[Case]:
    """The cases of a seed; a short run leaves out those that need a graph which no other test of `make test` needs."""
    drawn = (cases.draw(seed, each) for each in itertools.count())
    if number <= DEFAULT_CASES:
        left_out = {*TRANSFORMERS} - {*SHORT}
        drawn = (case for case in drawn if not _steers_sd15(case) and case.settings.family not in left_out)
    return list(itertools.islice(drawn, number))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        drawn = metafunc.config.stash[_drawn]
        metafunc.parametrize("case", drawn, ids=[case.name for case in drawn])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tally = config.stash[_tally]
    if not tally.verdicts:
        return
    path = config.getoption("fuzz_report")
    tally.write(path)
    terminalreporter.section("random workflows")
    for line in [*tally.table(), "", f"written to {path}"]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tally(pytestconfig: pytest.Config) -> Tally:
    return pytestconfig.stash[_tally]


def _graphs(drawn: list[Case]) -> dict[str, tuple[str, ...]]:
    """The graphs that the drawn cases need, by checkpoint."""
    needed: dict[str, tuple[str, ...]] = {}
    if not _transformers_alone(drawn):
        needed[checkpoint_file("sdxl")] = ("sdxl", "sdxl steered", "decoder", "encoder")
    sd15 = [case for case in drawn if case.settings.family == "sd15"]
    if sd15:
        needed[checkpoint_file("sd15")] = ("sd15", "sd15 steered") if any(map(_steers_sd15, sd15)) else ("sd15",)
    if any(i.kind == "refiner" for case in drawn for i in case.ingredients):
        needed[checkpoint_file("refiner")] = ("refiner",)
    return needed


def _transformers(drawn: list[Case]) -> list[Family]:
    """The transformers of the drawn cases."""
    return [family for family in TRANSFORMERS if any(case.settings.family == family for case in drawn)]


def _transformers_alone(drawn: list[Case]) -> bool:
    """Whether recipes of nothing else are run again."""
    return all(case.settings.family in TRANSFORMERS for case in drawn)


def _write_loras(folder: Path, family: Family) -> None:
    """LoRAs of a transformer."""
    from safetensors.torch import save_file
    from support.models import dits

    folder.mkdir(parents=True, exist_ok=True)
    model = dits.load(family)
    for number in range(LORAS):
        save_file(lora_of(model, seed=3 + number), folder / lora_file(family, number))


def _warm_up(drawn: list[Case]) -> list[Case]:
    """Cases that use all of these once; a tile never compiles what is missing."""
    found = [Case("warm-up", Settings(vae_node="both"), (Ingredient("img2img"),))]
    if _transformers_alone(drawn):
        found = []
    if any(case.settings.family == "sd15" for case in drawn):
        found.append(Case("warm-up of sd15", Settings(family="sd15")))
    if any(i.kind == "refiner" for case in drawn for i in case.ingredients):
        found.append(Case("warm-up of the refiner", Settings(), (Ingredient("refiner"),)))
    return found + [Case(f"warm-up of {family}", Settings(family=family)) for family in _transformers(drawn)]


@pytest.fixture(scope="session")
def bench(
    tmp_path_factory: pytest.TempPathFactory,
    pytestconfig: pytest.Config,
    tally: Tally,
    shared_graphs: SharedGraphs,
) -> Iterator[Bench]:
    """A server with everything that the ingredients name, and all graphs compiled."""
    host.boot()
    given = pytestconfig.getoption("fuzz_base")
    graphs = shared_graphs if given is None else SharedGraphs(given / "graphs")
    root = tmp_path_factory.mktemp("fuzz") if given is None else given
    folder = server.prepare_base(root / "comfyui") / "models"
    write_models(folder)
    drawn = pytestconfig.stash[_drawn]
    for file, kinds in _graphs(drawn).items():
        graphs.give(root / "home", folder / "checkpoints" / file, *kinds)
    for family in _transformers(drawn):
        _write_loras(folder / "loras", family)
        graphs.give(root / "home", None, *dit_graphs(family))
    with running(root) as bench:
        for case in _warm_up(drawn):
            outcome = bench.run(prompt_of(case))
            assert outcome.status == "success", outcome.error
        # A folder that was kept may hold graphs of an older version.
        assert given is not None or bench.status()["compiles"] == 0
        yield bench
        tally.starts = bench.starts
