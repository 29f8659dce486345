"""Debian's Chromium, for the tests of the page. Everything else works without it, so nothing here fails the set-up."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from setup_common import Layout, SetupError, run, say, seconds_since

CHROMIUM = Path("/usr/bin/chromium")
_APT = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]


def has_browser() -> bool:
    return os.access(str(CHROMIUM), os.X_OK)


def fetch_browser(layout: Layout) -> None:
    """Install Chromium where that can be done without asking, else say in one line what to install."""
    if has_browser():
        say(f"Chromium · {CHROMIUM}")
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"Chromium left out · install Debian's package chromium ({CHROMIUM}); tests of the page are skipped")
        return
    began = time.monotonic()
    say("Chromium · by apt-get …")
    install = ["env", "DEBIAN_FRONTEND=noninteractive", *_APT, "install", "-y", "--no-install-recommends", "chromium"]
    try:
        run(layout, "Updating the list of packages", [*_APT, "update"])
        run(layout, "Installing Chromium", install)
    except SetupError as error:
        say(f"Chromium left out · {error} Tests of the page are skipped.")
        return
    say(f"Chromium · {seconds_since(began)}")
