"""Client state is transactional, shared, and spills to disk."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from fedvra.core.errors import FedvraError
from fedvra.state.client_store import ClientStore, MemoryBudget
from fedvra.state.segments import LARGE_ROW
from fedvra.state.shared_rows import SEGMENT_BYTES, RowReader, shared_tensor


def filled(store: ClientStore, clients: list[int], value: float) -> None:
    _, write = store.stage(np.array(clients))
    for slot in write:
        store.save(int(slot), torch.full((store.width,), value, dtype=store.dtype))


def test_a_staged_row_is_not_the_clients_until_committed() -> None:
    store = ClientStore(4, torch.float64)
    filled(store, [3, 7], 1.0)
    assert torch.equal(store.get(3), torch.zeros(4, dtype=torch.float64))
    store.commit([3])
    store.rollback()
    assert store.clients() == [3]
    assert torch.equal(store.get(3), torch.ones(4, dtype=torch.float64))
    assert torch.equal(store.get(7), torch.zeros(4, dtype=torch.float64))


def test_a_lost_update_leaves_the_old_row() -> None:
    store = ClientStore(4, torch.float32)
    filled(store, [3], 1.0)
    store.commit([3])
    filled(store, [3], 2.0)
    store.rollback()
    assert float(store.get(3)[0]) == 1.0


def test_staging_twice_before_a_commit_reuses_the_slot() -> None:
    store = ClientStore(4, torch.float32)
    _, first = store.stage(np.array([5]))
    _, second = store.stage(np.array([5]))
    assert first.tolist() == second.tolist()


def test_slots_are_reused_so_that_memory_follows_the_clients_that_took_part() -> None:
    store = ClientStore(1 << 18, torch.float32)  # 1 MiB rows, 64 to a segment
    for value in range(50):
        filled(store, list(range(10)), float(value))
        store.commit(range(10))
    assert len(store.segments) == 1
    assert {float(row[0]) for _, row in store.items()} == {49.0}


@pytest.mark.parametrize("limit", [None, 0])
def test_another_process_sees_the_rows_in_memory_and_on_disk(limit: int | None, tmp_path: Path) -> None:
    store = ClientStore(1 << 14, torch.float32, budget=MemoryBudget(limit), folder=tmp_path)
    filled(store, [1, 2], 5.0)
    store.commit([1, 2])
    read, write = store.stage(np.array([1, 2]))
    child = os.fork()
    if child == 0:
        reader = RowReader(store.width, store.dtype, store.rows_per_segment)
        reader.attach(store.addresses())
        for old, new in zip(read, write, strict=True):
            reader.save(int(new), reader.load(int(old)) + 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.commit([1, 2])
    assert {float(x) for _, row in store.items() for x in row.unique()} == {6.0}
    assert [s.address.on_disk for s in store.segments] == [limit == 0]
    assert not list(tmp_path.iterdir())  # unnamed: nothing to clean up after a crash


def test_rows_past_the_limit_are_on_disk_and_the_first_ones_in_memory(tmp_path: Path) -> None:
    store = ClientStore(
        1 << 20, torch.float32, budget=MemoryBudget(SEGMENT_BYTES), folder=tmp_path
    )  # 4 MiB rows, 16 to a segment
    for client in range(20):
        store.put([client], [torch.full((1 << 20,), float(client))])
    assert [s.address.on_disk for s in store.segments] == [False, True]
    assert [float(row[-1]) for _, row in store.items()] == [float(c) for c in range(20)]


def test_no_room_on_disk_is_said_in_a_sentence(tmp_path: Path) -> None:
    store = ClientStore(1 << 20, torch.float32, budget=MemoryBudget(0), folder=tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(FedvraError, match="no room for 64 MiB more of client state"):
            store.stage(np.array([0]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_files_are_closed_with_the_last_reference(tmp_path: Path) -> None:
    store = ClientStore(8, torch.float64, budget=MemoryBudget(0), folder=tmp_path)
    store.put([4], [torch.arange(8.0, dtype=torch.float64)])
    file = store.segments[0].file
    assert file is not None
    fd = file.fileno()
    os.fstat(fd)
    del store
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_bfloat16_rows_take_half_the_memory() -> None:
    rows = [ClientStore(1 << 16, dtype) for dtype in (torch.float32, torch.bfloat16)]
    assert rows[1].rows_per_segment == 2 * rows[0].rows_per_segment


def test_shared_tensors_are_shared_with_forked_processes() -> None:
    tensor = shared_tensor((3,), torch.float64)
    child = os.fork()
    if child == 0:
        tensor.fill_(7.0)
        os._exit(0)
    os.waitpid(child, 0)
    assert tensor.tolist() == [7.0] * 3


def test_rows_that_nobody_else_sees_need_no_file() -> None:
    store = ClientStore(4, torch.float32, shared=False)
    store.put([1], [torch.ones(4)])
    assert store.segments[0].file is None
    assert store.get(1).tolist() == [1.0] * 4


def test_large_rows_that_are_new_go_into_several_files_in_turn_and_small_ones_fill_one() -> None:
    """The kernel lets one process at a time write to a file."""
    for width, writers, files in ((LARGE_ROW // 4, 2, 4), (LARGE_ROW // 4, 1, 1), (16, 2, 1)):
        store = ClientStore(width, torch.float32, writers=writers)
        assert store.rows_per_segment >= 64
        clients = list(range(64))
        for value in (1.0, 2.0):  # the second time in other slots
            _, write = store.stage(np.array(clients))
            assert len(set(write.tolist())) == 64
            for client, slot in zip(clients, write.tolist(), strict=True):
                store.save(slot, torch.full((width,), value * client))
            store.commit(clients)
        assert [float(row[-1]) for _, row in store.items()] == [2.0 * client for client in clients]
        assert len(store.segments) == files
    store = ClientStore(LARGE_ROW // 4, torch.float32, writers=2)
    _, write = store.stage(np.arange(40))
    assert (write // store.rows_per_segment).tolist() == [k // 8 % 4 for k in range(40)]


def test_a_large_row_is_not_mapped_before_it_is_met_again() -> None:
    """A new one is written to the kernel's pages from memory that was used before."""
    store = ClientStore(LARGE_ROW // 4 + 3, torch.float32)
    _, write = store.stage(np.array([1, 2]))
    first, second = (store.place(int(slot)) for slot in write)
    assert first.data_ptr() == second.data_ptr()
    filled(store, [1, 2], 3.0)
    assert "rows" not in store.segments[0].__dict__
    store.commit([1, 2])
    assert [float(row.sum()) for _, row in store.items()] == [3.0 * store.width] * 2
    _, write = store.stage(np.array([1]))
    filled(store, [1], 4.0)
    store.commit([1])
    _, again = store.stage(np.array([1]))  # the slot it had first, which was read since
    assert store.place(int(again[0])).data_ptr() == store.load(int(again[0])).data_ptr()


@pytest.mark.parametrize("seen_by_the_writer", [True, False])
def test_large_rows_reach_other_processes_written_or_mapped(seen_by_the_writer: bool) -> None:
    store = ClientStore(LARGE_ROW // 4, torch.float32)
    filled(store, [1, 2], 5.0)
    store.commit([1, 2])
    read, write = store.stage(np.array([1, 2]))
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # torch's threads, where there are any, are the parent's: a child would wait for them
        reader = RowReader(store.width, store.dtype, store.rows_per_segment)
        reader.attach(store.addresses())
        for old, new in zip(read.tolist(), write.tolist(), strict=True):
            if seen_by_the_writer:
                reader.load(new)
            torch.add(reader.load(old), 1.0, out=(place := reader.place(new)))
            reader.save(new, place)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.commit([1, 2])
    assert {float(x) for _, row in store.items() for x in row.unique()} == {6.0}
