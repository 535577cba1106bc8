"""The page of the architecture: its files exist, its picture is the table of floors, and its table is enough.

For each row that adds something, a toy is added to a copy of core exactly where the row says, and the copy runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pictures import floors

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core/src/anyaccel"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w./-]+(?:\.py|/))`", PAGE)))


def exists(name: str) -> bool:
    """Whether a file or folder is there: below the repository, below core, or in every plugin with a backend."""
    if name in ("compute.py",):
        return all((ROOT / f"plugins/{plugin}/src/anyaccel_{plugin}" / name).exists() for plugin in ("torch", "jax"))
    return (ROOT / name).exists() or (CORE / name).exists()


def test_it_names_many_files() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize("name", NAMED)
def test_a_named_file_exists(name: str) -> None:
    assert exists(name), f"docs/architecture.md names {name}"


def test_every_package_and_kernel_module_is_on_the_page() -> None:
    packages = {f"{path.parent.name}/" for path in CORE.glob("*/__init__.py")}
    assert packages - {name for name in NAMED if name in packages} == set()


def test_the_picture_shows_the_packages() -> None:
    picture = (ROOT / "docs/_static/floors.svg").read_text(encoding="utf-8")
    assert picture == floors()
    for path in [*CORE.glob("*/__init__.py")]:
        assert path.parent.name in (*re.findall(r">(\w+)</text>", picture),)


@dataclass(frozen=True, kw_only=True)
class Toy:
    """What a contributor adds.

    Attributes:
        edits: by file, pairs of a text in it and what stands in its place; a file that there is not is made of the
            second text.
        program: uses what was added, and fails if it does not work.
        more: further files of the row, of which a toy needs but one.
    """

    edits: Mapping[str, tuple[tuple[str, str], ...]]
    program: str
    more: frozenset[str] = field(default_factory=frozenset)


LINEAR = """
import numpy as np
import anyaccel as aa

random = np.random.default_rng(0)
x = random.standard_normal((32, 3)).astype("float32")
y = (x @ np.array([[1.0], [-2.0], [0.5]], "float32")).astype("float32")
data = aa.FeatureSet.from_dict("data", {"x": x, "y": y}, ["x"], ["y"])


def trained(optimizer, loss="mse", **settings):
    model = aa.SequentialMLP(output_shape=(1,), n_layers=1)
    graph = aa.ModelGraph([aa.ModelNode("net", model, data.reference())], optimizer, seed=3).build()
    before = {name.rpartition(".")[2]: value for name, value in graph.state().items()}
    sampler, losses = aa.SimpleSampler(8), [aa.AppliedLoss(loss, on="net")]
    phase = aa.TrainPhase("train", data=data, losses=losses, sampler=sampler, **settings)
    results = graph.run(phase, progress="none")
    after = {name.rpartition(".")[2]: value for name, value in graph.state().items()}
    return before, after, results


def by_hand(before, gradient, rates, sign=False):
    w, b = before["weight"].astype("float64"), before["bias"].astype("float64")
    for step, rate in enumerate(rates):
        rows = slice(8 * (step % 4), 8 * (step % 4) + 8)
        g = gradient(x[rows] @ w.T + b - y[rows])
        gw, gb = g.T @ x[rows], g.sum(0)
        w, b = (w - rate * np.sign(gw), b - rate * np.sign(gb)) if sign else (w - rate * gw, b - rate * gb)
    return {"weight": w, "bias": b}


def equal(after, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-6)


squared = lambda error: 2 * error / len(error)
"""

TOYS = {
    "an optimizer": Toy(
        edits={
            "formulas.py": (
                (
                    "OPTIMIZERS: dict[str, OptimizerRule] = {",
                    "class SignDescent(OptimizerRule):\n"
                    "    def update(self, settings, xp, w, g, slots, coefficients):\n"
                    "        return w - coefficients['rate'] * xp.sign(g), {}\n\n\n"
                    "OPTIMIZERS: dict[str, OptimizerRule] = {'sign': SignDescent(), ",
                ),
            )
        },
        program=LINEAR + "before, after, _ = trained(aa.Optimizer('sign', lr=0.01), epochs=2)\n"
        "equal(after, by_hand(before, squared, [0.01] * 8, sign=True))\n",
    ),
    "a schedule": Toy(
        edits={
            "formulas.py": (
                (
                    '    "constant": ScheduleRule(',
                    '    "halves": ScheduleRule(lambda t: 0.5**t),\n    "constant": ScheduleRule(',
                ),
            )
        },
        program=LINEAR + "schedule = aa.Schedule('halves')\n"
        "before, after, _ = trained(aa.Optimizer('sgd', lr=0.1, schedule=schedule), epochs=2)\n"
        "equal(after, by_hand(before, squared, [0.1 * 0.5**t for t in range(8)]))\n",
    ),
    "a loss": Toy(
        edits={
            "formulas.py": (
                (
                    "LOSSES: dict[str, LossRule] = {",
                    "def _fourth_power(ops, outputs, targets, settings):\n"
                    "    difference = outputs - cast(ops, targets, outputs.dtype)\n"
                    "    return LossParts(difference**4, lambda: (4 * difference**3, -4 * difference**3))\n\n\n"
                    "LOSSES: dict[str, LossRule] = {\n    'fourth': LossRule(_fourth_power, symmetric=True),",
                ),
            )
        },
        program=LINEAR + "before, after, _ = trained(aa.Optimizer('sgd', lr=1e-4), 'fourth')\n"
        "equal(after, by_hand(before, lambda error: 4 * error**3 / len(error), [1e-4] * 4))\n"
        "columns = {'x': x, 'kind': np.array(list('ab') * 16)}\n"
        "try:\n"
        "    aa.fit(aa.SequentialMLP(output_shape=(1,), n_layers=1), columns, target='kind', loss='fourth')\n"
        "except aa.errors.AnyaccelError as error:\n"
        "    assert 'kind' in str(error) and 'fourth' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('it compared numbers of classes')\n",
    ),
    "a metric": Toy(
        edits={
            "metrics/regression.py": (
                (
                    "def rmse(",
                    "def bias(outputs, targets):\n"
                    "    predicted, truth = columns_of(outputs, targets)\n"
                    "    return float(np.mean(predicted - truth))\n\n\n"
                    "def rmse(",
                ),
            ),
            "metrics/named.py": (
                (
                    '    "mse": NamedMetric(regression.mse),',
                    '    "mse": NamedMetric(regression.mse),\n    "bias": NamedMetric(regression.bias),',
                ),
            ),
        },
        program=LINEAR + "validation = aa.EvalPhase('eval', data=data, metrics=['bias'])\n"
        "_, after, results = trained(aa.Optimizer('sgd', lr=0.01), validation=validation)\n"
        "expected = np.mean(x @ after['weight'].T + after['bias'] - y)\n"
        "value = next(value for name, value in results.epochs[0].validation.items() if 'bias' in name)\n"
        "np.testing.assert_allclose(value, expected, rtol=1e-4)\n",
        more=frozenset({"metrics/classification.py"}),
    ),
    "a residency": Toy(
        edits={
            "phases/settings.py": (('RESIDENCIES = ("auto", ', 'RESIDENCIES = ("auto", "first resident", '),),
            "phases/loading/residency.py": (
                (
                    '        if residency == "streamed":',
                    '        if residency == "streamed" or (residency == "first resident" and loaders):',
                ),
            ),
        },
        program=LINEAR + "validation = aa.EvalPhase('eval', data=data, losses=[aa.AppliedLoss('mse', on='net')])\n"
        "settings = {'validation': validation, 'epochs': 2}\n"
        "_, one, first = trained(aa.Optimizer('adam', lr=0.01), residency='first resident', **settings)\n"
        "_, two, second = trained(aa.Optimizer('adam', lr=0.01), residency='streamed', **settings)\n"
        "equal(one, two)\n"
        "assert [e.validation for e in first.epochs] == [e.validation for e in second.epochs]\n",
    ),
    "a product": Toy(
        edits={
            "plugins/resources/src/anyaccel_resources/products.json": (
                (
                    '  "products": [',
                    '  "products": [{"name": "T9000", "vendor": "nvidia", "segment": "datacenter",'
                    ' "generation": "Hopper", "compute_capability": "9.0", "memory_gb": [512],'
                    ' "capabilities": ["fp16", "bf16"], "aliases": [], "upgrades": [],'
                    ' "sources": {"memory_gb": "boards"}},',
                ),
            )
        },
        program="import anyaccel as aa\n"
        "allocation = aa.DeviceRequest.parse('T9000:2').resolve('A100-80GB, 4x T9000')\n"
        "assert len(allocation.devices) == 2, allocation\n"
        "large = aa.DeviceRequest.parse('400GB+').resolve('A100-80GB, T9000')\n"
        "assert [row.label for row in large.candidates if row.chosen] == ['T9000'], large\n",
    ),
    "a callback": Toy(
        edits={
            "phases/callbacks.py": (
                (
                    "class EarlyStopping(",
                    "class StopBelow(Callback):\n"
                    "    def __init__(self, loss):\n"
                    "        self.loss = loss\n\n"
                    "    def epoch_end(self, run):\n"
                    "        if run.history[-1].loss < self.loss:\n"
                    "            run.stop('it is low enough')\n\n\n"
                    "class EarlyStopping(",
                ),
            ),
            "phases/__init__.py": (("import Callback, EarlyStopping", "import Callback, EarlyStopping, StopBelow"),),
            "__init__.py": (('    "phases": "Callback ', '    "phases": "StopBelow Callback '),),
        },
        program=LINEAR + "optimizer = aa.Optimizer('sgd', lr=0.05)\n"
        "losses = [epoch.loss for epoch in trained(optimizer, epochs=5)[2].epochs]\n"
        "_, _, stopped = trained(optimizer, epochs=5, callbacks=[aa.StopBelow(losses[1] * 1.0001)])\n"
        "assert len(losses) == 5 and [epoch.loss for epoch in stopped.epochs] == losses[:2], (losses, stopped)\n",
    ),
    "a hook moment": Toy(
        edits={
            "hookspecs.py": (
                (
                    "@hookspec\ndef epoch_end(",
                    '@hookspec\ndef training_begins(run: Any) -> None:\n    """The loop begins."""\n\n\n'
                    "@hookspec\ndef epoch_end(",
                ),
            ),
            "phases/callbacks.py": (
                (
                    "    def epoch_start(self, run: Run)",
                    '    def training_begins(self, run: Run) -> None:\n        """The loop begins."""\n\n'
                    "    def epoch_start(self, run: Run)",
                ),
            ),
            "phases/hooks.py": (
                (
                    "    def epoch_begins(self)",
                    "    def run_begins(self):\n        self._hooks.call('training_begins', run=self._run)\n\n"
                    "    def epoch_begins(self)",
                ),
            ),
        },
        program=LINEAR + "from types import ModuleType\n"
        "from anyaccel.registry import registry\n"
        "heard = []\n"
        "plugin = ModuleType('plugin')\n"
        "plugin.training_begins = aa.hookimpl(lambda run: heard.append('plugin'))\n"
        "registry().hooks.register(plugin)\n"
        "class Listener(aa.Callback):\n"
        "    def training_begins(self, run):\n"
        "        heard.append(run.phase.label)\n"
        "    def epoch_start(self):\n"
        "        heard.append('epoch')\n"
        "trained(aa.Optimizer('adam'), callbacks=[Listener()])\n"
        "assert heard == ['plugin', 'train', 'epoch'], heard\n",
    ),
    "a dtype of saved arrays": Toy(
        edits={"saved_folder/tensor_file.py": (('    "C64": "<c8",', '    "C64": "<c8",\n    "C128": "<c16",'),)},
        program="import io\nimport numpy as np\nfrom anyaccel.saved_folder import tensor_file\n"
        "stream, arrays = io.BytesIO(), {'z': np.array([1 + 2j, 3.5], 'complex128'), 'x': np.ones(3, 'float32')}\n"
        "digests, size = tensor_file.write(stream, arrays)\n"
        "stream.seek(0)\n"
        "read = tensor_file.read(stream, size, digests)\n"
        "assert read['z'].dtype == 'complex128' and (read['z'] == arrays['z']).all() and read['x'].sum() == 3\n",
    ),
    "a field of a checkpoint": Toy(
        edits={
            "phases/checkpointing/position.py": (
                ('    stop_reason: str = ""', '    stop_reason: str = ""\n    machine: str = ""'),
                (
                    '            "stop_reason": self.stop_reason,',
                    '            "stop_reason": self.stop_reason,\n            "machine": self.machine,',
                ),
                (
                    "                frameworks={label: ",
                    '                machine=_text(parts.get("machine", "")),\n                frameworks={label: ',
                ),
            ),
            "phases/checkpointing/checkpointer.py": (
                (
                    "            frameworks=frameworks_of(run),",
                    '            machine="the toy\'s",\n            frameworks=frameworks_of(run),',
                ),
            ),
        },
        program=LINEAR + "from anyaccel.phases.checkpointing import position\n"
        "optimizer = aa.Optimizer('adam', lr=0.01)\n"
        "trained(optimizer, epochs=2, checkpoint='kept')\n"
        "read, load = [], position.Position.from_parts.__func__\n"
        "position.Position.from_parts = classmethod(lambda cls, *parts: read.append(load(cls, *parts)) or read[-1])\n"
        "model = aa.SequentialMLP(output_shape=(1,), n_layers=1)\n"
        "graph = aa.ModelGraph([aa.ModelNode('net', model, data.reference())], optimizer, seed=3).build()\n"
        "losses = [aa.AppliedLoss('mse', on='net')]\n"
        "settings = {'sampler': aa.SimpleSampler(8), 'epochs': 3, 'checkpoint': 'kept'}\n"
        "phase = aa.TrainPhase('train', data=data, losses=losses, **settings)\n"
        "results = graph.run(phase, resume='auto', progress='none')\n"
        'assert {one.machine for one in read} == {"the toy\'s"}, read\n'
        "assert len(results.epochs) == 3\n"
        "equal({'loss': results.epochs[-1].loss}, {'loss': trained(optimizer, epochs=3)[2].epochs[-1].loss})\n",
    ),
    "an error": Toy(
        edits={
            "errors.py": (
                (
                    "class DeviceParseError(",
                    'class ToyError(AnyaccelError, ValueError):\n    """A toy."""\n\n\nclass DeviceParseError(',
                ),
            )
        },
        program="import anyaccel as aa\nfrom anyaccel.errors import AnyaccelError, ToyError\n"
        "error = ToyError('the toy is broken', cause='its wheel is off', available='a car', hint='take the car')\n"
        "assert str(error) == 'the toy is broken; its wheel is off. Available: a car. Hint: take the car.'\n"
        "assert isinstance(error, (AnyaccelError, ValueError)) and aa.errors.ToyError is ToyError\n",
    ),
    "a setting of a phase": Toy(
        edits={
            "phases/train_phase.py": (
                (
                    "        matmul_precision: Any = None,\n    ) -> None:",
                    '        matmul_precision: Any = None,\n        priority: str = "low",\n    ) -> None:',
                ),
                (
                    '        "replicas": Setting(',
                    '        "priority": Setting(choice("low", "high")),\n        "replicas": Setting(',
                ),
            )
        },
        program=LINEAR + "import inspect\n"
        "phase = aa.TrainPhase('t', data='train', priority='high')\n"
        "again = aa.TrainPhase.from_config(phase.get_config())\n"
        "assert again.priority == 'high' and aa.TrainPhase('t', data='train').priority == 'low'\n"
        "assert inspect.signature(aa.TrainPhase).parameters['priority'].default == 'low'\n"
        "for wrong, told in ({'priority': 'middle'}, 'high'), ({'prioritty': 'low'}, 'priority'):\n"
        "    try:\n"
        "        aa.TrainPhase('t', data='train', **wrong)\n"
        "    except aa.errors.AnyaccelError as error:\n"
        "        assert told in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(wrong)\n"
        "trained(aa.Optimizer('adam'), priority='high')\n",
    ),
    "a feature of the loop": Toy(
        edits={
            "phases/call_counter.py": (
                (
                    "",
                    "from anyaccel.phases.loop_extension import LoopExtension\n\n\n"
                    "class CallCounter(LoopExtension):\n"
                    "    def __init__(self, run):\n"
                    "        self.run, self.calls, self.steps = run, 0, 0\n\n"
                    "    def most_steps(self, call):\n"
                    "        return 3\n\n"
                    "    def call_done(self, call, first, step_losses):\n"
                    "        self.calls, self.steps = self.calls + 1, self.steps + call.n_steps\n\n"
                    "    def run_ends(self):\n"
                    "        self.run.log_event('calls', f'{self.steps} steps in {self.calls} calls')\n",
                ),
            ),
            "results/events.py": (('    "metric",\n)', '    "metric",\n    "calls",\n)'),),
            "phases/loop_factory.py": (
                (
                    "    extensions.append(EpochHooks(",
                    "    extensions.append(CallCounter(run))\n    extensions.append(EpochHooks(",
                ),
                (
                    "from anyaccel.phases.train_loop import TrainLoop",
                    "from anyaccel.phases.call_counter import CallCounter\n"
                    "from anyaccel.phases.train_loop import TrainLoop",
                ),
            ),
        },
        program=LINEAR + "_, _, results = trained(aa.Optimizer('adam'), epochs=2)\n"
        "(message,) = [event.message for event in results.events if event.kind == 'calls']\n"
        "steps, calls = (int(word) for word in message.split() if word.isdigit())\n"
        "assert steps == 8 and calls >= 4, message\n",
    ),
    "a field of saved results": Toy(
        edits={
            "results/base.py": (("    label: str\n", "    label: str\n    host: str = ''\n"),),
            "phases/runner.py": (
                (
                    '                    "label": run.phase.label,',
                    '                    "label": run.phase.label,\n                    "host": "here",',
                ),
            ),
        },
        program=LINEAR + "_, _, results = trained(aa.Optimizer('adam'))\n"
        "results.save('saved')\n"
        "again = type(results).load('saved')\n"
        "assert (results.host, again.host, again.label) == ('here', 'here', 'train')\n",
    ),
    "a capability of a backend": Toy(
        edits={},
        program=LINEAR
        + """
import sys
from pathlib import Path

from anyaccel.plugin_testing import write_distribution

MODULE = '''
from contextlib import contextmanager

import numpy as np

from anyaccel.adapter.framework_settings import HasSettings


class Errors(HasSettings):
    def settings(self):
        return {"numpy.over": ("ignore", "raise")}

    @contextmanager
    def with_settings(self, values):
        with np.errstate(over=values["numpy.over"]):
            yield
'''
folder = Path("site").absolute()
write_distribution(
    folder,
    "numpy-errors",
    group="anyaccel.capabilities",
    entry_points={"numpy.anyaccel.HasSettings": "numpy_errors:Errors"},
    modules={"numpy_errors": MODULE},
)
sys.path.append(str(folder))


def diverging(over):
    callbacks = [aa.FrameworkSettings({"numpy.over": over})]
    trained(aa.Optimizer("sgd", lr=1e9), on_nan="ignore", epochs=30, callbacks=callbacks)


diverging("ignore")
try:
    diverging("raise")
except FloatingPointError:
    pass
else:
    raise AssertionError("it was not set")
""",
    ),
}


def package_of(file: str) -> Path:
    """The package of a distribution that a file, from the root of the repository on, is in."""
    source, _, below = file.partition("/src/")
    return ROOT / source / "src" / below.partition("/")[0]


def rows() -> dict[str, str]:
    """Of each row of the table that adds something, where to edit."""
    table = PAGE.partition("| to add | edit |")[2].partition("\n\n")[0]
    return {cells[1].strip(): cells[2] for cells in (line.split("|") for line in table.splitlines()[2:])}


def test_each_row_that_adds_something_has_a_toy() -> None:
    assert set(rows()) == set(TOYS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TOYS)
def test_a_toy_works_when_it_is_added_where_the_page_says(name: str, tmp_path: Path) -> None:
    toy, named = TOYS[name], set(re.findall(r"`([\w/]+\.(?:py|json))`", rows()[name]))
    made = {file for file in toy.edits if not exists(file)}
    assert set(toy.edits) - made | toy.more == named, "the row names what has to be edited, and nothing else"
    copy = tmp_path / "source/anyaccel"
    for package in (CORE, *{package_of(file) for file in toy.edits if (ROOT / file).exists()}):
        shutil.copytree(package, copy.parent / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, edits in toy.edits.items():
        there = copy.parent / file.partition("/src/")[2] if (ROOT / file).exists() else copy / file
        text = "" if file in made else there.read_text(encoding="utf-8")
        for before, after in edits:
            assert before in text, f"{file} has no {before!r} any more"
            text = text.replace(before, after, 1)
        there.write_text(text, encoding="utf-8")
    (tmp_path / "away").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(copy.parent)}
    program = f"import anyaccel\nassert {str(copy)!r} in anyaccel.__file__\n{toy.program}"
    child = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "away",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
