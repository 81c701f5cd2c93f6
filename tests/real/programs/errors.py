import torch

for wrong, phrase in (
    (lambda: torch.cuda.set_device(7), "invalid device ordinal"),
    (lambda: torch.cuda.current_stream(0).wait_event(None), ""),
):
    try:
        wrong()
    except (RuntimeError, AttributeError) as error:
        assert phrase in str(error), error
    else:
        raise AssertionError(f"no error where {phrase!r} is due")
assert torch.ones(3, device="cuda").shape == (3,), "an error of before is not given again"
