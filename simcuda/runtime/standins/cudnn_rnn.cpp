// Tensors as cuDNN describes them, and recurrent networks. The layout of their weights is cuDNN's
// own, and PyTorch asks for it ("cudnnGetRNNWeightParams").
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cudnn.h"

namespace {

using namespace standins;  // NOLINT

struct Tensor {
  int type = 0;
  std::vector<int> sizes, strides;
};

struct Sequence {  // cudnnRNNDataDescriptor_t
  int type = 0, steps = 0, batch = 0, width = 0;
};

struct Network {
  int mode = 0, bias = 0, type = 0, input = 0, hidden = 0, projected = 0, layers = 0;
  int directions = 1;

  // The number of gates, by cudnnRNNMode_t: ReLU and tanh networks, LSTM, GRU.
  int gates() const { return mode == 2 ? 4 : mode == 3 ? 3 : 1; }
  bool has_projection() const { return mode == 2 && projected != hidden; }
  int outputs() const { return has_projection() ? projected : hidden; }
  // By cudnnRNNBiasMode_t: none, for the input, both, for the recurrence.
  bool has_bias(bool recurrent) const { return bias == 2 || bias == (recurrent ? 3 : 1); }
  int inputs_of(int layer) const { return layer < directions ? input : directions * outputs(); }
};

// cudnnDataType_t: float, double, half, ..., bfloat16 (9).
size_t bytes_of(int type) { return type == 1 ? 8 : type == 2 || type == 9 ? 2 : 4; }

// A matrix or bias of the network: the elements before it, and its shape (rows 0: there is none).
struct Part {
  size_t offset = 0;
  int rows = 0, columns = 0;
};

struct Layout {
  Part matrix, bias;
  size_t elements = 0;  // in all layers
};

// The layout layer by layer: the gates' matrices for the input, those for the recurrence, the
// projection. Behind the matrices of all layers come their biases in the same order.
Layout layout(const Network& net, int wanted_layer, int wanted_gate) {
  Layout found;
  const int gates = net.gates(), pseudo = net.layers * net.directions;
  for (const bool biases : {false, true}) {
    for (int layer = 0; layer < pseudo; ++layer) {
      for (int gate = 0; gate < 2 * gates + (net.has_projection() ? 1 : 0); ++gate) {
        Part part;
        part.offset = found.elements;
        part.rows = gate == 2 * gates ? net.projected : net.hidden;
        part.columns = gate == 2 * gates ? net.hidden
                       : gate < gates    ? net.inputs_of(layer)
                                         : net.outputs();
        if (biases) {
          part.columns = 1;
          if (gate == 2 * gates || !net.has_bias(gate >= gates)) part.rows = 0;
        }
        found.elements += static_cast<size_t>(part.rows) * static_cast<size_t>(part.columns);
        if (layer != wanted_layer || gate != wanted_gate) continue;
        (biases ? found.bias : found.matrix) = part;
      }
    }
  }
  return found;
}

void describe(const Part& part, int type, char* weights, Tensor* tensor, void** address) {
  if (part.rows == 0) {
    if (address != nullptr) *address = nullptr;
    return;
  }
  if (tensor != nullptr) {
    tensor->type = type;
    tensor->sizes = {1, part.rows, part.columns};
    tensor->strides = {part.rows * part.columns, part.columns, 1};
  }
  if (address != nullptr) *address = weights + part.offset * bytes_of(type);
}

template <class T>
int create(T** it) {
  if (it == nullptr) return kBadParameter;
  *it = new T;
  return kSuccess;
}

template <class T>
int destroy(T* it) {
  delete it;
  return kSuccess;
}

}  // namespace

STANDIN_EXPORT int cudnnCreateTensorDescriptor(Tensor** it) { return create(it); }
STANDIN_EXPORT int cudnnDestroyTensorDescriptor(Tensor* it) { return destroy(it); }
STANDIN_EXPORT int cudnnCreateFilterDescriptor(Tensor** it) { return create(it); }
STANDIN_EXPORT int cudnnDestroyFilterDescriptor(Tensor* it) { return destroy(it); }
STANDIN_EXPORT int cudnnCreateRNNDescriptor(Network** it) { return create(it); }
STANDIN_EXPORT int cudnnDestroyRNNDescriptor(Network* it) { return destroy(it); }
STANDIN_EXPORT int cudnnCreateRNNDataDescriptor(Sequence** it) { return create(it); }
STANDIN_EXPORT int cudnnDestroyRNNDataDescriptor(Sequence* it) { return destroy(it); }

STANDIN_EXPORT int cudnnSetTensorNdDescriptor(Tensor* it, int type, int count, const int* sizes,
                                              const int* strides) {
  if (it == nullptr || count < 1 || sizes == nullptr || strides == nullptr) return kBadParameter;
  it->type = type;
  it->sizes.assign(sizes, sizes + count);
  it->strides.assign(strides, strides + count);
  return kSuccess;
}

STANDIN_EXPORT int cudnnSetFilterNdDescriptor(Tensor* it, int type, int, int count,
                                              const int* sizes) {
  if (it == nullptr || count < 1 || sizes == nullptr) return kBadParameter;
  it->type = type;
  it->sizes.assign(sizes, sizes + count);
  return kSuccess;
}

STANDIN_EXPORT int cudnnGetTensorNdDescriptor(const Tensor* it, int wanted, int* type, int* count,
                                              int* sizes, int* strides) {
  if (it == nullptr) return kBadParameter;
  if (type != nullptr) *type = it->type;
  if (count != nullptr) *count = static_cast<int>(it->sizes.size());
  const size_t given = std::min(static_cast<size_t>(wanted), it->sizes.size());
  if (sizes != nullptr) std::copy_n(it->sizes.begin(), given, sizes);
  if (strides != nullptr) std::copy_n(it->strides.begin(), given, strides);
  return kSuccess;
}

STANDIN_EXPORT int cudnnGetFilterNdDescriptor(const Tensor* it, int wanted, int* type, int* format,
                                              int* count, int* sizes) {
  if (format != nullptr) *format = 0;  // CUDNN_TENSOR_NCHW
  return cudnnGetTensorNdDescriptor(it, wanted, type, count, sizes, nullptr);
}

STANDIN_EXPORT int cudnnSetRNNDescriptor_v8(Network* it, int, int mode, int bias, int direction,
                                            int, int type, int, int, int32_t input, int32_t hidden,
                                            int32_t projected, int32_t layers, void*, unsigned) {
  if (it == nullptr || hidden < 1 || layers < 1) return kBadParameter;
  *it = Network{mode, bias, type, input, hidden, projected, layers, direction == 1 ? 2 : 1};
  return kSuccess;
}

STANDIN_EXPORT int cudnnSetRNNDataDescriptor(Sequence* it, int type, int, int steps, int batch,
                                             int width, const int*, void*) {
  if (it == nullptr) return kBadParameter;
  *it = Sequence{type, steps, batch, width};
  return kSuccess;
}

STANDIN_EXPORT int cudnnGetRNNWeightSpaceSize(Handle*, const Network* net, size_t* bytes) {
  if (net == nullptr || bytes == nullptr) return kBadParameter;
  *bytes = layout(*net, -1, -1).elements * bytes_of(net->type);
  return kSuccess;
}

STANDIN_EXPORT int cudnnGetRNNWeightParams(Handle*, const Network* net, int32_t layer, size_t,
                                           char* weights, int32_t gate, Tensor* matrix,
                                           void** matrix_address, Tensor* bias,
                                           void** bias_address) {
  if (net == nullptr || layer < 0 || layer >= net->layers * net->directions) return kBadParameter;
  const Layout found = layout(*net, layer, gate);
  describe(found.matrix, net->type, weights, matrix, matrix_address);
  describe(found.bias, net->type, weights, bias, bias_address);
  return kSuccess;
}

// Training keeps every gate and state of every step for the backward pass. The work space holds one
// layer's gates. Assumed, because cuDNN only documents the call.
STANDIN_EXPORT int cudnnGetRNNTempSpaceSizes(Handle*, const Network* net, int training,
                                             const Sequence* input, size_t* work, size_t* reserve) {
  if (net == nullptr || input == nullptr) return kBadParameter;
  const size_t layer = static_cast<size_t>(input->steps) * static_cast<size_t>(input->batch) *
                       static_cast<size_t>(net->hidden) * bytes_of(net->type);
  const auto gates = static_cast<size_t>(net->gates());
  const auto layers = static_cast<size_t>(net->layers * net->directions);
  if (work != nullptr) *work = gates * layer;
  if (reserve != nullptr) *reserve = training == 0 ? 0 : (gates + 2) * layers * layer;
  return kSuccess;
}
