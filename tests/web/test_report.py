"""The page of figures that `make demo` ends with, opened from the disk, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import demo_report
import pytest
from support.page import figures
from support.page.browser import axe_findings, too_wide

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCHEMES: dict[int, Literal["light", "dark"]] = {1280: "light", 400: "dark"}


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return demo_report.write(figures.of_a_demo(folder), folder, folder / "report.html")


def test_it_fits_and_can_be_read(browser: Browser, page_file: Path) -> None:
    for width, scheme in SCHEMES.items():
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))  # type: ignore[misc]
        page.goto(page_file.as_uri())
        assert page.get_by_role("img").count() >= 6
        assert too_wide(page, "body") == []
        assert axe_findings(page, "html") == []
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        context.close()
