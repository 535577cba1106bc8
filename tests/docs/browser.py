"""A headless browser that records its console."""

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
# Runs without a screen, also as root and with little shared memory. Host names do not resolve, so a page that loads
# something from the network logs an error.
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
    """Start a browser with an empty profile, and quit it at the end."""
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
    """Serves files without logging, and answers requests for an icon."""

    def do_GET(self) -> None:
        if self.path != "/favicon.ico":
            return super().do_GET()
        self.send_response(204)
        return self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The local address of a folder that is served; the search of a site needs a server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def visit(browser: Any, address: str) -> None:
    """Open a page and wait until it is loaded: the driver may return while the previous page is still shown."""
    from selenium.webdriver.support.wait import WebDriverWait

    loaded = "return location.href === arguments[0] && document.readyState === 'complete'"
    browser.get(address)
    WebDriverWait(browser, 60, 0.02).until(lambda driver: driver.execute_script(loaded, address))


def complaints(browser: Any) -> list[str]:
    """Warnings and errors of the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
