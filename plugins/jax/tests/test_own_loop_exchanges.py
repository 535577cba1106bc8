"""How often a compiled step of JAX exchanges the gradients of several micro-batches.

In the program of XLA's partitioner, each micro-batch exchanges its gradients, as in a loop that is written by hand. The
compiler for GPUs moves such an exchange out of the loop (`WhileLoopAllReduceCodeMotion`) if its result is only added to
a sum that nothing else in the loop reads; the compiler for CPUs leaves it there. The tests check this pattern in
programs for two CPUs, and the number of exchanges in programs for two GPUs, which JAX's plugin for CUDA compiles on a
machine without any.
"""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import anyaccel as aa

_spec: Any = spec_from_file_location("jax_own_loop_script", Path(__file__).with_name("own_loop_script.py"))
script: Any = module_from_spec(_spec)
_spec.loader.exec_module(script)
Loop: Any = aa.Loop
N_PARAMETERS = sum(array.size for array in script.parameters().values())
SETTINGS: dict[str, Any] = {
    "mean": {"loss": script.mean_loss},
    "tokens": {"loss": script.token_loss},
    "bf16": {"loss": script.mean_loss, "precision": "bf16-mixed"},
    "a rest": {"loss": script.mean_loss, "n_rows": 100},
    "a rest of tokens": {"loss": script.token_loss, "n_rows": 100},
}
"""Losses, and batches of which two devices and four micro-batches have as many rows, or a rest of four is left."""


def micro_batches(mesh: Mesh, *, loss: Any, precision: str = "float32", **_: Any) -> Any:
    return Loop("cpu", framework="jax", precision=precision, options={"mesh": mesh}).value_and_grad(loss, accumulate=4)


def by_hand(loss: Any) -> Any:
    """The loop that one writes oneself; what `changed` makes of the gradients of a micro-batch is added up."""

    def compute(params: Any, x: Any, y: Any, changed: Any = lambda grads: grads) -> Any:
        def add(sums: Any, batch: Any) -> tuple[Any, None]:
            value, grads = jax.value_and_grad(loss)(params, *batch)
            return jax.tree.map(jnp.add, sums, (value, changed(grads))), None

        parts = [jnp.swapaxes(array.reshape(-1, 4, array.shape[1]), 0, 1) for array in (x, y)]
        zeros = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
        return jax.tree.map(lambda total: total / 4, jax.lax.scan(add, zeros, parts)[0])

    return compute


def program_of(compute: Any, mesh: Mesh, n_rows: int = 96) -> str:
    """The compiled program; rows are divided over the mesh, and parameters whole."""
    whole, rows = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in ((), ("data",)))
    shape: Any = jax.ShapeDtypeStruct
    params = {name: shape(a.shape, a.dtype, sharding=whole) for name, a in script.parameters().items()}
    x, y = (shape((n_rows, n), jnp.float32, sharding=rows) for n in (5, 1))
    program: str = jax.jit(lambda *args: compute(*args)).lower(params, x, y).compile().as_text()
    return program


# -- programs as graphs ------------------------------------------------------------------------------------------------


class Node(NamedTuple):
    opcode: str
    shape: str
    operands: tuple[str, ...]
    attributes: str


RESHAPES = ("get-tuple-element", "bitcast", "transpose", "reshape", "convert", "copy")


def graphs(program: str) -> dict[str, dict[str, Node]]:
    """The operations of each computation by name, the last of them its result; ENTRY is the first."""
    found: dict[str, dict[str, Node]] = {}
    line = re.compile(r"\s+(?:ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)")
    for part in re.split(r"\n(?=\S)", program):
        if head := re.match(r"(ENTRY )?%(\S+) \(", part):
            lines = [match.groups() for match in map(line.match, part.splitlines()) if match]
            nodes = {
                name: Node(opcode, shape, tuple(re.findall(r"%([\w.-]+)", operands)) or (operands,), attributes)
                for name, shape, opcode, operands, attributes in lines
            }
            found["ENTRY" if head[1] else head[2]] = nodes
    return found


def without_fusions(graph: dict[str, Node], all_graphs: dict[str, dict[str, Node]]) -> dict[str, Node]:
    """The graph with the operations of each fusion in its place."""
    flat: dict[str, Node] = {}
    for name, node in graph.items():
        if node.opcode not in ("fusion", "call"):
            flat[name] = node
            continue
        called = re.search(r"(?:calls|to_apply)=%([\w.-]+)", node.attributes)
        assert called
        inner = without_fusions(all_graphs[called[1]], all_graphs)
        result = list(inner)[-1]
        names = {one: name if one == result else f"{name}/{one}" for one in inner}
        for one, part in inner.items():
            if part.opcode == "parameter":
                part = Node("bitcast", part.shape, (node.operands[int(part.operands[0])],), "")
            else:
                part = part._replace(operands=tuple(names.get(operand, operand) for operand in part.operands))
            flat[names[one]] = part
    return flat


class Loops:
    """The body of a loop in a program."""

    def __init__(self, program: str) -> None:
        self.graphs = graphs(program)
        (body,) = re.findall(r" while\(.*body=%([\w.-]+)", program)
        self.nodes = without_fusions(self.graphs[body], self.graphs)
        (self.argument,) = (name for name, node in self.nodes.items() if node.opcode == "parameter")
        self.result = list(self.nodes)[-1]

    def users(self, name: str) -> list[str]:
        """Operations that use a value, whatever its shape."""
        direct = [user for user, node in self.nodes.items() if name in node.operands]
        return [user for one in direct for user in (self.users(one) if self.nodes[one].opcode in RESHAPES else [one])]

    def source(self, name: str) -> str:
        """What a value was before its shape changed: an element of the argument, or an operation."""
        node = self.nodes[name]
        if node.opcode == "get-tuple-element" and node.operands[0] == self.argument:
            return f"argument {index_of(node)}"
        return self.source(node.operands[0]) if node.opcode in RESHAPES else name

    def sums(self) -> list[tuple[str, bool]]:
        """For each exchanged array, its shape, and whether it is only added to a sum that nothing else reads."""
        found = []
        for name, node in self.nodes.items():
            if node.opcode != "all-reduce":
                continue
            values = [user for user, other in self.nodes.items() if name in other.operands]
            if not node.shape.startswith("("):
                values = [name]
            found += [(self.nodes[value].shape, self.is_sum(value)) for value in values]
        return [(shape, is_sum) for shape, is_sum in found if size_of(shape) > 1]

    def is_sum(self, value: str) -> bool:
        adds = self.users(value)
        if len(adds) != 1 or self.nodes[adds[0]].opcode != "add":
            return False
        (add,) = adds
        (buffer,) = {self.source(operand) for operand in self.nodes[add].operands} - {self.source(value)}
        given = [self.source(operand) for operand in self.nodes[self.result].operands]
        readers = [
            user
            for name, node in self.nodes.items()
            if node.opcode == "get-tuple-element" and self.source(name) == buffer and node.operands[0] == self.argument
            for user in self.users(name)
        ]
        return (
            buffer.startswith("argument ")
            and given[int(buffer.split()[1])] == add
            and readers == [add]
            and self.users(add) == [self.result]
        )


def index_of(node: Node) -> int:
    match = re.search(r"index=(\d+)", node.attributes)
    assert match
    return int(match[1])


def size_of(shape: str) -> int:
    """Values in an array, or in all arrays of a tuple."""
    return sum(int(np.prod([int(n) for n in dims.split(",") if n])) for dims in re.findall(r"\w+\[([\d,]*)\]", shape))


def exchanges(program: str) -> list[tuple[str, str, int]]:
    """For each exchange of the program, where it is, what it is, and how many values it sends."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    return [
        ("entry" if graph == "ENTRY" else "loop", node.opcode.removesuffix("-start"), size_of(node.shape))
        for graph, nodes in graphs(program).items()
        for node in nodes.values()
        if node.opcode.removesuffix("-start") in kinds
    ]


# -- on CPUs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(jax.devices("cpu")[:2]), ("data",))


@pytest.mark.parametrize("name", SETTINGS)
def test_exchanges_in_the_loop_are_only_added_to_sums(name: str, mesh: Mesh) -> None:
    settings = SETTINGS[name]
    program = program_of(micro_batches(mesh, **settings), mesh, settings.get("n_rows", 96))
    sums = Loops(program).sums()
    assert sum(size_of(shape) for shape, _ in sums) == N_PARAMETERS
    assert all(is_sum for _, is_sum in sums), sums
    sent = sum(n for where, kind, n in exchanges(program) if where == "entry" and kind == "all-reduce")
    assert sent - N_PARAMETERS * ("rest" in name) in range(3)  # a loss and a count


def test_exchanges_are_those_of_a_loop_by_hand(mesh: Mesh) -> None:
    ours, theirs = (
        exchanges(program_of(compute, mesh))
        for compute in (micro_batches(mesh, loss=script.mean_loss), by_hand(script.mean_loss))
    )
    assert ours == theirs == [("loop", "all-reduce", N_PARAMETERS + 1)]


@pytest.mark.parametrize(
    ("changed", "is_sum"),
    [(lambda grads: grads, True), (lambda grads: jax.tree.map(jnp.tanh, grads), False)],
    ids=["gradients", "changed gradients"],
)
def test_a_use_within_the_loop_is_found(changed: Any, is_sum: bool, mesh: Mesh) -> None:
    """XLA can move no exchange whose result a micro-batch changes before it is added."""
    compute = by_hand(script.mean_loss)
    program = program_of(lambda params, x, y: compute(params, x, y, changed), mesh)
    assert [found for _, found in Loops(program).sums()] == [is_sum] * 3


# -- on GPUs -----------------------------------------------------------------------------------------------------------

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""What XLA must know of a GPU to compile for it, from the data sheet; no GPU is needed."""


@pytest.fixture(scope="module")
def gpus() -> Mesh:
    try:
        topology = topologies.get_topology_desc("", "cuda", target_config=H100, topology="1x1x2")
    except NotImplementedError:
        pytest.skip("JAX's plugin for CUDA is not installed: pip install jax-cuda12-plugin jax-cuda12-pjrt")
    return Mesh(np.array(topology.devices), ("data",))


@pytest.mark.parametrize("name", SETTINGS)
def test_gpus_exchange_gradients_once_an_update(name: str, gpus: Mesh) -> None:
    settings = SETTINGS[name]
    program = program_of(micro_batches(gpus, **settings), gpus, settings.get("n_rows", 96))
    assert " while(" in program
    large = [sent for sent in exchanges(program) if sent[2] >= N_PARAMETERS]
    assert [sent[:2] for sent in large] == [("entry", "all-reduce")]
