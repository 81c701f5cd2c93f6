"""Objects that a graph keeps alive end with the last of graph, instance and running launch. A
function that the stand-ins lack is refused by its name."""

import ctypes

cuda = ctypes.CDLL("libcudart.so.13")
ended = []
Destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
note = Destroy(lambda pointer: ended.append(pointer))
MOVE, NO_SYNC, GLOBAL = 1, 1, 0


def ok(status):
    assert status == 0, status


def made():
    return ctypes.c_void_p()


def created(mark, count=1):
    handle = made()
    ok(cuda.cudaUserObjectCreate(ctypes.byref(handle), ctypes.c_void_p(mark), note, count, NO_SYNC))
    return handle


def captured():
    stream, graph, memory = made(), made(), made()
    ok(cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(4096)))
    ok(cuda.cudaStreamCreate(ctypes.byref(stream)))
    ok(cuda.cudaStreamBeginCapture(stream, GLOBAL))
    ok(cuda.cudaMemsetAsync(memory, 1, ctypes.c_size_t(4096), stream))
    ok(cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)))
    return stream, graph


ok(cuda.cudaSetDevice(0))
assert cuda.cudaUserObjectCreate(ctypes.byref(made()), None, note, 1, 0) == 1, "flags"

counted = created(11, 2)
ok(cuda.cudaUserObjectRetain(counted, 1))
ok(cuda.cudaUserObjectRelease(counted, 2))
assert ended == []
assert cuda.cudaUserObjectRelease(counted, 2) == 1, "more than there are"
ok(cuda.cudaUserObjectRelease(counted, 1))
assert ended == [11]

stream, graph = captured()
held = created(22)
ok(cuda.cudaGraphRetainUserObject(graph, held, 1, MOVE))
instance = made()
ok(cuda.cudaGraphInstantiateWithFlags(ctypes.byref(instance), graph, ctypes.c_ulonglong(0)))
ok(cuda.cudaGraphDestroy(graph))
assert ended == [11], "the instance holds it"
ok(cuda.cudaGraphLaunch(instance, stream))
ok(cuda.cudaGraphExecDestroy(instance))
assert ended == [11], "the launch holds it"
ok(cuda.cudaStreamSynchronize(stream))

stream, graph = captured()
ok(cuda.cudaGraphRetainUserObject(graph, created(33), 1, MOVE))
ok(cuda.cudaGraphDestroy(graph))
assert sorted(ended) == [11, 22, 33], ended

stream, graph = captured()
assert cuda.cudaGraphAddNode(ctypes.byref(made()), graph, None, None, 0, None) == 801
print("ok")
