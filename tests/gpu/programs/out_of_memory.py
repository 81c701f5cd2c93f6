"""What a program sees when memory runs out."""

from __future__ import annotations

import torch
from checks import DEVICE, MIB, main, raises, settle


def too_much() -> torch.Tensor:
    return torch.empty(torch.cuda.mem_get_info()[1] * 2, dtype=torch.uint8, device=DEVICE)


def check_torchs_own_error() -> None:
    before = torch.cuda.memory_stats()["num_ooms"]
    error = raises(torch.OutOfMemoryError, too_much)
    assert isinstance(error, torch.cuda.OutOfMemoryError) and isinstance(error, RuntimeError)
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1
    fine = torch.ones(MIB, device=DEVICE)
    assert float(fine.sum()) == MIB


def check_the_message_says_what_happened() -> None:
    text = str(raises(torch.OutOfMemoryError, too_much))
    assert "GiB" in text and len(text) > 80, text


def check_observers_are_called() -> None:
    seen: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *found: seen.append(found))
    raises(torch.OutOfMemoryError, too_much)
    assert len(seen) == 1, seen
    device, wanted = seen[0][0], seen[0][1]
    assert device == 0 and wanted >= torch.cuda.mem_get_info()[1], seen


def check_cached_memory_is_used_before_giving_up() -> None:
    settle()
    total = torch.cuda.mem_get_info()[1]
    held = [torch.empty(30 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(16)]
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    del held
    whole = torch.empty(460 * MIB, dtype=torch.uint8, device=DEVICE)  # of 480 free MiB
    assert whole.numel() == 460 * MIB


def check_training_goes_on_after_it() -> None:
    model = torch.nn.Linear(512, 512, device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(torch.ones(64, 512, device=DEVICE)).square().mean()
        loss.backward()
        raises(torch.OutOfMemoryError, too_much)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main(globals())
