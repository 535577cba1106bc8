"""The site in a browser: no errors in the console, pictures are visible, and text of users is never markup."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyaccel

from .browser import complaints, find, served, started, visit
from .building import build

NEEDED = os.environ.get("ANYACCEL_TEST_BROWSER") == "1"
EVIL = "<script>pwned=1</script>"
IMAGE = "<img src=x onerror=pwned=1><script>pwned=1"  # labels of nodes may hold no slash and no dot
NODES = ("encoder", "probe", "forest")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium; without it the tests are skipped, or fail with ANYACCEL_TEST_BROWSER=1."""
    programs = find()
    if programs is None and NEEDED:
        pytest.fail("no chromium with chromedriver, and ANYACCEL_TEST_BROWSER=1 needs it")
    if programs is None:
        pytest.skip("no chromium with chromedriver here; ANYACCEL_TEST_BROWSER=1 makes this a failure")
    with started(*programs, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[[Path, str], Any]]:
    """Opens a page of a folder that is served."""
    with ExitStack() as servers:

        def load(folder: Path, page: str) -> Any:
            visit(browser, f"{servers.enter_context(served(folder))}/{page}")
            return browser

        complaints(browser)  # those of earlier tests
        yield load


@pytest.fixture
def notebook(site: Path, opened: Callable[[Path, str], Any]) -> Any:
    """The browser with the page of the notebook."""
    return opened(site, "tutorial/bring-your-data.html")


def all_of(browser: Any, selector: str) -> list[Any]:
    """The elements of a CSS selector."""
    return list(browser.find_elements("css selector", selector))


def is_drawn(element: Any) -> bool:
    """Whether an element is visible and large enough to see."""
    return bool(element.is_displayed() and element.size["width"] > 50 and element.size["height"] > 50)


@pytest.mark.parametrize("page", ["index", "reference/api/data", "examples/two_frameworks", "tutorial/bring-your-data"])
def test_a_page_loads_without_a_network(page: str, site: Path, opened: Callable[[Path, str], Any]) -> None:
    browser = opened(site, f"{page}.html")
    assert complaints(browser) == []
    assert browser.title


def test_the_search_finds_a_name(site: Path, opened: Callable[[Path, str], Any]) -> None:
    browser = opened(site, "search.html?q=split_random")
    browser.implicitly_wait(20)
    assert all_of(browser, "ul.search li a")
    browser.implicitly_wait(0)
    assert complaints(browser) == []


def test_the_notebook_shows_the_device_of_each_node(notebook: Any) -> None:
    rows = all_of(notebook, ".anyaccel:has(svg) tr[data-anyaccel-device]")  # of the graph
    devices = {row.text.split()[0]: row.get_attribute("data-anyaccel-device") for row in rows}
    assert devices == dict.fromkeys(NODES, "cpu:0")
    assert all("cpu:0" in row.text for row in rows)


def test_the_notebook_shows_its_graph(notebook: Any) -> None:
    drawings = all_of(notebook, ".cell_output svg[role=img]")
    assert drawings and all(map(is_drawn, drawings))


def test_the_notebook_shows_its_plot(notebook: Any) -> None:
    plots = all_of(notebook, ".cell_output img")
    assert plots and all(map(is_drawn, plots))
    loaded = "return [...document.images].every(image => image.complete && image.naturalWidth > 100)"
    assert notebook.execute_script(loaded)


def test_the_notebook_has_no_traceback(notebook: Any) -> None:
    assert len(all_of(notebook, ".cell_output")) >= 4
    assert "Traceback" not in notebook.find_element("tag name", "body").text
    assert all_of(notebook, ".cell_output .stderr") == []


HOSTILE = (
    f"""
import numpy as np
import anyaccel as aa
evil, image = {EVIL!r}, {IMAGE!r}
columns = {{"x": np.ones((8, 2)), image: np.ones(8), evil: [f"{{evil}} {{i}}" for i in range(8)]}}
data = aa.FeatureSet.from_dict(evil, columns, ["x"], [image], [evil])
data.split_random({{evil: 0.5, image: 0.5}}, seed=0)
data
""",
    """
graph = aa.ModelGraph([aa.ModelNode(image, aa.SequentialMLP(), data.reference())], "adam", label=image)
graph
""",
    """
loss = aa.AppliedLoss("mse", on=image)
experiment = aa.Experiment(image, graph)
experiment.run_phase(aa.TrainPhase(image, data=evil, losses=[loss], epochs=2))
""",
    "graph",
    "experiment.run_phase(aa.EvalPhase(image, data=image, losses=[loss]))",
    "experiment.last_run.plan",
    "graph.visualize('svg', plan=experiment.last_run.plan)",
    "aa.compare({evil: experiment.last_run})",
    "experiment",
    "data[evil]",
    "aa.Accelerator('cpu')",
)


def notebook_of(title: str, *cells: str) -> str:
    """A notebook: a title, and cells of code."""
    code: list[dict[str, Any]] = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": text}
        for i, text in enumerate(cells)
    ]
    first = {"cell_type": "markdown", "id": "title", "metadata": {}, "source": f"# {title}"}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return json.dumps({"cells": [first, *code], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of a notebook in which every name is a script."""
    folder = tmp_path_factory.mktemp("hostile")
    source = folder / "source"
    source.mkdir()
    settings = 'extensions = ["myst_nb"]\nroot_doc = "page"\nnb_execution_raise_on_error = True\nhtml_theme = "furo"\n'
    (source / "conf.py").write_text(settings, encoding="utf-8")
    (source / "page.ipynb").write_text(notebook_of("Names", *HOSTILE), encoding="utf-8")
    return build(source, folder)


def test_names_that_are_scripts_stay_text(hostile: Path, opened: Callable[[Path, str], Any]) -> None:
    browser = opened(hostile, "page.html")
    assert browser.execute_script("return typeof window.pwned") == "undefined"
    assert complaints(browser) == []
    outputs = all_of(browser, ".cell_output")
    assert len(outputs) == len(HOSTILE)
    for output in outputs[:-1]:
        assert "pwned=1" in output.text
        assert output.find_elements("css selector", "img[src=x], script") == []


def test_a_script_that_runs_is_detected(tmp_path: Path, opened: Callable[[Path, str], Any]) -> None:
    (tmp_path / "page.html").write_text(f"<!doctype html><title>x</title><p>{EVIL}</p>", encoding="utf-8")
    assert opened(tmp_path, "page.html").execute_script("return window.pwned") == 1


def test_a_request_to_the_network_is_detected(tmp_path: Path, opened: Callable[[Path, str], Any]) -> None:
    page = '<!doctype html><title>x</title><img src="https://example.org/x.png">'
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert "ERR_NAME_NOT_RESOLVED" in complaints(opened(tmp_path, "page.html"))[0]


def test_the_report_of_a_plan_opens_and_works_with_a_keyboard(
    tmp_path: Path, opened: Callable[[Path, str], Any]
) -> None:
    from selenium.webdriver.common.keys import Keys

    x = np.ones((64, 6), "float32")
    data = anyaccel.FeatureSet.from_dict("d", {"x": x, "y": x[:, :1]}, ["x"], ["y"])
    nodes = [
        anyaccel.ModelNode(IMAGE, anyaccel.SequentialMLP(4), data.reference()),
        anyaccel.ModelNode("net", anyaccel.SequentialMLP(1), IMAGE, accelerator="sim:1"),
    ]
    graph = anyaccel.ModelGraph(nodes, "adam")
    losses = [anyaccel.AppliedLoss("mse", on="net")]
    phase = anyaccel.TrainPhase("train", data="all", losses=losses, accelerator="sim")
    plan = phase.plan(graph, "2x sim-1GB")
    (tmp_path / "plan.html").write_text(plan.to_html(graph.visualize("svg", plan=plan)), "utf-8")
    browser = opened(tmp_path, "plan.html")
    assert complaints(browser) == []
    assert browser.execute_script("return window.pwned") is None
    assert IMAGE in browser.find_element("css selector", "body").text
    cells = all_of(browser, "[data-category]")
    shown = [(each.get_attribute("data-category"), each.get_attribute("data-bytes")) for each in cells]
    plain = json.loads(plan.to_json())
    names = ("parameters", "gradients", "optimizer", "activations", "batches", "total", "headroom", "capacity")
    assert shown == [(name, str(memory[name])) for memory in plain["memory"] for name in names]
    edges = [int(each.get_attribute("data-edge-bytes")) for each in all_of(browser, "[data-edge-bytes]")]
    assert edges == [crossing["nbytes"] * plain["batch_size"] for crossing in plain["crossings"]]
    assert all(bar.size["height"] > 10 for bar in all_of(browser, ".bar")) and len(all_of(browser, ".bar")) == 2
    focused = []
    for _ in range(14):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        focused.append((active.tag_name, active.get_attribute("aria-label") or active.text))
        if active.tag_name == "summary":
            active.send_keys(Keys.ENTER)
            break
    assert [name for tag, name in focused if tag == "a"][:2] == ["Memory", "Graph"]
    assert [name for _, name in focused if name.startswith("memory of numpy on sim:")]
    assert json.loads(browser.find_element("css selector", "details[open] pre").text) == plain
    assert complaints(browser) == []
