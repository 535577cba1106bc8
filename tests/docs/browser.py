"""A real browser without a window, that keeps what its console was told."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# It runs without a screen, as root too, in little shared memory, and asks nobody for anything by itself. It knows no
# name of any host: a page that wants something from the network complains.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--window-size=1300,1000",
)


def find() -> tuple[str, str] | None:
    """The browser and its driver, or None where one of them is missing."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    folder = os.environ.get("CHROMEWEBDRIVER")  # where hosted runners keep it
    driver = shutil.which("chromedriver", path=os.pathsep.join(filter(None, [folder, os.environ.get("PATH")])))
    return (program, driver) if program and driver else None


@contextmanager
def started(program: str, driver: str, profile: Path) -> Iterator[Any]:
    """A browser of its own, with an empty profile; gone in the end, whatever happens."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        browser.set_page_load_timeout(60)
        yield browser
    finally:
        browser.quit()


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files, tells nobody, and has an answer for what browsers ask for by themselves."""

    def do_GET(self) -> None:
        if self.path != "/favicon.ico":
            return super().do_GET()
        self.send_response(204)
        return self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is written."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, for this machine only; a site is read from a server, and its search needs one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def visit(browser: Any, address: str) -> None:
    """Open a page and wait until it is whole: the driver may return while the page before is still there."""
    from selenium.webdriver.support.wait import WebDriverWait

    whole = "return location.href === arguments[0] && document.readyState === 'complete'"
    browser.get(address)
    WebDriverWait(browser, 60, 0.02).until(lambda found: found.execute_script(whole, address))


def complaints(browser: Any) -> list[str]:
    """What the console was told since it was last asked, warnings and errors."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
