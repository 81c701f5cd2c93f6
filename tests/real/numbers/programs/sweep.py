"""Computes PyTorch's own samples of its operators on the simulated GPU and on the CPU. Prints what
differs or cannot be computed. Arguments: names of operators (none: all of them)."""

import json
import os
import random
import signal
import sys
import types
from collections import Counter

import torch

from glake.dryrun import numbers

sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=object))  # not needed here
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

SECONDS, SAMPLES = 60, 4
# They return memory that nobody wrote, so there is nothing to compare.
FREE = ("empty", "new_empty", "empty_strided", "new_empty_strided", "empty_like", "empty_permuted")
# CUDA's kernels also return statistics in an evaluation, and the CPU's do not.
FIRST_ONLY = ("native_batch_norm", "_native_batch_norm_legit")
# How answers of a kind begin. Any other answer is a fault.
REFUSED = "NotImplementedError: numbers cannot be computed: "
ON_A_GPU = (
    "NotImplementedError: Could not run 'aten::",  # PyTorch has no CUDA kernel for it
    "RuntimeError: torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA",
)


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for part in value for each in tensors(part)]
    return []


def moved_whole(view: torch.Tensor, device: str) -> torch.Tensor:
    """The view on the device with all of its storage, as as_strided looks beyond the view."""
    whole = torch.empty(0, dtype=view.dtype).set_(view.detach().untyped_storage()).to(device)
    return whole.as_strided(view.size(), view.stride(), view.storage_offset())


def outcome(op, sample, device: str) -> list[torch.Tensor]:
    """Results and gradients, moved to the CPU."""
    moved = sample.transform(
        lambda x: (
            x.detach().to(device).requires_grad_(x.requires_grad)
            if isinstance(x, torch.Tensor)
            else torch.device(device)
            if isinstance(x, torch.device)
            else x
        )
    )
    torch.manual_seed(0)
    kwargs = dict(moved.kwargs)
    if "device" in kwargs:
        kwargs["device"] = device
    if name_of(op) == "as_strided.partial_views":
        moved.input = moved_whole(sample.input, device)
    if op.name == "tensor_split":  # places to split at are read by the host
        moved.args = [x.cpu() if isinstance(x, torch.Tensor) else x for x in moved.args]
    results = tensors(op(moved.input, *moved.args, **kwargs))
    if op.name in FIRST_ONLY:
        results = results[:1]
    leaves = [x for x in tensors([moved.input, moved.args]) if x.requires_grad]
    ends = [x for x in results if x.requires_grad and not x.is_sparse]
    grads: tuple = ()
    if leaves and ends:
        total = sum((x.abs() if x.is_complex() else x).sum() for x in ends)
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [x.detach().cpu() for x in [*results, *grads] if x is not None]


def check(op) -> str:
    types_ = [torch.float32, torch.int64, torch.bool, torch.complex64]
    dtype = next((each for each in types_ if each in op.dtypes), None)
    if dtype is None:
        return "no CPU kernel to compare with"
    grad = op.supports_autograd and dtype.is_floating_point
    random.seed(0)
    for count, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grad)):
        if count == SAMPLES:
            break
        wanted = outcome(op, sample, "cpu")
        found = outcome(op, sample, "cuda")
        assert len(found) == len(wanted), f"{len(found)} results, not {len(wanted)}"
        for mine, theirs in zip(found, wanted, strict=True):
            if name_of(op) in FREE:
                continue
            torch.testing.assert_close(
                mine, theirs, rtol=1e-4, atol=1e-4, equal_nan=True, check_stride=False
            )
    return "ok"


def said_of(op) -> str:
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError(f"{SECONDS} s")))
    signal.alarm(SECONDS)
    try:
        if op.name.startswith("jiterator"):
            return jiterated(op)
        return check(op)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def jiterated(op) -> str:
    """These have no CPU kernel. Their kernel is compiled at run time, and must be named."""
    sample = next(iter(op.sample_inputs("cuda", torch.float32)))
    try:
        op(sample.input, *sample.args, **sample.kwargs)
    except (RuntimeError, torch.AcceleratorError) as error:
        named = "nobody computes the kernel" in str(error)
        return REFUSED + op.name if named else f"{type(error).__name__}: {error}"
    return "computed by nobody"


def kind_of(said: str) -> str:
    if said == "ok":
        return "equal"
    if said.startswith(REFUSED):
        return "refused by name"
    if said.startswith(ON_A_GPU):
        return "refused on a GPU as well"
    return said if said == "no CPU kernel to compare with" else "wrong"


def broken() -> bool:
    try:
        return torch.zeros(1, device="cuda").item() != 0
    except Exception:
        return True


def name_of(op) -> str:
    return f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}"


def main() -> None:
    chosen = [op for op in op_db if not sys.argv[1:] or op.name in sys.argv[1:]]
    state = json.loads(os.environ.pop("SWEEP", '{"at": 0, "kinds": {}}'))
    kinds = Counter(state["kinds"])
    numbers.install()
    for at, op in enumerate(chosen[state["at"] :], state["at"]):
        said = said_of(op)
        kinds[kind_of(said)] += 1
        if said == "ok":
            continue
        print(f"{name_of(op)}: {kind_of(said)}: {' '.join(said.split())[:300]}", flush=True)
        if broken():  # like a GPU after an error, so a new process goes on
            os.environ["SWEEP"] = json.dumps({"at": at + 1, "kinds": kinds})
            os.execv(sys.executable, [sys.executable, *sys.argv])
    print(f"torch {torch.__version__}, {len(chosen)} operators: {dict(kinds)}")
    assert not kinds["wrong"], "some are neither equal to the CPU's nor refused"


if __name__ == "__main__":
    main()
