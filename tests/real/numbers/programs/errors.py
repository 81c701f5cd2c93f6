"""Programs that fail in numbers mode as on a GPU, or with the name of what cannot be computed."""

import ctypes
import os
import sys

import torch


class Foreign:
    """Device memory that the script made itself, as other libraries hand it to PyTorch."""

    def __init__(self, count: int) -> None:
        torch.zeros(1, device="cuda")  # makes a context current
        self.address, self._driver = ctypes.c_uint64(), ctypes.CDLL("libcuda.so.1")
        assert (
            self._driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(4 * count)) == 0
        )
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<f4", "data": (self.address.value, False), "version": 3,
        }  # fmt: skip

    def free(self) -> None:
        assert self._driver.cuMemFree_v2(self.address) == 0


def unmapped() -> None:
    memory = Foreign(64)
    x = torch.as_tensor(memory, device="cuda")
    x.fill_(2)
    assert x.sum().item() == 128
    memory.free()
    y = x + 1
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        assert "an illegal memory access was encountered" in str(error), error
    else:
        raise AssertionError(f"no error; {y}")
    try:
        torch.ones(1, device="cuda")
    except torch.AcceleratorError as error:  # the error stays
        assert "an illegal memory access was encountered" in str(error), error
    print("unmapped ok")


def index_out_of_bounds() -> None:
    x = torch.zeros(5, device="cuda")
    x[torch.tensor([9], device="cuda")]
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        assert "device-side assert triggered" in str(error), error
        print("index_out_of_bounds ok")


def unknown_kernel() -> None:
    try:
        torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2)).to("cuda").coalesce()
    except (RuntimeError, torch.AcceleratorError) as error:
        assert "nobody computes the kernel" in str(error), error
        print("unknown_kernel ok", str(error).splitlines()[0])


def op_without_a_cpu_kernel() -> None:
    x = torch.ones(2, 4, 8, 8, device="cuda")
    weight = torch.zeros(4, 4, 3, 3, device="cuda")
    pair = [1, 1]
    try:
        torch.cudnn_convolution(x, weight, pair, pair, pair, 1, False, False, False)  # this line
    except NotImplementedError as error:
        assert "aten::cudnn_convolution" in str(error) and "errors.py:70" in str(error), error
        print("op_without_a_cpu_kernel ok")


def refused_arguments() -> None:
    """A GPU refuses them at the call, and goes on."""
    x = torch.ones(4, device="cuda")
    try:
        x.masked_select(torch.ones(4, device="cuda", dtype=torch.uint8))
    except RuntimeError as error:
        assert "expected BoolTensor for mask" in str(error), error
        torch.cuda.synchronize()
        if x.masked_select(x > 0).tolist() == [1.0] * 4:
            print("refused_arguments ok")


def assertions_are_as_on_a_gpu() -> None:
    x = torch.ones(4, device="cuda")
    torch._assert_async(x.sum() == 4)
    torch.cuda.synchronize()
    torch._assert_async(x.sum() == 5)
    try:
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        assert "device-side assert triggered" in str(error), error
        print("assertions_are_as_on_a_gpu ok")


def phantom() -> None:
    os.environ["GLAKE_SIM_PHANTOM"] = "1"
    from glake.dryrun import numbers
    from glake.errors import DryRunError

    try:
        numbers.install()
    except DryRunError as error:
        assert "phantom memory has no bytes to compute numbers with" in str(error), error
        print("phantom ok")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.stdout.flush()
    os._exit(0)
