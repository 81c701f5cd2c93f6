"""Work on several streams: record_stream, reuse across streams, neighbours in one granule."""

from __future__ import annotations

import random
import threading

import torch
from checks import DEVICE, MIB, books, fragmented, main, settle, sleep, stat, stitch_of


def check_record_stream() -> None:
    side = torch.cuda.Stream()
    for size in (4096, 6 * MIB, 33 * MIB):
        tensor = torch.full((size,), 5, dtype=torch.uint8, device=DEVICE)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            sleep(20)
            copy = tensor.clone()
            tensor.record_stream(side)
        del tensor  # its memory must not change until the side stream has read it
        rubbish = [torch.full((size,), 255, dtype=torch.uint8, device=DEVICE) for _ in range(4)]
        side.synchronize()
        assert bool((copy == 5).all()), f"{size} bytes were overwritten"
        del rubbish, copy


def check_reuse_after_an_ordered_free() -> None:
    """Memory is freed on one stream and taken on another without a wait. glake must order both."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(30):
        with torch.cuda.stream(first):
            tensor = torch.full((8 * MIB,), 1, dtype=torch.uint8, device=DEVICE)
            sleep(2)
            copy = tensor.clone()
            del tensor
        with torch.cuda.stream(second):
            other = torch.full((8 * MIB,), 2, dtype=torch.uint8, device=DEVICE)
        torch.cuda.synchronize()
        assert bool((copy == 1).all()) and bool((other == 2).all())
        del copy, other


def check_contents_of_random_work() -> None:
    settle()
    dice = random.Random(3)
    streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved() + 512 * MIB) / torch.cuda.mem_get_info()[1]
    )
    live: list[tuple[torch.Tensor, int, torch.cuda.Stream]] = []
    results: list[torch.Tensor] = []
    for index in range(1500):
        on = dice.choice(streams)
        with torch.cuda.stream(on):
            if live and (len(live) > 12 or dice.random() < 0.4):
                tensor, value, home = live.pop(dice.randrange(len(live)))
                if on != home:
                    on.wait_stream(home)
                    tensor.record_stream(on)
                results.append((tensor != value).any())
                del tensor
            else:
                size = dice.choice((600, 70000, MIB + 5, 9 * MIB, 24 * MIB, 37 * MIB))
                value = index % 251
                live.append(
                    (torch.full((size,), value, dtype=torch.uint8, device=DEVICE), value, on)
                )
        if index % 250 == 249:
            status, why = books()
            assert status == 0, why
    torch.cuda.synchronize()
    wrong = [index for index, bad in enumerate(results) if bool(bad)]
    assert not wrong, f"{len(wrong)} tensors had foreign bytes, the first the {wrong[0]}th read"


def check_neighbours_in_one_granule() -> None:
    """Small blocks of two streams lie in the same granules. Each keeps its own bytes."""
    settle()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for turn in range(40):
        blocks = []
        for index in range(400):
            with torch.cuda.stream(streams[index % 2]):
                blocks.append(
                    torch.full(
                        (512 + index,), (turn + index) % 250, dtype=torch.uint8, device=DEVICE
                    )
                )
        bad = []
        for index, block in enumerate(blocks):
            with torch.cuda.stream(streams[index % 2]):
                bad.append((block != (turn + index) % 250).any())
        torch.cuda.synchronize()
        assert not any(bool(each) for each in bad), f"round {turn}"


def check_stitched_memory_holds_its_bytes() -> None:
    before = stat("glake.stitches")
    kept = fragmented()
    for index, tensor in enumerate(kept):
        tensor.fill_(index + 1)
    stitched = torch.arange(stitch_of() // 8, dtype=torch.int64, device=DEVICE)
    assert stat("glake.stitches") > before
    torch.cuda.set_per_process_memory_fraction(1.0)  # comparing takes memory too
    for index, tensor in enumerate(kept):
        assert bool((tensor == index + 1).all())
    assert bool((stitched[1:] - stitched[:-1] == 1).all()) and int(stitched[0]) == 0


def check_threads_on_their_own_streams() -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for index in range(200):
                size = dice.choice((100, 50000, 3 * MIB, 11 * MIB))
                tensor = torch.full((size,), (seed + index) % 250, dtype=torch.uint8, device=DEVICE)
                if not bool((tensor == (seed + index) % 250).all()):
                    failures.append(f"thread {seed}, {index}")
                del tensor

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


if __name__ == "__main__":
    main(globals())
