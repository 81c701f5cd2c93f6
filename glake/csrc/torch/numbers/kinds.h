// Lists of ops that are handled in a special way. For an op that is in none of them, its schema
// says how it is handled.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace glake::numbers {

using Names = std::unordered_set<std::string>;  // without "aten::" and overload

// Ops that keep CUDA's own kernel, and whose copies the driver makes. They are metadata,
// allocation, and ops made of other ops.
inline const Names kNative = {
    "as_strided",
    "view",
    "_reshape_alias",
    "unfold",
    "set_",
    "resize_",
    "empty",
    "empty_strided",
    "record_stream",
    "_local_scalar_dense",
    "view_as_real",
    "view_as_complex",
    "is_set_to",
    "_efficientzerotensor",
    "_cudnn_init_dropout_state",
    "_cudnn_rnn_flatten_weight",
    "_pin_memory",
    "is_pinned",
    "_fused_sdp_choice",
    "_nested_tensor_from_mask",
};

// Ops that are computed first, and whose results are allocated then. The shape of a result depends
// on numbers, or the CUDA kernel reads numbers back.
inline const Names kFirst = {
    "nonzero",
    "masked_select",
    "_unique2",
    "_unique",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "repeat_interleave",
    "bincount",
    "equal",
    "isin",
    "linalg_matrix_exp",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "linalg_eig",
    "linalg_eigvals",
    "_linalg_eigvals",
    "segment_reduce",
};

// Ops that write in place and do not read what was there before.
inline const Names kOverwrites = {
    "copy_",          "fill_",          "zero_",          "_foreach_copy_",
    "_foreach_zero_", "_cummax_helper", "_cummin_helper",
};

// Ops in place, each with the argument that keeps its value if the op is not computed. No element
// of zeros is infinite, so a gradient scaler finds no infinity.
inline const std::unordered_map<std::string, std::string> kKeeps = {
    {"_amp_foreach_non_finite_check_and_unscale_", "found_inf"},
};

// Memory mode: ops that move bytes to or from places that the named arguments give. Known bytes
// stay known when they are moved.
inline const std::unordered_map<std::string, std::string> kMoves = {
    {"cat", ""},
    {"scatter", "index"},
    {"scatter_", "index"},
    {"gather", "index"},
    {"index_copy", "index"},
    {"index_copy_", "index"},
    {"index_select", "index"},
    {"index", "indices"},
    {"_index_put_impl_", "indices"},
    {"where", "condition"},
};

// Ops that choose by values that are not known. Up to kMostChoices choices are assumed to be
// experts, or groups of them: each is chosen in turn, so that all get the same share. More choices
// are assumed to be words of a vocabulary: the first is chosen.
inline const Names kChoosing = {"topk", "argmax", "argmin", "max", "min"};
constexpr int64_t kMostChoices = 512;  // a guess, between experts and vocabularies

// The ops of kFirst whose results have a shape that depends on numbers.
inline const Names kShapes = {
    "nonzero",  "masked_select",     "_unique2",
    "_unique",  "unique_dim",        "unique_consecutive",
    "bincount", "repeat_interleave", "unique_dim_consecutive",
};

// Ops that take masks as indices.
inline const Names kMasks = {"index", "index_put_", "_index_put_impl_"};

// Ops whose CPU kernels do not check their indices. No backward pass is followed either, because
// backward passes do not check indices, and no fact goes through one.
inline const Names kTrusting = {
    "_ctc_loss",    "segment_reduce", "_embedding_bag",  "_embedding_bag_forward_only",
    "max_unpool2d", "max_unpool3d",   "grid_sampler_2d", "grid_sampler_3d",
};

// Memory mode: checks that values that are not known pass, because zeros are finite.
inline const Names kChecks = {"isfinite", "_is_all_true"};

// Memory mode: ops whose CUDA kernels ask whether values are finite or fit. Zeros that are read
// back would say no.
inline const Names kAsking = {"linalg_eig", "linalg_eigvals", "segment_reduce"};

// Composite ops for which CUDA has no kernel, and which launch kernels or ask a library. They are
// computed as a whole.
inline const char* const kWhole[] = {
    "copy_", "convolution", "_convolution", "convolution_backward", "cudnn_is_acceptable",
};

// Ops that are computed in float, because the CPU's kernels keep other statistics than CUDA's for
// half and bfloat16.
inline const Names kWide = {
    "native_layer_norm",          "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward", "native_batch_norm",          "native_batch_norm_backward",
    "_batch_norm_with_update",    "batch_norm_backward",        "_fused_rms_norm",
    "cudnn_batch_norm",           "cudnn_batch_norm_backward",  "_fused_rms_norm_backward",
};

}  // namespace glake::numbers
