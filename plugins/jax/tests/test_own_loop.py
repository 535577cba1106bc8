"""Own loops of JAX: losses, weights and outputs are those of a loop written by hand in one process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import anyaccel as aa
from anyaccel.errors import AnyaccelError, ConfigError, DataError, FrameworkError, StateError

SCRIPT = Path(__file__).with_name("own_loop_script.py")
_spec: Any = spec_from_file_location("jax_own_loop_script", SCRIPT)
script: Any = module_from_spec(_spec)
_spec.loader.exec_module(script)
CASES, TX, Rows, apply, parameters = script.CASES, script.TX, script.Rows, script.apply, script.parameters
mean_loss, row_losses, token_loss = script.mean_loss, script.row_losses, script.token_loss
TIMEOUT = 900
Loop: Any = aa.Loop
OF_THREE = tuple(name for name in CASES if name not in ("bf16", "own_steps"))
LEFT_OUT = ("one_row", "micro_batches", "several_counts", "bf16", "modules", "twice", "tokenless")
"""Of several processes, which compile each case anew; in the check one process runs them, and in the whole several."""
RUNS: dict[int, tuple[str, ...]] = {2: tuple(name for name in CASES if name not in LEFT_OUT)}
if os.environ.get("ANYACCEL_TEST_FULL"):
    RUNS = {2: tuple(CASES), 3: OF_THREE}


# -- by hand: plain JAX and Optax --------------------------------------------------------------------------------------


def counted(loss: Any) -> Any:
    """A loss as a sum and its count."""

    def sum_and_count(params: Any, x: Any, y: Any) -> Any:
        given = loss(params, x, y)
        if isinstance(given, tuple):
            return given[0], given[1].astype(jnp.float32)
        return given.sum() if given.ndim else given * len(x), jnp.float32(len(x))

    return jax.jit(jax.value_and_grad(sum_and_count, has_aux=True))


def by_hand(loss: Any, rows: Any, window: int = 1, epochs: int = 3) -> dict[str, Any]:
    """Sums of gradients over the batches of a window, divided by the count of the window."""
    compute = counted(loss)
    params, opt_state = parameters(), TX.init(parameters())
    losses = []
    np.random.seed(7)
    for _ in range(epochs):
        batches = iter(list(rows))
        while group := list(itertools.islice(batches, window)):
            total, n_terms, grads = 0.0, 0.0, jax.tree.map(jnp.zeros_like, params)
            for x, y in group:
                (value, count), more = compute(params, x, y)
                total, n_terms, grads = total + value, n_terms + count, jax.tree.map(jnp.add, grads, more)
            n_terms = max(float(n_terms), 1.0)
            grads = jax.tree.map(lambda grad, n=n_terms: grad / n, grads)
            updates, opt_state = TX.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            losses.append(float(total / n_terms))
    x = script.table(103)[0]
    return {"losses": losses, "params": params, "outputs": np.ravel(apply(params, x)), "steps": len(losses)}


def by_hand_several_counts() -> dict[str, Any]:
    """Sums and counts of each loss over the batches of a window."""
    one, other, losses = parameters(), {"a": jnp.ones((5, 1))}, []
    np.random.seed(7)
    batches = iter(list(Rows(220, 16)))
    while group := list(itertools.islice(batches, 3)):
        x, y = (np.concatenate(parts) for parts in zip(*group, strict=True))
        (first, n_first), grads = counted(script.token_loss)(one, x, y)
        (second, n_second), more = counted(script.thirds)(one, x, y)
        compute = jax.value_and_grad(lambda params, x=x, y=y: ((x @ params["a"] - y) ** 2).sum())
        third, others = compute(other)
        losses += [float(first / n_first), float(second / n_second), float(third / (7 * len(x)))]
        one = {name: one[name] - 0.1 * (grads[name] / n_first + more[name] / n_second) for name in one}
        other = {"a": other["a"] - 0.1 * others["a"] / (7 * len(x))}
    return {"losses": losses, "params": {**one, "other": other["a"]}, "steps": len(losses) // 3}


def by_hand_interrupted() -> dict[str, Any]:
    """Windows of two batches; the second epoch begins anew."""
    params, losses = parameters(), []
    np.random.seed(7)
    for stop in (4, 40):
        batches = list(Rows(107, 16))[:stop]
        while batches:
            x, y = (np.concatenate(parts) for parts in zip(*batches[:2], strict=True))
            value, grads = jax.value_and_grad(mean_loss)(params, x, y)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
            losses.append(float(value))
            batches = batches[2:]
    return {"losses": losses, "params": params, "steps": len(losses)}


def by_hand_adversaries() -> dict[str, Any]:
    """The fourth update of the generator is left out."""
    generator, judge = {"w": jnp.eye(5)}, parameters()
    first, second = script.FIRST.init(generator), script.SECOND.init(judge)
    average, losses = generator["w"], []
    for number, (x,) in enumerate(script.Infinite()):
        value, grads = jax.value_and_grad(script.judge_loss)(judge, generator, np.where(np.isfinite(x), x, 0))
        updates, second = script.SECOND.update(grads, second)
        judge = optax.apply_updates(judge, updates)
        losses.append(float(value))
        if number != 3:
            grads = jax.grad(script.generator_loss)(generator, judge, x)
            updates, first = script.FIRST.update(grads, first)
            generator = optax.apply_updates(generator, updates)
            average = 0.8 * average + 0.2 * generator["w"]
    params = {**judge, "w": generator["w"], "average": average}
    return {"losses": losses, "params": params, "steps": 6}


EXPECTED: dict[str, Callable[[], dict[str, Any]]] = {
    "ragged": lambda: by_hand(mean_loss, Rows()),
    "one_row": lambda: by_hand(mean_loss, Rows(33, 16)),
    "tokens": lambda: by_hand(token_loss, Rows(107, 6)),
    "accumulated": lambda: by_hand(mean_loss, Rows(220, 16), window=3),
    "micro_batches": lambda: by_hand(token_loss, Rows(220, 48)),
    "several_counts": by_hand_several_counts,
    "padded": lambda: by_hand(row_losses, Rows()),
    "divided": lambda: by_hand(mean_loss, Rows()),
    "interrupted": by_hand_interrupted,
    "twice": lambda: by_hand(script.twice_loss, Rows()),
    "adversaries": by_hand_adversaries,
}


def check(given: dict[str, Any], expected: dict[str, Any]) -> None:
    np.testing.assert_allclose(given["losses"], expected["losses"], rtol=1e-6, atol=1e-6)
    for name, array in expected["params"].items():
        np.testing.assert_allclose(given["params"][name], array, rtol=1e-6, atol=1e-6)
    if "outputs" in expected:
        assert len(given["outputs"]) == 103
        np.testing.assert_allclose(given["outputs"], expected["outputs"], rtol=1e-5, atol=1e-6)
    assert given["steps"] == expected["steps"]


# -- in several processes ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """What two processes tell, by rank, and in the whole three, too, which go on from what the two have saved."""
    folder, results = tmp_path_factory.mktemp("own-loops"), {}
    for size, cases in RUNS.items():
        command = [
            sys.executable,
            "-m",
            "anyaccel",
            "run",
            "--replicas",
            str(size),
            str(SCRIPT),
            str(folder),
            ",".join(cases),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
        assert done.returncode == 0, done.stderr[-3000:]
        results[size] = [json.loads((folder / f"of-{size}-{rank}.json").read_text()) for rank in range(size)]
    return results


CASES_BY_HAND = [
    *(pytest.param(2, name, marks=[pytest.mark.whole] * (name in LEFT_OUT)) for name in EXPECTED),
    *(pytest.param(3, name, marks=pytest.mark.whole) for name in OF_THREE if name in EXPECTED),
]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "name"), CASES_BY_HAND)
def test_losses_weights_and_outputs_of_processes_are_those_of_a_loop_by_hand(
    told: dict[int, list[dict[str, Any]]], size: int, name: str
) -> None:
    expected = EXPECTED[name]()
    for one in told[size]:
        check(one[name], expected)
        assert one[name]["losses"] == told[size][0][name]["losses"]


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_skipped_in_all_processes(told: dict[int, list[dict[str, Any]]]) -> None:
    for one in (one for ones in told.values() for one in ones):
        assert one["adversaries"]["skip"] == [False, False, False, True, False, False]


@pytest.mark.slow
@pytest.mark.whole
def test_a_mean_over_no_token_is_zero(told: dict[int, list[dict[str, Any]]]) -> None:
    for one in (one for ones in told.values() for one in ones):
        assert one["tokenless"]["losses"] == [0.0] * 3
        for name, array in parameters().items():
            np.testing.assert_array_equal(one["tokenless"]["params"][name], array)


@pytest.mark.slow
def test_processes_compile_once_for_each_shape(told: dict[int, list[dict[str, Any]]]) -> None:
    for one in (one for ones in told.values() for one in ones):
        assert one["padded"]["traces"] == 1
        assert one["ragged"]["traces"] == 2  # the last batch has another shape, as in plain JAX
    assert all(one["own_steps"]["traces"] == 1 for one in told[2])


@pytest.mark.slow
def test_divided_states_are_in_parts(told: dict[int, list[dict[str, Any]]]) -> None:
    whole = sum(array.nbytes for array in parameters().values())
    assert all(one["ragged"]["part"] == whole and one["divided"]["part"] == whole / 2 for one in told[2])
    assert all(one["divided"]["part"] == whole for one in told.get(3, [])), "8 is no multiple of 3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "name"),
    [
        (2, "own_steps"),
        *(pytest.param(*case, marks=pytest.mark.whole) for case in ((2, "bf16"), (2, "modules"), (3, "modules"))),
    ],
)
def test_precision_modules_and_keys_of_processes_are_those_of_one(
    told: dict[int, list[dict[str, Any]]], size: int, name: str
) -> None:
    expected = CASES[name]()
    for one in told[size]:
        rtol = 3e-2 if name == "bf16" else 2e-5
        np.testing.assert_allclose(one[name]["losses"], expected["losses"], rtol=rtol, atol=1e-6)


@pytest.mark.slow
def test_a_step_exchanges_gradients_once_if_it_computes_the_batches_of_an_update_at_once(
    told: dict[int, list[dict[str, Any]]],
) -> None:
    """And once for each micro-batch otherwise: XLA's compiler for CPUs moves no exchange out of a loop."""
    for ones in told.values():
        assert [one["exchanges"] for one in ones] == [{"exchanges": {"4": 4, "1": 1}, "rows": 96}] * len(ones)


@pytest.mark.slow
def test_values_of_processes(told: dict[int, list[dict[str, Any]]]) -> None:
    for size, ones in told.items():
        for one in (one["values"] for one in ones):
            assert one["twice"] == [2.0 * i for n in (8, 5) for i in range(n)]
            assert one["pair"] == ["tuple", [float(i) for n in (8, 5) for i in range(n)], None]
            assert one["sum"] == [28.0, 10.0]
            assert one["t"] == [f"{n}-{i}" for n in (8, 5) for i in range(n)]
            assert one["own"] == [(size - 1) / 2, size - 1, size]
            assert one["counted"] == sum(range(size)) / (2 * size)
            assert one["any"] == [True, False]
            assert one["told"] == [size - 1, size, size + 1]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.whole)])
def test_processes_go_on_within_an_epoch_to_the_losses_of_an_undisturbed_run(
    told: dict[int, list[dict[str, Any]]], size: int, tmp_path: Path
) -> None:
    """Also from what another number of processes has saved; dropout, order of rows, and divided parameters included."""
    expected = script.resumed(tmp_path)["whole"]
    for one in (one["resumed"] for one in told[size]):
        np.testing.assert_allclose(one["whole"], expected, rtol=1e-5)
        assert one["before"] == one["whole"][:11]
        assert one["after"] == one["whole"][9:]
        if size == 3:
            np.testing.assert_allclose(one["other"], expected[-len(one["other"]) :], rtol=1e-5)
            assert len(one["other"]) == 5  # of the sixth batch of the last epoch on


@pytest.mark.slow
def test_processes_refuse_what_would_give_other_numbers(told: dict[int, list[dict[str, Any]]]) -> None:
    for size, one in ((size, one["refused"]) for size, ones in told.items() for one in ones):
        assert f"different numbers of batches in the processes: {'7, 8, 9'[: 3 * size - 2]}" in one["uneven"]
        assert "nothing in it has rows" in one["no rows"]
        assert "'w' of process 1 differs from process 0" in one["different"]
        assert "jax.random.key(0)" in one["different"]
        assert "sync_batchnorm=False" in one["local statistics"]


# -- in one process ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_one_process_has_the_numbers_of_a_loop_by_hand(name: str) -> None:
    check(CASES[name](), EXPECTED[name]())


def test_a_mesh_of_the_user_divides_batches_among_devices_of_one_process() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    loop = Loop("cpu", framework="jax", options={"mesh": mesh})
    given = script.trained(loop)
    check(given, by_hand(mean_loss, Rows()))
    x, _ = next(iter(loop.prepare(Rows())))
    assert x.sharding == jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def test_modules_in_place_have_the_numbers_of_flax_by_hand() -> None:
    from flax import nnx

    net = script.Net()
    optimizer = nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param)

    @nnx.jit
    def step(net: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, grads = nnx.value_and_grad(script.net_loss)(net, x, y)
        optimizer.update(net, grads)
        return value

    np.random.seed(7)
    losses = [float(step(net, optimizer, x, y)) for _ in range(2) for x, y in Rows()]
    given = CASES["modules"]()
    np.testing.assert_allclose(given["losses"], losses, rtol=1e-6)
    assert given["steps"] == 14


def test_modules_are_saved_and_accumulate(tmp_path: Path) -> None:
    """Statistics of batches and the state of dropout go through the micro-batches, and into the checkpoint."""
    from flax import nnx

    def run(folder: Path | None, epochs: int) -> tuple[list[float], Any]:
        np.random.seed(3)
        loop = Loop("cpu", framework="jax")
        net = script.Net()
        net, optimizer, loader = loop.prepare(net, nnx.Optimizer(net, optax.adam(0.01), wrt=nnx.Param), Rows(60, 20))
        grads_of = loop.value_and_grad(script.net_loss, accumulate=2)

        @loop.compile
        def step(net: Any, optimizer: Any, x: Any, y: Any) -> Any:
            value, grads = grads_of(net, x, y)
            optimizer.update(net, grads)
            return value

        values = [float(step(net, optimizer, x, y)) for _ in loop.epochs(epochs, save=folder) for x, y in loader]
        return values, net

    whole, net = run(None, 2)
    assert int(net.drop.rngs.count[...]) == 12  # calls of dropout: two for each batch
    first, _ = run(tmp_path, 1)
    second, _ = run(tmp_path, 2)
    assert first + second == whole


def test_an_equinox_module_and_a_train_state_of_flax_are_states(eqx: Any, linen: Any) -> None:
    from flax.training.train_state import TrainState

    loop = Loop("cpu", framework="jax")
    net = loop.prepare(eqx.nn.MLP(5, 1, 8, 1, key=jax.random.key(0)))
    loss = lambda net, x, y: jnp.mean((jax.vmap(net)(x) - y) ** 2)  # noqa: E731
    x, y = script.table(32)
    plain = eqx.filter_value_and_grad(loss)(net, x, y)
    for accumulate in (1, 4):
        grads_of = loop.value_and_grad(loss, accumulate=accumulate)
        value, grads = eqx.filter_jit(grads_of)(net, x, y)
        np.testing.assert_allclose(value, plain[0], rtol=1e-6)
        for one, other in zip(jax.tree.leaves(grads), jax.tree.leaves(plain[1]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)

    @loop.compile
    def step(net: Any, x: Any, y: Any) -> Any:
        value, grads = loop.value_and_grad(loss)(net, x, y)
        return eqx.apply_updates(net, jax.tree.map(lambda g: -0.1 * g, grads)), value

    net, value = step(net, x, y)
    assert float(step(net, x, y)[1]) < float(value)

    module = linen.Dense(1)
    state = TrainState.create(apply_fn=module.apply, params=module.init(jax.random.key(0), x), tx=optax.adam(0.1))
    loop = Loop("cpu", framework="jax")
    state, loader = loop.prepare(state, Rows(96, 16))
    traces = 0

    @loop.compile
    def fit(state: Any, x: Any, y: Any) -> Any:
        nonlocal traces
        traces += 1
        grads_of = loop.value_and_grad(lambda params, x, y: jnp.mean((state.apply_fn(params, x) - y) ** 2))
        value, grads = grads_of(state.params, x, y)
        return state.apply_gradients(grads=grads), value

    values = []
    for _ in loop.epochs(2):
        for x, y in loader:
            state, value = fit(state, x, y)
            values.append(value)
    assert traces == 1 and int(state.step) == loop.step == 12 and values[-1] < values[0]


def test_batches_of_any_kind_become_arrays() -> None:
    torch = pytest.importorskip("torch")
    loop = Loop("cpu", framework="jax")
    x, y = script.table(20)
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.arange(20))
    loader = loop.prepare(torch.utils.data.DataLoader(data, batch_size=8))
    batches = list(loader)
    assert len(loader) == 3 and [len(one) for one, _ in batches] == [8, 8, 4]
    assert all(isinstance(part, np.ndarray) for batch in batches for part in batch)
    np.testing.assert_array_equal(np.concatenate([one for one, _ in batches]), x)
    loop = Loop("cpu", framework="jax", options={"mesh": jax.make_mesh((2,), ("data",))})
    assert [part.dtype for part in next(iter(loop.prepare(loader.loader)))] == [jnp.float32, jnp.int32]

    class Mixed:
        def __iter__(self) -> Iterator[Any]:
            yield {"z": x.astype(np.float64), "a": jnp.asarray(y), "text": ["row"] * 20, "none": None}

    (batch,) = loop.prepare(Mixed())
    assert list(batch) == ["z", "a", "text", "none"]
    assert (
        batch["z"].dtype == batch["a"].dtype == jnp.float32 and batch["text"] == ["row"] * 20 and batch["none"] is None
    )


def test_a_batch_may_change_after_it_was_given() -> None:
    """JAX would compute from the memory of the loader itself."""
    loop = Loop("cpu", framework="jax", options={"mesh": jax.make_mesh((2,), ("data",))})

    class Reused:
        def __iter__(self) -> Iterator[Any]:
            buffer = np.zeros((64, 16), np.float32)
            for number in range(5):
                buffer[:] = number
                yield buffer

    assert [float(batch.mean()) for batch in list(loop.prepare(Reused()))] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_keys_follow_from_seed_and_step() -> None:
    loop, other = (Loop("cpu", framework="jax", seed=seed) for seed in (1, 2))
    data = lambda key: jax.random.key_data(key).tolist()  # noqa: E731
    assert data(loop.key(3)) == data(jax.random.fold_in(jax.random.key(1), 3)) == data(jax.jit(loop.key)(3))
    assert data(loop.key(3)) != data(loop.key(4)) and data(loop.key(3)) != data(other.key(3))
    assert data(loop.key()) == data(loop.key(0))


def test_micro_batches_have_keys_of_their_own() -> None:
    loop = Loop("cpu", framework="jax")
    x, _ = script.table(8)

    def loss(w: Any, x: Any, key: Any) -> Any:
        return (w * jax.random.uniform(key, (len(x),))).mean()

    value, _ = jax.jit(loop.value_and_grad(loss, accumulate=2))(1.0, x, key=jax.random.key(0))
    keys = [jax.random.fold_in(jax.random.key(0), i) for i in range(2)]
    np.testing.assert_allclose(value, np.mean([jax.random.uniform(key, (4,)).mean() for key in keys]), rtol=1e-6)


def test_precision_casts_within_the_loss_and_the_state_stays(tmp_path: Path) -> None:
    loop = Loop("cpu", framework="jax", precision="bf16-mixed")
    seen = []

    def loss(params: Any, x: Any, y: Any) -> Any:
        seen.extend([params["a"].dtype, x.dtype, y.dtype])
        return jnp.mean((apply(params, x) - y) ** 2)

    x, y = script.table(16)
    value, grads = jax.jit(loop.value_and_grad(loss))(parameters(), x, y)
    assert set(seen) == {jnp.bfloat16.dtype} and value.dtype == jnp.float32
    assert all(grad.dtype == jnp.float32 for grad in grads.values())
    low = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (parameters(), x, y))
    expected = jax.jit(lambda params, x, y: mean_loss(params, x, y))(*low)
    np.testing.assert_allclose(value, expected.astype(jnp.float32), rtol=1e-6)


def test_aux_is_given_back() -> None:
    loop = Loop("cpu", framework="jax")
    x, y = script.table(16)
    loss = lambda params, x, y: (mean_loss(params, x, y), apply(params, x))  # noqa: E731
    (value, outputs), grads = jax.jit(loop.value_and_grad(loss, has_aux=True))(parameters(), x, y)
    assert outputs.shape == (16, 1) and grads["a"].shape == (5, 8)
    np.testing.assert_allclose(value, mean_loss(parameters(), x, y), rtol=1e-6)


def test_save_and_load_by_hand(tmp_path: Path) -> None:
    loop, state, step = simple()
    x, y = script.table(16)
    state, _ = step(state, x, y)
    loop.save(tmp_path / "a", extra={"note": "hello"})
    expected = jax.tree.map(np.array, state)
    state, _ = step(state, x, y)
    assert loop.step == 2
    assert loop.load(tmp_path / "a") == {"note": "hello"}
    assert loop.step == 1
    state = loop.state
    for name, array in expected.items():
        np.testing.assert_array_equal(state[name], array)
    other, state, step = simple()
    other.load(tmp_path / "a")
    again, _ = step(other.state, x, y)
    assert other.step == 2 and again["a"].shape == (5, 8)


# -- what is refused ---------------------------------------------------------------------------------------------------


def simple() -> tuple[Any, Any, Any]:
    loop = Loop("cpu", framework="jax")
    state = loop.prepare(parameters())

    @loop.compile
    def step(state: Any, x: Any, y: Any) -> Any:
        value, grads = loop.value_and_grad(mean_loss)(state, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    return loop, state, step


def refuses(kind: type[AnyaccelError], problem: str, hint: str) -> Any:
    return pytest.raises(kind, match=f"(?s){problem}.*{hint}")


def test_settings_that_jax_has_not() -> None:
    with refuses(ConfigError, "'fp16-mixed' needs a loss scale", "precision='bf16-mixed'"):
        Loop("cpu", framework="jax", precision="fp16-mixed")
    with refuses(ConfigError, "'bf16' changes the dtype", "before prepare"):
        Loop("cpu", framework="jax", precision="bf16")
    with refuses(ConfigError, "are not options of JAX", "'mesh': mesh"):
        Loop("cpu", framework="jax", options={"find_unused_parameters": True})
    with pytest.raises(AttributeError, match="value_and_grad"):
        Loop("cpu", framework="jax").backward  # noqa: B018


def test_jax_that_has_started_before_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    jnp.zeros(1)
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with refuses(FrameworkError, "JAX was started before the Loop", "at the top of the script"):
        Loop("cpu", framework="jax")


def test_a_state_that_a_step_has_taken_over() -> None:
    _, state, step = simple()
    x, y = script.table(16)
    step(state, x, y)
    with refuses(
        StateError, "after 1 steps, a step received a state, or a part of one, with memory", "state, value = step"
    ):
        step(state, x, y)


def test_the_state_of_before_a_checkpoint(tmp_path: Path) -> None:
    loop, state, step = simple()
    loop.save(tmp_path / "a")
    loop.load(tmp_path / "a")
    with refuses(StateError, "the state from before the checkpoint", "state = loop.state"):
        step(state, *script.table(16))
    step(loop.state, *script.table(16))


def test_a_checkpoint_of_another_state(tmp_path: Path) -> None:
    loop, _, _ = simple()
    loop.save(tmp_path / "a")
    for other, problem in (
        ({**parameters(), "d": jnp.ones(1)}, "'d' is only in this loop's"),
        ({"a": jnp.ones((5, 8)), "b": jnp.ones(8)}, "'c' is only in the checkpoint's state"),
        ({**parameters(), "b": jnp.ones(9)}, r"'b' is float32\[8\] there, but float32\[9\] here"),
        ({**parameters(), "b": jnp.ones(8, jnp.bfloat16)}, r"'b' is float32\[8\] there, but bfloat16\[8\] here"),
    ):
        fresh = Loop("cpu", framework="jax")
        fresh.prepare(other)
        with refuses(StateError, problem, "the same state"):
            fresh.load(tmp_path / "a")
    two = Loop("cpu", framework="jax")
    two.prepare(parameters(), parameters())
    with refuses(StateError, "has 1 states, but this loop has 2", "in the same order"):
        two.load(tmp_path / "a")


def test_a_loop_that_does_not_know_the_newest_state(tmp_path: Path) -> None:
    loop = Loop("cpu", framework="jax")
    state, loader = loop.prepare(parameters(), Rows())
    next(iter(loader))
    with refuses(StateError, "does not know the state after the last batch", "loop.state = state"):
        loop.save(tmp_path / "a")
    loop.state = state
    loop.save(tmp_path / "a")
    with refuses(StateError, "does not match the prepared state", "loop.state = state"):
        loop.state = {"a": state["a"]}
    with refuses(ConfigError, "has no state", "prepare"):
        Loop("cpu", framework="jax").state  # noqa: B018


def test_steps_that_take_or_give_no_state() -> None:
    loop, state, _ = simple()
    x, y = script.table(16)
    with refuses(ConfigError, "'evaluate' does not return a new state", "jax.jit"):

        @loop.compile
        def evaluate(state: Any, x: Any, y: Any) -> Any:
            return mean_loss(state, x, y)

        evaluate(state, x, y)
    assert not any(array.is_deleted() for array in state.values())
    with refuses(ConfigError, "did not receive a prepared state", "loop.prepare"):
        loop.compile(lambda x: x)(x)
    mixed = Loop("cpu", framework="jax", precision="bf16-mixed")
    state = mixed.prepare(parameters())
    with refuses(ConfigError, "does not compute a loss with the loop", "loop.value_and_grad"):
        mixed.compile(lambda state: state)(state)


def test_losses_that_give_something_else() -> None:
    loop = Loop("cpu", framework="jax")
    x, y = script.table(16)
    for loss, problem, hint in (
        (lambda p, x, y: apply(p, x), r"the loss returned float32\[16, 1\]", "jnp.mean"),
        (lambda p, x, y: (mean_loss(p, x, y), apply(p, x)), "the loss returned a pair of", "has_aux=True"),
        (lambda p, x, y: (mean_loss(p, x, y), jnp.float32(0.5)), "with a float32", "has_aux=True"),
        (lambda p, x, y: None, "the loss returned None", "jnp.mean"),
    ):
        with refuses(DataError, problem, hint):
            loop.value_and_grad(loss)(parameters(), x, y)
    with refuses(DataError, "returned one value for a batch with padding rows", "per row|value_and_grad"):
        loop.value_and_grad(mean_loss)(parameters(), x, y, mask=np.arange(16) < 9)
    with refuses(DataError, "no argument has rows", "leave accumulate out"):
        loop.value_and_grad(lambda p: p.sum(), accumulate=2)(jnp.ones(3))
    with refuses(ConfigError, "accumulate=0 is not a number", "accumulate=4"):
        loop.value_and_grad(mean_loss, accumulate=0)
    with refuses(ConfigError, "each of 2 micro-batches would return a separate", "leave accumulate out"):
        loop.value_and_grad(mean_loss, accumulate=2, has_aux=True)


def test_padding_that_nothing_leaves_out() -> None:
    loop = Loop("cpu", framework="jax", options={"mesh": jax.make_mesh((2,), ("data",))})
    _, loader = loop.prepare(parameters(), Rows(40, 16), batch="padded")
    with refuses(DataError, "has 8 rows, and padding up to 16", "mask=loader.mask"):
        for _ in loader:
            pass
    masks = [loader.mask.sum() for _ in loader]
    assert list(map(int, masks)) == [16, 16, 8]
    np.testing.assert_array_equal(
        loop.gather(x for x, _ in loop.prepare(Rows(40, 16, shuffle=False), batch="padded")), script.table(40)[0]
    )
    with refuses(
        DataError,
        "16 rows after the loop; its last batch also has 16 rows, but only 8 of them are real",
        "inside the loop",
    ):
        loop.gather(np.ones((16, 2)))


def test_batches_that_do_not_divide_are_whole_and_named() -> None:
    loop = Loop("cpu", framework="jax", options={"mesh": jax.make_mesh((2,), ("data",))})
    loader = loop.prepare(Rows(30, 15))
    with pytest.warns(RuntimeWarning, match="batches of 15 rows cannot be split evenly over 2 devices.*16"):
        batches = list(loader)
    assert all(x.sharding.is_fully_replicated for x, _ in batches)

    class Different:
        def __iter__(self) -> Iterator[Any]:
            yield np.zeros((4, 2)), np.zeros(3)

    with refuses(DataError, "arrays of 4 and of 3 rows", "same number of rows"):
        list(loop.prepare(Different()))


def test_what_cannot_be_prepared(keras: Any) -> None:
    loop = Loop("cpu", framework="jax")
    for given in (object(), {}, keras.layers.Dense(1)):
        with refuses(DataError, "cannot prepare", "loop.prepare"):
            loop.prepare(given)
    with refuses(StateError, "there was no batch with rows yet", "loader.mask"):
        loop.prepare(Rows()).mask  # noqa: B018
