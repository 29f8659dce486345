"""Pages of figures: one file that needs nothing else."""

from __future__ import annotations

import importlib.util
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onegraph.cli.app import app
from onegraph.cli.report.bench import page_of
from onegraph.cli.report.page import Bar, Bars, Group, Page, Table, Tile, render

MARKUP = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """Tags with their attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def full_page(word: str) -> str:
    bars = Bars(word, (Group(word, (Bar(word, 1.0, "eager", word),)),), word)
    table = Table(word, (word, word), ((word, word),))
    tile = Tile(word, word)
    return render(Page(word, word, (tile,), (bars,), (table,), ((word, word),), word))


def test_a_page_asks_for_nothing_else() -> None:
    page = Elements(full_page("word"))
    assert not page.all("script") and not page.all("link")
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv"))
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert "http" not in full_page("word").replace("http-equiv", "")


def test_everything_has_a_name() -> None:
    page = Elements(full_page("word"))
    assert page.all("html") == [{"lang": "en"}] and page.all("title")
    assert [section["aria-label"] for section in page.all("section")] == ["word"]
    assert page.all("meta")[1]["content"] == "width=device-width, initial-scale=1"
    region = next(div for div in page.all("div") if div.get("role") == "region")
    assert region["tabindex"] == "0" and region["aria-label"] == "word"  # a wide table is scrolled by keys
    assert "prefers-color-scheme: dark" in full_page("word")


def test_markup_is_shown_as_text() -> None:
    page = Elements(full_page(MARKUP))
    assert not page.all("script")
    assert page.text.count(MARKUP) >= 12


def test_the_length_of_a_bar_is_its_value() -> None:
    bars = (Bar("eager", 40.0, "eager", "40 ms"), Bar("compiled", 10.0, "compiled", "10 ms"))
    others = (Bar("eager", 0.0, "eager", "0 ms"), Bar("compiled", None, "compiled", "not compiled"))
    page = Page("t", "l", bars=(Bars("A call", (Group("UNet", bars), Group("VAE", others))),))
    drawn = [(one["class"], one["style"]) for one in Elements(render(page)).all("i")]
    assert drawn == [("eager", "width: 100.0%"), ("compiled", "width: 25.0%"), ("eager", "width: 0.4%")]


def figures(first_s: float, step_ms: float, said: str = "compiled, any size, 1.5x faster") -> dict[str, Any]:
    return {"first_s": first_s, "step_ms": step_ms, "memory_bytes": 2**28, "said": said}


def test_the_page_of_a_bench() -> None:
    results = {
        "eager": {"first": figures(0.4, 60.0, "eager"), "again": figures(0.3, 60.0, "eager")},
        "inductor": {"first": figures(31.0, 41.0), "again": figures(0.5, 40.0)},
        "oneflow": {"first": {"failed": "No GPU"}, "again": {"failed": "No GPU"}},
    }
    page = page_of("photo.safetensors", "512x512", results, "onegraph bench photo.safetensors")
    assert [tile.value for tile in page.tiles] == ["1.50x", "0.50 s"]
    shown = Elements(render(page)).text
    assert "31.0 s" in shown and "failed: No GPU" in shown and "268 MB" in shown and "photo.safetensors" in shown


def test_the_page_of_a_bench_in_which_all_failed() -> None:
    page = page_of("photo.safetensors", "64x64", {"oneflow": {"first": {"failed": "x"}, "again": {"failed": "x"}}}, "c")
    assert not page.tiles and not page.bars
    assert "failed: x" in Elements(render(page)).text


def bench(tmp_path: Path, *more: str) -> tuple[int, str]:
    (tmp_path / "main.py").touch()
    (tmp_path / "a.safetensors").write_bytes(b"weights")
    arguments = ["bench", str(tmp_path / "a.safetensors"), "--comfyui", str(tmp_path), *more]
    done = CliRunner(env={"COLUMNS": "400"}).invoke(app, arguments)
    return done.exit_code, done.output


def test_bench_without_jinja_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, *rest: Any) -> Any:
        return None if name == "jinja2" else known(name, *rest)

    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", find)
    code, said = bench(tmp_path, "--html", str(tmp_path / "bench.html"))
    assert code == 1
    assert said.strip() == (
        "Error: A page of figures needs Jinja2, which is not installed here; install it with: pip install jinja2"
    )
    assert not (tmp_path / "bench.html").exists()


def test_bench_refuses_a_page_where_no_folder_is(tmp_path: Path) -> None:
    code, said = bench(tmp_path, "--html", str(tmp_path / "none" / "bench.html"))
    assert code == 2 and "is no folder" in said
