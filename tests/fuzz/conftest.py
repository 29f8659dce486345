"""One server for all random cases, on small seeded models whose graphs are compiled once, before the first case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import controlnet, host, models, server
from support.fuzz import cases
from support.fuzz.judge import Bench
from support.fuzz.report import Tally
from support.fuzz.workflow import CHECKPOINT, CONTROLNET, LORAS, REFINER, SECOND, Case, Ingredient, Settings, prompt_of

REPORT = host.ROOT / "build" / "fuzz" / "report.json"
DEFAULT_CASES, DEFAULT_SEED = 40, 1
COMPILING = 1200  # seconds
_tally = pytest.StashKey[Tally]()
_drawn = pytest.StashKey[list[Case]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz", "random workflows")
    group.addoption("--fuzz-cases", type=int, default=DEFAULT_CASES, help="how many")
    group.addoption("--fuzz-seed", type=int, default=DEFAULT_SEED, help="of which seed")
    group.addoption("--fuzz-replay", type=Path, help="a file with a recipe in each line, instead of random cases")
    group.addoption("--fuzz-report", type=Path, default=REPORT, help="where the report goes")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_tally] = Tally(config.getoption("fuzz_seed"))
    replay = config.getoption("fuzz_replay")
    if replay is not None:
        config.stash[_drawn] = [Case.from_json(line) for line in replay.read_text().splitlines() if line.strip()]
    else:
        seed = config.getoption("fuzz_seed")
        config.stash[_drawn] = [cases.draw(seed, number) for number in range(config.getoption("fuzz_cases"))]


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


def _warm_up(drawn: list[Case]) -> list[Case]:
    """Cases that have every graph compiled that the drawn ones need: a tile never compiles one."""
    settings = Settings(vae_node="both")
    found = [Case("warm-up", settings, (Ingredient("img2img"),))]
    if any(i.kind == "refiner" for case in drawn for i in case.ingredients):
        found.append(Case("warm-up with the refiner", settings, (Ingredient("refiner"),)))
    return found


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config, tally: Tally) -> Iterator[Bench]:
    """A server with everything that the ingredients name, and all graphs compiled."""
    host.boot()
    base = server.prepare_base(tmp_path_factory.mktemp("comfyui"))
    folder = base / "models"
    models.write_checkpoint("tiny_sdxl", folder / "checkpoints" / CHECKPOINT, seed=1, vae="both")
    models.write_checkpoint("tiny_sdxl", folder / "checkpoints" / SECOND, seed=2)
    models.write_checkpoint("tiny_refiner", folder / "checkpoints" / REFINER, seed=1)
    for seed, name in enumerate(LORAS, 3):
        models.write_lora("tiny_sdxl", folder / "loras" / name, seed)
    controlnet.write_controlnet("tiny_sdxl", folder / "controlnet" / CONTROLNET)
    env = {"ONEGRAPH_HOME": str(tmp_path_factory.mktemp("home")), "ONEGRAPH_TESTING_TRUST_SLOW_GRAPHS": "1"}
    bench = Bench(base, host.comfyui_path(), env)
    try:
        for case in _warm_up(pytestconfig.stash[_drawn]):
            outcome = bench.run(prompt_of(case), COMPILING)
            assert outcome.status == "success", outcome.error
        yield bench
        tally.starts = bench.starts
    finally:
        bench.close()
