"""Arrays from and to host memory and other frameworks, in 32 and in 64 bits."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anyaccel.device import Device
from anyaccel.errors import MoveError
from anyaccel.host_memory import aligned_empty
from anyaccel_jax import JaxBackend, exchange
from anyaccel_jax.host_transfer import check_dtype, copy_on_host

CPU, SECOND = Device("cpu"), Device("cpu", 1)
REMEDY = r'call jax.config.update\("jax_enable_x64", True\)'


def aligned(count: int) -> np.ndarray:
    """Ones in memory that JAX would alias."""
    room = np.empty(count * 4 + 64, np.uint8)
    begin = -room.ctypes.data % 64
    array = room[begin : begin + count * 4].view("float32")
    array[:] = 1
    return array


def test_jax_itself_aliases_aligned_arrays() -> None:
    """The reason for the copy in `from_host`: if this test fails, the copy is no longer needed."""
    array = aligned(16)
    taken = jax.device_put(array, jax.devices("cpu")[0], may_alias=False)
    array[:] = 7
    assert float(taken[0]) == 7


@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
def test_from_host_owns_its_memory_wherever_the_source_lies(backend: JaxBackend, device: Device) -> None:
    for offset in range(0, 16, 3):
        array = aligned(64)[offset:]
        tensor = backend.from_host(array, device)
        array[:] = 7
        np.testing.assert_array_equal(backend.to_host(tensor), np.ones(64 - offset))


def test_our_copies_are_taken_over_without_another() -> None:
    for array in (np.arange(12.0).reshape(3, 4).T, np.zeros((0, 3)), np.float32(3), np.arange(5, dtype=">i4")):
        made = copy_on_host(np.asarray(array))
        assert not made.size or made.ctypes.data % 64 == 0
        assert made.flags.c_contiguous and made.dtype.isnative
        np.testing.assert_array_equal(made, array)


@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
def test_an_owned_array_is_used_in_place(backend: JaxBackend, device: Device) -> None:
    array = aligned_empty((3, 4), "float32")
    array[...] = 2
    where, owner = array.ctypes.data, weakref.ref(array.base)
    tensor = backend.from_host_owned(array, device)
    assert tensor.unsafe_buffer_pointer() == where
    del array
    assert owner() is not None  # JAX keeps the array alive
    np.testing.assert_array_equal(backend.to_host(tensor), np.full((3, 4), 2))
    del tensor
    gc.collect()
    assert owner() is None  # until the tensor is gone


def test_an_array_that_cannot_be_used_in_place_is_copied(backend: JaxBackend) -> None:
    sealed = aligned(16).copy()
    sealed.flags.writeable = False
    for array in (aligned(16)[1:], aligned(16)[::2], sealed):
        tensor = backend.from_host_owned(array, CPU)
        assert tensor.unsafe_buffer_pointer() != array.ctypes.data
        np.testing.assert_array_equal(backend.to_host(tensor), np.ones(len(array)))


@pytest.mark.parametrize("device", [CPU, SECOND], ids=str)
def test_an_asynchronous_copy_does_not_follow_its_buffer(backend: JaxBackend, device: Device) -> None:
    for part in (slice(0, 1000), slice(1, 1000)):  # JAX would alias the first, and copy the second later
        buffer = backend.staging_buffer((1000, 50), "float32", device)
        buffer[...] = 1
        sent = backend.copy_async(buffer[part], device)
        sent.source_reusable()
        buffer[...] = 7
        sent.wait()
        np.testing.assert_array_equal(backend.to_host(sent.tensor), np.ones((1000 - part.start, 50)))


def test_a_copy_to_an_accelerator_makes_no_copy_on_the_host(
    backend: JaxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fake GPU: what JAX gets, and who waits."""
    put = jax.device_put
    given: list[np.ndarray] = []
    monkeypatch.setattr(backend, "jax_device", lambda device: jax.devices("cpu")[0], raising=False)
    monkeypatch.setattr(jax, "device_put", lambda array, target: given.append(array) or put(array.copy(), target))
    buffer = backend.staging_buffer((4, 2), "float32", Device("gpu"))
    buffer[...] = 3
    sent = backend.copy_async(buffer[:3], Device("gpu"))
    assert given[0].ctypes.data == buffer.ctypes.data and given[0].shape == (3, 2)
    assert sent.source_reusable() is sent.tensor  # block_until_ready returns the array
    backend.copy_async(np.ones((2, 3), "float32").T, Device("gpu"))
    assert given[1].flags.c_contiguous  # other layouts are copied first
    taken = backend.from_host_owned(buffer, Device("gpu"))
    assert given[2] is buffer and taken.shape == (4, 2)


@pytest.mark.parametrize("act", ["from_host_owned", "copy_async"])
def test_a_dtype_that_jax_would_narrow_is_refused(backend: JaxBackend, act: str) -> None:
    with pytest.raises(MoveError, match=f"JAX would convert float64 to float32.*{REMEDY}"):
        getattr(backend, act)(np.ones(3), CPU)


def test_an_array_on_the_host_is_read_only(backend: JaxBackend) -> None:
    tensor = backend.from_host(np.ones(3, "float32"), CPU)
    with pytest.raises(ValueError, match="read-only"):
        backend.to_host(tensor)[0] = 5


def test_bfloat16_is_transferred_in_both_directions(backend: JaxBackend) -> None:
    array = np.asarray([1.5, -2.0], dtype=jnp.bfloat16)
    back = backend.to_host(backend.from_host(array, CPU))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_random_keys_cannot_be_read_as_numbers(backend: JaxBackend) -> None:
    with pytest.raises(MoveError, match=r"cannot hold an array of dtype key<fry>.*jax.random.key_data"):
        backend.to_host(jax.random.key(0))


# -- 64 bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "held"), [("float64", "float32"), ("int64", "int32"), ("complex128", "complex64")])
def test_nothing_is_narrowed_silently(backend: JaxBackend, dtype: str, held: str) -> None:
    array = np.ones(3, dtype)
    for act in (backend.from_host, backend.from_dlpack):
        with pytest.raises(MoveError, match=f"JAX would convert {dtype} to {held}.*{REMEDY}.*astype\\('{held}'\\)"):
            act(array, CPU)


def test_64_bits_are_kept_where_they_are_enabled(backend: JaxBackend, x64: Any) -> None:
    with x64(True):
        wide = backend.from_host(np.arange(3.0), CPU)
        assert wide.dtype == "float64" == backend.from_dlpack(np.arange(3.0), CPU).dtype
    assert backend.move(wide, SECOND).dtype == "float64" == backend.place({"a": wide}, SECOND)["a"].dtype


@pytest.mark.parametrize("dtype", ["object", "U3", "S3", "M8[s]", "m8[s]", "V4", [("a", "i4")]], ids=str)
def test_dtypes_that_jax_lacks_are_refused(dtype: Any) -> None:
    with pytest.raises(MoveError, match=r"JAX has no dtype for NumPy's .*astype\('float32'\)"):
        check_dtype(np.dtype(dtype))


def test_dtypes_go_by_name_too() -> None:
    for name in ("bool", "uint8", "int32", "float16", "bfloat16", "float8_e4m3fn", "complex64"):
        check_dtype(name)


# -- other frameworks --------------------------------------------------------------------------------------------------


def test_numpy_shares_aligned_memory_and_read_only_arrays_are_copied(backend: JaxBackend) -> None:
    array = aligned(8)
    assert backend.from_dlpack(array, CPU).unsafe_buffer_pointer() == array.ctypes.data
    array.flags.writeable = False
    copy = backend.from_dlpack(array, CPU)
    assert copy.unsafe_buffer_pointer() != array.ctypes.data
    np.testing.assert_array_equal(copy, np.ones(8))


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(np.arange(12.0, dtype="f4").reshape(3, 4)[:, ::2], id="strided"),
        pytest.param(np.arange(12.0, dtype="f4")[::-1], id="backwards"),
        pytest.param(np.arange(12.0, dtype="f4").reshape(3, 4).T, id="transposed"),
        pytest.param(np.arange(3.0, dtype=">f4"), id="other byte order"),
        pytest.param(np.asarray([1, 2], dtype=jnp.bfloat16), id="bfloat16"),
        pytest.param(np.array([True, False]), id="bool"),
        pytest.param(np.float32(2.5), id="scalar"),
        pytest.param(np.zeros((0, 3), "f4"), id="empty"),
    ],
)
def test_numpy_of_any_layout_and_dtype(backend: JaxBackend, source: Any) -> None:
    taken = backend.from_dlpack(source, CPU)
    assert taken.dtype == source.dtype.newbyteorder("=")
    np.testing.assert_array_equal(np.asarray(taken), source)


def test_our_own_are_moved(backend: JaxBackend) -> None:
    here = backend.from_host(np.ones(2, "f4"), CPU)
    assert backend.from_dlpack(here, CPU) is here
    assert backend.device_of(backend.from_dlpack(here, SECOND)) == SECOND


def test_an_object_without_dlpack_is_refused(backend: JaxBackend) -> None:
    with pytest.raises(
        MoveError, match=r"JAX cannot import a builtins.object through DLPack.*it has no __dlpack__.*from_host"
    ):
        backend.from_dlpack(object(), CPU)


class Tensor:
    """A tensor of some framework: strides in elements, `contiguous`, and DLPack."""

    def __init__(self, array: np.ndarray, dtype: str | None = None) -> None:
        self.array, self.shape, self.dtype = array, array.shape, dtype or f"framework.{array.dtype}"
        self.copies = 0

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def contiguous(self) -> Tensor:
        self.copies += 1
        return Tensor(np.ascontiguousarray(self.array))

    def __dlpack__(self, **settings: Any) -> Any:
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(("array", "copies"), [(np.ones((4, 6), "f4").T, 0), (np.ones((4, 6), "f4")[:, ::2], 1)])
def test_tensors_with_gaps_are_copied_by_their_framework(backend: JaxBackend, array: np.ndarray, copies: int) -> None:
    tensor = Tensor(array)
    np.testing.assert_array_equal(backend.from_dlpack(tensor, CPU), array)
    assert tensor.copies == copies


def test_a_foreign_dtype_that_jax_would_change_is_refused(backend: JaxBackend) -> None:
    with pytest.raises(MoveError, match=f"JAX would convert float64 to float32.*{REMEDY}"):
        backend.from_dlpack(Tensor(np.ones(3)), CPU)
    with pytest.raises(MoveError, match="JAX would convert int16 to float32"):
        backend.from_dlpack(Tensor(np.ones(3, "f4"), "framework.int16"), CPU)


@pytest.mark.parametrize(
    ("shape", "strides", "fills"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (4, 1), False),
        ((2, 3), (0, 1), False),
        ((5,), (2,), False),
        ((1, 5), (99, 1), True),
        ((), (), True),
    ],
)
def test_gaps_are_seen(shape: tuple[int, ...], strides: tuple[int, ...], fills: bool) -> None:
    assert exchange.has_no_gaps(shape, strides) == fills


class TestWithTorch:
    """With the real framework, where it is installed."""

    @pytest.fixture
    def torch(self) -> Any:
        return pytest.importorskip("torch", reason="torch is not installed")

    def test_memory_is_shared_both_ways(self, backend: JaxBackend, torch: Any) -> None:
        for tensor in (torch.arange(6.0), torch.ones(4, 3).T, torch.tensor([True]), torch.ones(2).bfloat16()):
            taken = backend.from_dlpack(tensor, CPU)
            assert taken.unsafe_buffer_pointer() == tensor.data_ptr()
            assert str(tensor.dtype) == f"torch.{taken.dtype}"
            assert torch.from_dlpack(taken).data_ptr() == tensor.data_ptr()

    def test_a_second_cpu_gets_a_copy(self, backend: JaxBackend, torch: Any) -> None:
        taken = backend.from_dlpack(torch.arange(6.0), SECOND)
        assert backend.device_of(taken) == SECOND
        np.testing.assert_array_equal(taken, np.arange(6.0))
        there = backend.from_host(np.ones(3, "f4"), SECOND)
        assert torch.from_dlpack(there).device.type == "cpu"

    def test_strides_gradients_and_64_bits(self, backend: JaxBackend, torch: Any) -> None:
        np.testing.assert_array_equal(backend.from_dlpack(torch.arange(12.0)[::3], CPU), [0, 3, 6, 9])
        np.testing.assert_array_equal(backend.from_dlpack(torch.ones(3).expand(2, 3), CPU), np.ones((2, 3)))
        with pytest.raises(MoveError, match=r"torch.Tensor through DLPack.*require gradient"):
            backend.from_dlpack(torch.ones(2, requires_grad=True), CPU)
        with pytest.raises(MoveError, match=f"JAX would convert float64 to float32.*{REMEDY}"):
            backend.from_dlpack(torch.ones(2, dtype=torch.float64), CPU)

    def test_who_takes_an_array_waits_for_it(self, backend: JaxBackend, torch: Any) -> None:
        @jax.jit
        def long(a: Any) -> Any:
            return jax.lax.fori_loop(0, 60, lambda i, a: a @ a / 400.0, a)

        result = long(jnp.ones((400, 400)))
        np.testing.assert_array_equal(torch.from_dlpack(result).cpu().numpy(), np.ones((400, 400), "f4"))


# -- rows and scalars --------------------------------------------------------------------------------------------------


def test_rows_are_compiled_once_for_each_size(backend: JaxBackend) -> None:
    from anyaccel_jax.ops import gather_rows

    column, order = (
        backend.from_host(array, CPU) for array in (np.arange(50.0, dtype="f4"), np.arange(50, dtype="i4"))
    )
    compiled = gather_rows._cache_size  # noqa: SLF001  # JAX has no public way
    before = compiled()
    for start in range(0, 40, 10):
        np.testing.assert_array_equal(
            backend.gather_rows(column, start, start + 10, order), np.arange(start, start + 10)
        )
    assert compiled() == before + 1


def test_scalars_of_any_dtype_and_device_are_read_in_one_call(backend: JaxBackend) -> None:
    given = [(2.5, "f4", CPU), (3, "i4", SECOND), (1, "bool", CPU), (0.5, "f2", SECOND)]
    actual = backend.scalars([backend.from_host(np.array(value, dtype), device) for value, dtype, device in given])
    np.testing.assert_array_equal(actual, [2.5, 3.0, 1.0, 0.5])
