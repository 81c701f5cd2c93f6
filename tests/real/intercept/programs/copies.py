"""Makes and checks torch's copies. Prints what must be the same with and without glake."""

import sys
import threading

import torch

BYTES = 16 << 20


def numbers(seed: int) -> torch.Tensor:
    return torch.arange(seed, seed + BYTES // 4, dtype=torch.int32)


def back(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu()


def default_stream() -> None:
    for non_blocking in (True, False):
        source = numbers(1).pin_memory()
        there = source.to("cuda", non_blocking=non_blocking)
        second = torch.empty_like(there)
        second.copy_(there)
        home = torch.empty(BYTES // 4, dtype=torch.int32, pin_memory=True)
        home.copy_(second, non_blocking=non_blocking)
        torch.cuda.synchronize()
        assert torch.equal(home, numbers(1))
        assert torch.equal(back(there), numbers(1))


def pageable() -> None:
    source = numbers(2)
    there = source.to("cuda", non_blocking=True)
    source.zero_()  # torch has read it by now
    assert torch.equal(back(there), numbers(2))
    there.copy_(numbers(3))
    assert torch.equal(back(there), numbers(3))


def streams_and_events() -> None:
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    copied = torch.cuda.Event()
    source = numbers(4).pin_memory()
    home = torch.empty(BYTES // 4, dtype=torch.int32, pin_memory=True)
    with torch.cuda.stream(side):
        there = torch.empty(BYTES // 4, dtype=torch.int32, device="cuda")
        there.copy_(source, non_blocking=True)
        copied.record()
    with torch.cuda.stream(other):
        copied.wait()
        home.copy_(there, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
    done.synchronize()
    assert torch.equal(home, numbers(4))
    home.zero_()
    torch.cuda.current_stream().wait_stream(other)
    home.copy_(there, non_blocking=True)  # the default stream
    torch.cuda.current_stream().synchronize()
    assert torch.equal(home, numbers(4))
    # Memory is freed behind its copies and handed out again. PyTorch's pinned pool orders this by
    # an event, and its GPU pool by the stream.
    for seed in range(5, 10):
        source = numbers(seed).pin_memory()
        with torch.cuda.stream(side):
            there = source.to("cuda", non_blocking=True)
            del source
            home.copy_(there, non_blocking=True)
            del there
        side.synchronize()
        assert torch.equal(home, numbers(seed))
    torch.cuda.empty_cache()


def graphs() -> None:
    source = numbers(20).pin_memory()
    there = torch.zeros(BYTES // 4, dtype=torch.int32, device="cuda")
    home = torch.empty(BYTES // 4, dtype=torch.int32, pin_memory=True)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        there.copy_(source, non_blocking=True)
        home.copy_(there, non_blocking=True)
    for seed in (21, 22):
        source.copy_(numbers(seed))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(home, numbers(seed))


def threads() -> None:
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            gpu = f"cuda:{number % 2}"
            stream = torch.cuda.Stream(gpu)
            with torch.cuda.stream(stream):
                for seed in range(30 + 10 * number, 33 + 10 * number):
                    source = numbers(seed).pin_memory()
                    there = source.to(gpu, non_blocking=True)
                    home = torch.empty(BYTES // 4, dtype=torch.int32, pin_memory=True)
                    home.copy_(there, non_blocking=True)
                    stream.synchronize()
                    assert torch.equal(home, numbers(seed))
                    torch.cuda.empty_cache()
        except BaseException as error:
            failed.append(error)

    several = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert not failed, failed


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return numbers(index)[: BYTES // 8]


def loader() -> None:
    batches = torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2, pin_memory=True)
    for at, batch in enumerate(batches):
        assert batch.is_pinned()
        there = batch.to("cuda", non_blocking=True)
        for row in range(4):
            assert torch.equal(back(there[row]), numbers(4 * at + row)[: BYTES // 8])


def main() -> None:
    for scenario in (default_stream, pageable, streams_and_events, graphs, threads, loader):
        scenario()
        print(scenario.__name__, torch.cuda.memory_allocated() >= 0)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
