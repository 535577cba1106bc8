"""Mistakes with models and graphs."""

from __future__ import annotations

import anyaccel as aa

from .newcomer import (
    CLASSES,
    LOSS,
    Row,
    X,
    both_layers,
    data,
    graph,
    judge,
    mlp,
    node,
    run,
    train,
)

GRAPH = [
    Row(
        "the class of a model",
        lambda: node(model=aa.SequentialMLP),
        r"is the class SequentialMLP\. Hint: create one: SequentialMLP\(",
        node,
    ),
    Row(
        "the name of a model", lambda: node(model="resnet18"), r"is a str: 'resnet18'\. Hint: pass a model object", node
    ),
    Row(
        "model and label swapped",
        lambda: aa.ModelNode(mlp(), "net", data().reference()),
        r"is not a valid label of a node\. Hint: use text",
        node,
    ),
    Row(
        "a label of a node with a dot",
        lambda: node("my.net"),
        r"'my\.net' is not a valid label.*Hint: use text without",
        lambda: node("my_net"),
    ),
    Row(
        "two nodes of one label",
        lambda: aa.ModelGraph([node("n"), node("n")]),
        r"two nodes are called 'n'.*Hint: give each a unique",
        lambda: aa.ModelGraph([node("n", up=(d := data()).reference()), node("m", up=d.reference())]),
    ),
    Row(
        "two data of one label",
        lambda: aa.ModelGraph([node("a"), node("b")]),
        r"two feature sets are called 'data'\. Hint: give each a unique",
        lambda: aa.ModelGraph([node("a", up=data(label="c").reference()), node("b")]),
    ),
    Row(
        "a loop",
        lambda: aa.ModelGraph([node("a", up="b"), node("b", up="a")]),
        r"has a cycle: a -> b -> a\. Hint: remove one of these connections",
        lambda: both_layers("a"),
    ),
    Row(
        "an input misspelt",
        lambda: both_layers("aa"),
        r"takes its input from 'aa'.*Hint: did you mean 'a'\?",
        lambda: both_layers("a"),
    ),
    Row(
        "a model in place of nodes",
        lambda: aa.ModelGraph(node(), "adam"),
        r"nodes must be a list, got ModelNode\. Hint: write \[node\]",
        lambda: aa.ModelGraph([node()], "adam"),
    ),
    Row("no nodes", lambda: aa.ModelGraph([], "adam"), r"has no node\. Hint: pass ModelNode", graph),
    Row(
        "an optimizer misspelt",
        lambda: graph(optimizer="adma"),
        r"no optimizer is called 'adma'.*Hint: did you mean 'adam'\?",
        graph,
    ),
    Row(
        "no optimizer",
        lambda: run(train(), graph(optimizer=None)),
        r"has no optimizer\. Hint: set one on the graph",
        lambda: run(train()),
    ),
    Row(
        "a rate as text",
        lambda: aa.Optimizer("adam", lr="1e-3"),
        r"lr='1e-3' is not a positive number\. Hint: write lr=0\.001",
        lambda: aa.Optimizer("adam", lr=0.001),
    ),
    Row(
        "a rate of the wrong sign",
        lambda: aa.Optimizer("adam", lr=-1),
        r"is not a positive number\. Hint: write lr=0\.001",
        lambda: aa.Optimizer("adam", lr=0.001),
    ),
    Row(
        "learning_rate",
        lambda: aa.Optimizer("adam", learning_rate=0.1),
        r"no setting learning_rate.*Hint: it is called 'lr'\.",
        lambda: aa.Optimizer("adam", lr=0.1),
    ),
    Row(
        "a schedule without its length",
        lambda: aa.Schedule("cosine"),
        r"schedule 'cosine' lacks steps\. Hint: write Schedule\('cosine', steps=100\)",
        lambda: aa.Schedule("cosine", steps=9),
    ),
    Row(
        "a schedule misspelt",
        lambda: aa.Schedule("cosin", steps=9),
        r"Hint: did you mean 'cosine'\?",
        lambda: aa.Schedule("cosine", steps=9),
    ),
    Row(
        "a node misspelt",
        lambda: graph()["nett"],
        r"no node 'nett'.*Hint: did you mean 'net'\?",
        lambda: graph()["net"],
    ),
    Row(
        "all is frozen",
        lambda: run(train(), graph().freeze("net")),
        r"nothing to train: net \(frozen\)\. Hint: unfreeze a node",
        lambda: run(train(), graph().freeze("net").unfreeze("net")),
    ),
    Row(
        "one upstream to join",
        lambda: aa.ConcatNode("c", ["a"]),
        r"has 1 upstream\. Hint: pass two or more",
        lambda: aa.ConcatNode("c", ["a", "b"]),
    ),
    Row(
        "graph.fit",
        lambda: graph().fit(X, CLASSES),
        r"no attribute 'fit'\. Hint: run a phase over it: graph\.run\(TrainPhase",
        lambda: graph().run(train(), progress="none"),
    ),
    Row(
        "graph.predict",
        lambda: graph().predict(X),
        r"Hint: evaluate it: .*EvalPhase\('predict', data='all'\)\)\.prediction\('NODE'\)",
        lambda: run(aa.EvalPhase("predict", data="all")).prediction("net"),
    ),
    Row(
        "graph.evaluate",
        lambda: graph().evaluate(X),
        r"Hint: evaluate it: .*metrics=\['mse'\]\)\)\.metrics",
        lambda: run(judge(metrics=["accuracy"])).metrics,
    ),
    Row(
        "graph.to",
        lambda: graph().to("cpu"),
        r"Hint: set it on a phase: TrainPhase\(\.\.\., accelerator='cpu'\)",
        lambda: run(train(accelerator="cpu")),
    ),
    Row(
        "graph.compile",
        lambda: graph().compile("adam"),
        r"Hint: pass the optimizer to ModelGraph\(nodes, 'adam'\)",
        lambda: run(train(losses=[LOSS]), graph(optimizer="adam")),
    ),
    Row(
        "graph.parameters",
        lambda: graph().parameters(),
        r"Hint: the models have them: graph\['NODE'\]\.model",
        lambda: graph().build()["net"].model.parameters,
    ),
    Row("graph.state_dict", lambda: graph().state_dict(), r"Hint: use state\(\)", lambda: graph().state()),
    Row(
        "graph.load_state_dict",
        lambda: graph().load_state_dict({}),
        r"Hint: use load_state\(state\)",
        lambda: (g := graph()).load_state(g.state()),
    ),
    Row(
        "graph.add",
        lambda: graph().add(node("b", up="net")),
        r"Hint: use add_node\(ModelNode\(\.\.\.\)\)",
        lambda: graph().add_node(node("b", up="net")),
    ),
    Row("node.parameters", lambda: node().parameters(), r"Hint: ask its model: node\.model", lambda: node().model),
    Row(
        "aa.Model",
        lambda: aa.Model,
        r"Hint: write ModelGraph\(\[ModelNode\('net', model, data\.reference\(\)\)\], 'adam'\)",
        graph,
    ),
    Row(
        "aa.manual_seed",
        lambda: aa.manual_seed(0),
        r"Hint: write fit\(\.\.\., seed=0\), or ModelGraph\(\.\.\., seed=0\)",
        lambda: aa.ModelGraph([node()], "adam", seed=0),
    ),
    Row(
        "aa.cuda.is_available",
        lambda: aa.cuda.is_available(),
        r"Hint: write devices\('gpu'\)",
        lambda: aa.devices("gpu"),
    ),
    Row(
        "a state of another graph",
        lambda: graph().load_state({}),
        r"it lacks parameters/.*Hint: load it into the graph that it belongs to",
        lambda: (g := graph()).load_state(g.state()),
    ),
]
