"""Bars and time lines of the pictures and the demo, as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from charts import Lane, OwnScales, Span, Timeline, bars_file, timeline_svg

from onegraph.cli.report.page import SERIES, Bar, Bars, Group

SVG = "{http://www.w3.org/2000/svg}"
MARKUP = '<b onload="x">&'


def bars(kind: type[Bars] = Bars) -> Bars:
    first = Group("UNet", (Bar("eager", 40.0, "eager", "40 ms"), Bar("compiled", 10.0, "compiled", "10 ms")))
    second = Group("VAE", (Bar("eager", 4.0, "eager", "4 ms"), Bar("compiled", None, "compiled", "not compiled")))
    return kind("A call", (first, second), "a note")


def widths(drawing: str, series: str) -> list[float]:
    found = ElementTree.fromstring(drawing).iter(f"{SVG}rect")
    return [float(rect.attrib["width"].rstrip("%")) for rect in found if rect.get("class") == series]


def test_the_length_of_a_bar_is_its_value() -> None:
    drawing = bars_file((bars(),), "a")
    longest = widths(drawing, "eager")[0]
    assert widths(drawing, "eager") == [longest, pytest.approx(longest / 10)]
    assert widths(drawing, "compiled") == [pytest.approx(longest / 4)]  # None draws no bar
    assert widths(bars_file((bars(OwnScales),), "a"), "eager") == [longest, longest]


def test_a_value_of_almost_nothing_is_seen() -> None:
    chart = Bars("t", (Group("g", (Bar("a", 1e6, "eager", ""), Bar("b", 0.0, "restore", "0 s"))),))
    assert widths(bars_file((chart,), "a"), "restore")[0] > 0
    assert widths(bars_file((Bars("t", (Group("g", (Bar("a", 0.0, "eager", "0"),)),)),), "a"), "eager")


def test_bars_have_a_name_and_are_read_in_words() -> None:
    root = ElementTree.fromstring(bars_file((bars(),), "All calls"))
    assert root.attrib["role"] == "img"
    parts = [root.find(f".//*[@id='{name}']") for name in root.attrib["aria-labelledby"].split()]
    title, text = [part.text for part in parts if part is not None]
    words = "UNet: eager 40 ms, compiled 10 ms. VAE: eager 4 ms, compiled not compiled."
    assert (title, text) == ("All calls", f"A call: {words}")
    shown = [element.text for element in root.iter(f"{SVG}text")]
    assert {"UNet", "eager", "40 ms", "not compiled"} <= set(shown)


def test_a_file_of_its_own_has_its_colours_and_its_paper() -> None:
    drawing = bars_file((bars(), bars(OwnScales)), "All calls")
    assert "prefers-color-scheme: dark" in drawing
    root = ElementTree.fromstring(drawing)
    assert next(root.iter(f"{SVG}rect")).attrib["fill"] == "var(--paper)"
    assert all(f"--{series}:" in drawing for series in SERIES)
    right = [float(r.attrib["x"]) + float(r.attrib["width"]) for r in root.iter(f"{SVG}rect") if "class" in r.attrib]
    assert max(right) < 700  # which leaves room for the value
    lowest = max(float(text.attrib["y"]) for text in root.iter(f"{SVG}text"))
    assert lowest < float(root.attrib["height"])


def test_names_with_markup_are_text() -> None:
    chart = Bars(MARKUP, (Group(MARKUP, (Bar(MARKUP, 1.0, "eager", MARKUP),)),), MARKUP)
    lanes = (Lane(MARKUP, MARKUP, (Span(0, 1, "eager", MARKUP),)),)
    for drawing in (bars_file((chart,), MARKUP), timeline_svg(Timeline(MARKUP, lanes), "a")):
        root = ElementTree.fromstring(drawing)
        assert not [element for element in root.iter() if element.tag.endswith("}b") or element.tag == "b"]
        assert MARKUP in [element.text for element in root.iter()]


def test_spans_lie_where_they_took_place() -> None:
    start = Lane("start", "10 s", (Span(0, 10, "start", "start"),))
    work = Lane("work", "30 s", (Span(10, 25, "compile", "compile"), Span(25, 40, "compiled", "compiled")))
    drawing = timeline_svg(Timeline("Process", (start, work)), "t")
    root = ElementTree.fromstring(drawing)
    places = {rect.attrib["class"]: (rect.attrib["x"], rect.attrib["width"]) for rect in root.iter("rect")}
    assert places["start"] == ("0%", "25%")
    assert places["compile"] == ("25%", "37.5%")
    assert places["compiled"] == ("62.5%", "37.5%")
    ticks = [element.text for element in root.iter("text") if element.get("class") == "tick"]
    assert ticks == ["0 s", "10 s", "20 s", "30 s", "40 s"]
    assert timeline_svg(Timeline("Nothing", ()), "t")  # no lane, no division by it
