"""Mistakes with experiments, results and metrics."""

from __future__ import annotations

import numpy as np

import anyaccel as aa

from .newcomer import (
    LOSS,
    NUMBERS,
    Row,
    X,
    data,
    experiment,
    graph,
    judge,
    mlp,
    own_metric,
    run,
    train,
)

RUNNING = [
    Row(
        "phase.run",
        lambda: train().run(),
        r"Hint: a graph runs phases: graph\.run\(phase\)",
        lambda: graph().run(train(), progress="none"),
    ),
    Row(
        "run([a, b])",
        lambda: experiment().run([train(), judge()]),
        r"Hint: pass phases one by one: run\(\*phases\)",
        lambda: experiment().run(*[train(), judge()]),
    ),
    Row(
        "run the label",
        lambda: experiment().run("t"),
        r"Hint: pass the phase itself, not its label",
        lambda: experiment().run(train()),
    ),
    Row(
        "run the class",
        lambda: experiment().run(aa.EvalPhase),
        r"Hint: create one: EvalPhase\('name', data='train', \.\.\.\)",
        lambda: experiment().run(aa.EvalPhase("name", data="train")),
    ),
    Row(
        "run nothing",
        lambda: experiment().run(),
        r"has no phases\. Hint: write Experiment\(\.\.\., phases=\[\.\.\.\]\), or run\(phase\)",
        lambda: aa.Experiment("e", graph(), phases=[judge()], progress="none").run(),
    ),
    Row(
        "experiment.fit",
        lambda: experiment().fit(),
        r"Hint: use run\(TrainPhase\('train', data='train', losses=\[\.\.\.\]\)\)",
        lambda: experiment().run(aa.TrainPhase("train", data="train", losses=[LOSS])),
    ),
    Row(
        "experiment.predict",
        lambda: experiment().predict(X),
        r"Hint: use run_phase\(EvalPhase\('predict', data='all'\)\)\.prediction\('NODE'\)",
        lambda: experiment().run_phase(aa.EvalPhase("predict", data="all")).prediction("net"),
    ),
    Row(
        "experiment.model",
        lambda: experiment().model,
        r"Hint: use experiment\.graph",
        lambda: experiment().graph["net"].model,
    ),
    Row(
        "progress=False",
        lambda: aa.Experiment("e", graph(), progress=False),
        r"Hint: write progress='none'",
        lambda: aa.Experiment("e", graph(), progress="none"),
    ),
    Row(
        "results before a run",
        lambda: experiment().last_run,
        r"has not run yet\. Hint: call run_phase",
        lambda: run(judge()),
    ),
    Row("a plot before a run", lambda: experiment().plot(), r"Hint: run a TrainPhase first", lambda: run(train())),
    Row(
        "history of a training",
        lambda: run(train()).history["loss"],
        r"Hint: use figures and figure\('NAME'\) of a TrainPhase: figure\('loss'\)",
        lambda: run(train()).figure("loss"),
    ),
    Row(
        "metrics of a training",
        lambda: run(train()).metrics,
        r"Hint: a TrainPhase has them per epoch: figure\('val_accuracy'\)",
        lambda: run(train(validation=judge(metrics=["accuracy"]))).figure("val_accuracy"),
    ),
    Row(
        "val_loss without a validation",
        lambda: run(train()).figure("val_loss"),
        r"Hint: add a validation to the phase: TrainPhase\(\.\.\., validation='val'\)",
        lambda: run(train(validation="val")).figure("val_loss"),
    ),
    Row(
        "a metric that was not asked for",
        lambda: run(judge(metrics=["accuracy"])).metrics["f1_macro"],
        r"no metric 'f1_macro'.*Hint: add it to the phase: EvalPhase\(\.\.\., metrics=\['f1_macro'\]\)",
        lambda: run(judge(metrics=["f1_macro"])).metrics["f1_macro"],
    ),
    Row(
        "predictions of no node",
        lambda: run(judge()).prediction("nett"),
        r"Hint: did you mean 'net'\?",
        lambda: run(judge()).prediction("net"),
    ),
    Row(
        "predict of results",
        lambda: run(judge()).predict(X),
        r"Hint: use prediction\('NODE'\) of an EvalPhase",
        lambda: run(judge()).prediction("net"),
    ),
    Row(
        "acc",
        lambda: judge(metrics="acc"),
        r"no metric is called 'acc'.*Hint: did you mean 'accuracy'\?",
        lambda: run(judge(metrics="accuracy")),
    ),
    Row(
        "a loss as a metric",
        lambda: judge(metrics="cross_entropy"),
        r"Hint: cross_entropy is a loss: write losses=\[AppliedLoss\('cross_entropy', on='NODE'\)\]",
        lambda: run(judge(losses=[LOSS])),
    ),
    Row(
        "f1 of three classes",
        lambda: run(judge(metrics="f1")),
        r"Hint: use an average over classes: 'f1_macro'",
        lambda: run(judge(metrics="f1_macro")),
    ),
    Row(
        "accuracy of numbers",
        lambda: run(judge(metrics="accuracy"), graph(data(NUMBERS), mlp(1))),
        r"the logit of class 1, but the targets have 12 values.*Hint: use a model with one output per class",
        lambda: run(judge(metrics="accuracy"), graph(data(), mlp(3))),
    ),
    Row(
        "mse of classes",
        lambda: run(judge(metrics="mse")),
        r"Hint: if these are scores of classes, use a metric of classes, such as 'accuracy'",
        lambda: run(judge(metrics="accuracy")),
    ),
    Row(
        "a metric that fails",
        lambda: run(judge(metrics=[lambda outputs, targets: {}["a"]])),
        r"metric '<lambda>' on node 'net' raised KeyError.*Hint: give a function: def metric\(outputs, targets\)",
        lambda: run(judge(metrics=[own_metric])),
    ),
    Row(
        "a metric that gives a list",
        lambda: run(judge(metrics=[lambda outputs, targets: outputs])),
        r"it returned values of shape \[12, 3\], not one number\. Hint: average: return float\(np\.mean",
        lambda: run(judge(metrics=[lambda outputs, targets: float(np.mean(outputs))])),
    ),
    Row(
        "nothing to evaluate",
        lambda: run(judge(outputs=[])),
        r"has nothing to compute.*Hint: leave outputs out",
        lambda: run(judge()),
    ),
    Row(
        "an array to no device",
        lambda: aa.move(X, "cpux"),
        r"cannot be on 'cpux'\. Available: numpy on cpu",
        lambda: aa.move(X, "cpu"),
    ),
    Row(
        "another name of a framework",
        lambda: aa.devices(framework="nunpy"),
        r"Hint: did you mean 'numpy'\?",
        lambda: aa.devices(framework="numpy"),
    ),
]
