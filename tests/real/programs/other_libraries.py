"""cuRAND, cuFFT and cuBLAS as CuPy calls them: on a thread that has no context yet."""

import ctypes
import threading

runtime = ctypes.CDLL("libcudart.so.13")
driver = ctypes.CDLL("libcuda.so.1")
driver.simcuda_launches.restype = ctypes.c_size_t
WORD = ctypes.c_void_p


def launches() -> str:
    text = ctypes.create_string_buffer(1 << 16)
    driver.simcuda_launches(text, ctypes.c_size_t(len(text)), 0)
    return text.value.decode()


def numbers() -> None:
    curand = ctypes.CDLL("libcurand.so.10")
    generator = WORD()
    assert curand.curandCreateGenerator(ctypes.byref(generator), 100) == 0
    assert curand.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(7)) == 0
    memory = WORD()
    assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)) == 0
    assert curand.curandGenerateUniform(generator, memory, ctypes.c_size_t(1024)) == 0
    assert curand.curandDestroyGenerator(generator) == 0
    assert curand.curandGenerateUniform(None, memory, ctypes.c_size_t(1024)) == 101
    assert "curandGenerateUniform" in launches(), launches()


def transforms() -> None:
    cufft = ctypes.CDLL("libcufft.so.12")
    plan, work = ctypes.c_int(), ctypes.c_size_t()
    assert cufft.cufftCreate(ctypes.byref(plan)) == 0
    assert cufft.cufftMakePlan1d(plan, 256, 0x29, 4, ctypes.byref(work)) == 0
    assert work.value == 256 * 4 * 16
    lengths = (ctypes.c_int * 2)(8, 16)
    nothing = (None, 1, 0)
    assert (
        cufft.cufftMakePlanMany(plan, 2, lengths, *nothing, *nothing, 0x29, 3, ctypes.byref(work))
        == 0
    )
    assert work.value == 8 * 16 * 3 * 16
    assert cufft.cufftExecC2C(plan, None, None, -1) == 0
    assert cufft.cufftDestroy(plan) == 0
    assert cufft.cufftExecC2C(plan, None, None, -1) == 1
    assert "cufftExecC2C" in launches(), launches()


def products() -> None:
    cublas = ctypes.CDLL("libcublas.so.13")
    handle, stream, mine = WORD(), WORD(), WORD()
    assert runtime.cudaStreamCreate(ctypes.byref(mine)) == 0
    assert cublas.cublasCreate_v2(ctypes.byref(handle)) == 0
    assert cublas.cublasSetStream_v2(handle, mine) == 0
    assert cublas.cublasGetStream_v2(handle, ctypes.byref(stream)) == 0
    assert stream.value == mine.value
    assert cublas.cublasSdgmm(handle) == 0
    assert "cublasSdgmm" in launches(), launches()


for job in (numbers, transforms, products):
    failed: list[BaseException] = []

    def run(job=job, failed=failed) -> None:
        try:
            job()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
