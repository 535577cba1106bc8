"""The search of the site, asked what people type: the guide that answers stands among the first three pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .browser import find, served, started, visit

QUERIES = (
    ("multi gpu", "scale-out|mixed-devices"),
    ("several gpus", "scale-out|mixed-devices"),
    ("ddp", "scale-out"),
    ("fsdp", "scale-out"),
    ("distributed training", "scale-out"),
    ("mixed precision", "precision"),
    ("amp", "precision"),
    ("bf16", "precision"),
    ("tf32", "precision"),
    ("resume training", "checkpoints"),
    ("checkpoint", "checkpoints"),
    ("out of memory", "the-loop|big-models"),
    ("oom", "the-loop"),
    ("huggingface", "transformers|any-source|inputs-and-outputs"),
    ("transformers", "transformers|inputs-and-outputs"),
    ("dataloader", "any-source"),
    ("missing values", "train-on-a-table|bring-your-data|tables"),
    ("gradient clipping", "learning-rate|the-loop|keep-your-loop"),
    ("gradient accumulation", "the-loop"),
    ("gradient checkpointing", "gradient-checkpointing"),
    ("learning rate scheduler", "learning-rate"),
    ("warmup", "learning-rate"),
    ("early stopping", "early-stopping"),
    ("tensorboard", "trackers"),
    ("install", "install"),
    ("cuda build", "install"),
    ("wandb", "trackers"),
    ("lightning", "coming-from-lightning"),
    ("LightningModule", "coming-from-lightning"),
    ("pytorch training loop", "coming-from-pytorch|keep-your-loop"),
    ("model.compile", "coming-from-keras"),
    ("keras callbacks", "coming-from-keras"),
    ("MLPClassifier", "coming-from-scikit-learn"),
    ("train_test_split", "coming-from-scikit-learn|bring-your-data"),
    ("accelerate", "coming-from-accelerate"),
    ("custom loss", "custom-loss"),
    ("custom metric", "custom-metric"),
    ("class imbalance", "class-weights"),
    ("train test split", "bring-your-data|train-on-a-table"),
    ("pandas", "bring-your-data|train-on-a-table"),
    ("csv", "train-on-a-table|tables|bring-your-data"),
    ("parquet", "bring-your-data|any-source|tutorial/bring-your-data"),
    ("keras", "custom-step-tensorflow|mix-frameworks|train-on-a-table"),
    ("save model", "save-and-load"),
    ("load model", "save-and-load"),
    ("freeze layers", "weights|the-loop|inputs-and-outputs|can-it"),
    ("fine-tuning", "weights|learning-rate|transformers"),
    ("device_map", "big-models"),
    ("offload", "big-models"),
    ("training loop", "keep-your-loop|the-loop"),
    ("torch.compile", "the-loop"),
    ("gan", "gan"),
    ("hyperparameter search", "hyperparameter-search"),
    ("optuna", "hyperparameter-search"),
    ("ray tune", "hyperparameter-search"),
    ("pruning", "hyperparameter-search"),
    ("ema", "weight-averaging"),
    ("profiler", "profile"),
    ("padding", "sequences"),
    ("cuda", "check-your-machine|requests|mixed-devices"),
    ("mps", "requests|check-your-machine|mixed-devices"),
    ("simulated gpu", "mixed-devices|test-a-backend"),
    ("scikit-learn", "estimators"),
    ("slurm", "scale-out|requests"),
    ("cross validation", "bring-your-data|tables|cross-validate|can-it"),
)
"""What people type, and the last parts of the pages that answer it, with `|` between them."""

STATUS = "return document.querySelector('#search-results p')?.innerText || ''"
LINKS = "return [...document.querySelectorAll('ul.search li a')].slice(0, 8).map(a => a.getAttribute('href'))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium; `test_browser.py` says where it must be there."""
    programs = find()
    if programs is None:
        pytest.skip("no chromium with chromedriver here")
    with started(*programs, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def first_pages(browser: Any, url: str, query: str) -> list[str]:
    """The first three pages that the search finds; the best links are shown first, and the page of each is loaded."""
    visit(browser, f"{url}/search.html?q={query.replace(' ', '+')}")
    deadline = time.monotonic() + 20
    while len(links := browser.execute_script(LINKS)) < 8:
        if any(words in browser.execute_script(STATUS) for words in ("finished", "did not match")):
            links = browser.execute_script(LINKS)
            break
        assert time.monotonic() < deadline, f"the search for {query!r} does not end"
        time.sleep(0.01)
    pages = (link.partition("?")[0].partition("#")[0].removesuffix(".html") for link in links)
    return list(dict.fromkeys(pages))[:3]


def test_what_people_type_finds_the_guide(site: Path, browser: Any) -> None:
    missed = {}
    with served(site) as url:
        for query, pages in QUERIES:
            found = first_pages(browser, url, query)
            if not {page.rpartition("/")[2] for page in found} & set(pages.split("|")):
                missed[query] = found
    assert not missed, "give the page these words in docs/_sphinx/synonyms.toml"


def test_decision_records_are_not_found(site: Path, browser: Any) -> None:
    with served(site) as url:
        assert not [page for page in first_pages(browser, url, "decision record") if page.startswith("decisions/")]
