"""Mistakes with training phases."""

from __future__ import annotations

import numpy as np

import anyaccel as aa

from .newcomer import (
    BCE,
    CLASSES,
    LOSS,
    MSE,
    NUMBERS,
    Nothing,
    Row,
    data,
    graph,
    judge,
    mlp,
    own_metric,
    run,
    train,
)

TRAINING = [
    Row(
        "loss=",
        lambda: train(loss="cross_entropy"),
        r"no setting 'loss'\. Hint: write losses=\[AppliedLoss\('cross_entropy', on='NODE'\)\]",
        lambda: train(losses=[LOSS]),
    ),
    Row(
        "criterion=",
        lambda: train(criterion="cross_entropy"),
        r"Hint: write losses=\[AppliedLoss",
        lambda: train(losses=[LOSS]),
    ),
    Row(
        "crossentropy",
        lambda: aa.AppliedLoss("crossentropy", on="net"),
        r"no loss is called 'crossentropy'.*Hint: did you mean 'cross_entropy'\?",
        lambda: aa.AppliedLoss("cross_entropy", on="net"),
    ),
    Row(
        "CrossEntropyLoss",
        lambda: aa.AppliedLoss("CrossEntropyLoss", on="net"),
        r"Hint: write 'cross_entropy', which takes logits",
        lambda: aa.AppliedLoss("cross_entropy", on="net"),
    ),
    Row(
        "a loss on no node",
        lambda: run(train(losses=[aa.AppliedLoss("mse", on="nett")])),
        r"names the node 'nett'.*Hint: did you mean 'net'\?",
        lambda: run(train()),
    ),
    Row(
        "a loss of other inputs",
        lambda: run(train(losses=[aa.AppliedLoss("cross_entropy", "net", ["predictions", "labels"])])),
        r"'predictions', which is not in this graph\. Available: outputs, targets",
        lambda: run(train(losses=[aa.AppliedLoss("cross_entropy", "net", ["outputs", "targets"])])),
    ),
    Row(
        "no loss", lambda: run(train(losses=[])), r"has no loss.*Hint: pass losses=\[AppliedLoss", lambda: run(train())
    ),
    Row(
        "n_epochs=",
        lambda: train(n_epochs=3),
        r"no setting 'n_epochs'.*Hint: write epochs=10",
        lambda: train(epochs=3),
    ),
    Row(
        "epochs as text",
        lambda: train(epochs="3"),
        r"epochs=.3. is not an int.*Hint: write epochs=1",
        lambda: train(epochs=1),
    ),
    Row(
        "batchsize=",
        lambda: train(batchsize=16),
        r"no setting 'batchsize'. Hint: write batch_size=16",
        lambda: run(train(batch_size=16)),
    ),
    Row(
        "shuffle=",
        lambda: train(shuffle=True),
        r"Hint: write sampler=SimpleSampler\(16, shuffle=True\)",
        lambda: run(train(sampler=aa.SimpleSampler(16, shuffle=True))),
    ),
    Row(
        "a sampler by name",
        lambda: train(sampler="random"),
        r"sampler must be a Sampler, or a mapping.*Hint: write batch_size=32",
        lambda: run(train(batch_size=32)),
    ),
    Row(
        "a batch larger than the data",
        lambda: run(train(sampler=aa.SimpleSampler(1000, drop_last=True))),
        r"leaves no batch of 1000.*Hint: use a batch size of at most 48",
        lambda: run(train(sampler=aa.SimpleSampler(48, drop_last=True))),
    ),
    Row(
        "optimizer=",
        lambda: train(optimizer="adam"),
        r"Hint: the optimizer belongs to the graph: ModelGraph\(nodes, Optimizer\('adam', lr=1e-3\)\)",
        lambda: graph(optimizer=aa.Optimizer("adam", lr=1e-3)),
    ),
    Row(
        "clip_norm=",
        lambda: train(clip_norm=1.0),
        r"Hint: the optimizer clips: .*clip_norm=1\.0",
        lambda: run(train(), graph(optimizer=aa.Optimizer("adam", clip_norm=1.0))),
    ),
    Row(
        "lr_scheduler=",
        lambda: train(lr_scheduler="cosine"),
        r"Hint: the optimizer has the schedule: Optimizer",
        lambda: run(train(), graph(optimizer=aa.Optimizer("adam", schedule=aa.Schedule("cosine", steps=100)))),
    ),
    Row(
        "gradient_accumulation_steps=",
        lambda: train(gradient_accumulation_steps=4),
        r"Hint: write accumulate=4",
        lambda: run(train(accumulate=4)),
    ),
    Row(
        "validation_data=",
        lambda: train(validation_data="val"),
        r"Hint: write validation='val', a split",
        lambda: run(train(validation="val")),
    ),
    Row(
        "validation_split=",
        lambda: train(validation_split=0.2),
        r"Hint: split the data: .*validation='val'",
        lambda: run(train(validation="val"), graph(data())),
    ),
    Row(
        "metrics= of a training",
        lambda: train(metrics=["accuracy"]),
        r"Hint: metrics belong to the validation: validation=EvalPhase",
        lambda: run(train(validation=judge(metrics=["accuracy"]))),
    ),
    Row(
        "early_stopping=",
        lambda: train(early_stopping=5),
        r"Hint: write callbacks=\[EarlyStopping\('loss', patience=5\)\]",
        lambda: run(train(callbacks=[aa.EarlyStopping("loss", patience=5)])),
    ),
    Row(
        "the class of a callback",
        lambda: train(callbacks=[aa.EarlyStopping]),
        r"Hint: create an instance: EarlyStopping\(\)",
        lambda: train(validation="val", callbacks=[aa.EarlyStopping()]),
    ),
    Row(
        "a callback by name",
        lambda: train(callbacks=["early_stopping"]),
        r"is not a Callback\. Hint: write callbacks=\[EarlyStopping\(\)\]",
        lambda: train(callbacks=[Nothing()]),
    ),
    Row(
        "a method of a Keras callback",
        lambda: type("Mine", (aa.Callback,), {"on_epoch_end": lambda self, run: None}),
        r"on_epoch_end is not a hook.*Hint: rename it to 'epoch_end'",
        lambda: type("Mine", (aa.Callback,), {"epoch_end": lambda self, run: None}),
    ),
    Row(
        "stopping without a validation",
        lambda: run(train(callbacks=[aa.EarlyStopping()])),
        r"monitors 'val_loss'.*Hint: add a validation: TrainPhase\(validation='SPLIT'\)",
        lambda: run(train(validation="val", callbacks=[aa.EarlyStopping()])),
    ),
    Row(
        "stopping by a metric without val_",
        lambda: run(train(validation=judge(metrics=["accuracy"]), callbacks=[aa.EarlyStopping("accuracy")])),
        r"Hint: did you mean 'val_accuracy'\?",
        lambda: run(train(validation=judge(metrics=["accuracy"]), callbacks=[aa.EarlyStopping("val_accuracy")])),
    ),
    Row(
        "stopping by a metric of one's own",
        lambda: run(train(validation=judge(metrics=[own_metric]), callbacks=[aa.EarlyStopping("val_own_metric")])),
        r"is better\. Hint: write mode='max'",
        lambda: run(
            train(validation=judge(metrics=[own_metric]), callbacks=[aa.EarlyStopping("val_own_metric", mode="max")])
        ),
    ),
    Row(
        "device=",
        lambda: train(device="cpu"),
        r"Hint: write accelerator='gpu:0'",
        lambda: run(train(accelerator="cpu:0")),
    ),
    Row(
        "a GPU that is not there",
        lambda: run(train(accelerator="cuda:0 ")),
        r"'cuda:0' is not on this machine.*Available: cpu:0\. Hint: use one of these",
        lambda: run(train(accelerator="cpu:0")),
    ),
    Row(
        "a device by its number",
        lambda: run(train(accelerator=0)),
        r"0 does not name a device\. Available: .*'cpu'",
        lambda: run(train(accelerator="cpu")),
    ),
    Row(
        "a device without its colon",
        lambda: run(train(accelerator="cpu0")),
        r"'cpu0' is not on this machine.*Hint: did you mean 'cpu'\?",
        lambda: run(train(accelerator="cpu")),
    ),
    Row(
        "class indices from 1",
        lambda: run(train(), graph(data(CLASSES + 1))),
        r"has the class index 3; .*0 to 2\. Hint: class indices start at 0: subtract 1",
        lambda: run(train(), graph(data(CLASSES + 1 - 1))),
    ),
    Row(
        "class indices as floats",
        lambda: run(train(), graph(data(CLASSES.astype("float32")))),
        r"if these are class indices, cast them: feature_set\.cast\(\{'y': 'int64'\}\)",
        lambda: run(train(), graph(data(CLASSES.astype("float32")).cast({"y": "int64"}))),
    ),
    Row(
        "integers for mse",
        lambda: run(train(losses=[MSE]), graph(model=mlp(1))),
        r"which is int64\. Hint: .*feature_set\.cast\(\{'y': 'float32'\}\)",
        lambda: run(train(losses=[MSE]), graph(data().cast({"y": "float32"}), mlp(1))),
    ),
    Row(
        "integers for binary_cross_entropy",
        lambda: run(train(losses=[BCE]), graph(data(CLASSES % 2), mlp(1))),
        r"Hint: .*feature_set\.cast\(\{'y': 'float32'\}\)",
        lambda: run(train(losses=[BCE]), graph(data(CLASSES % 2).cast({"y": "float32"}), mlp(1))),
    ),
    Row(
        "one output for cross_entropy",
        lambda: run(train(), graph(model=mlp(1))),
        r"needs at least two classes.*or one output for each class",
        lambda: run(train(), graph(model=mlp(3))),
    ),
    Row(
        "several outputs for mse",
        lambda: run(train(losses=[MSE]), graph(data(NUMBERS), mlp(3))),
        r"losses never broadcast.*Hint: give the model 1 output",
        lambda: run(train(losses=[MSE]), graph(data(NUMBERS), mlp(1))),
    ),
    Row(
        "images without channels",
        lambda: run(train(), graph(data(x=np.zeros((60, 8, 8), "float32")), aa.SequentialCNN(3))),
        r"takes one input \[channels, height, width\].*Hint: store images channels first",
        lambda: run(train(), graph(data(x=np.zeros((60, 1, 8, 8), "float32")), aa.SequentialCNN(3))),
    ),
]
