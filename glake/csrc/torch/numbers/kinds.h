// How each op is dealt with. What an op is not named for here follows from its schema.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>

namespace glake::numbers {

using Names = std::unordered_set<std::string>;  // without "aten::" and overload

// CUDA's own, whose copies are the driver's: metadata, allocation, and what is made of other ops.
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

// What they return has a shape that depends on numbers, or the CUDA kernel reads numbers back:
// computed first, then allocated.
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

// In place, and what was there before does not count.
inline const Names kOverwrites = {
    "copy_",          "fill_",          "zero_",          "_foreach_copy_",
    "_foreach_zero_", "_cummax_helper", "_cummin_helper",
};

// In place, what stays as it is where the op is not computed: zeros hold nothing infinite, so
// gradient scalers find nothing.
inline const std::unordered_map<std::string, std::string> kKeeps = {
    {"_amp_foreach_non_finite_check_and_unscale_", "found_inf"},
};

// Memory mode: they move bytes, to or from places that the named arguments say, so that what is
// known of a part stays known.
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

// They choose by values that are not known. Up to kMostChoices choices are taken for experts, or
// groups of them: each is chosen in turn, so that all get the same share. More choices are taken
// for words of a vocabulary: the first is chosen.
inline const Names kChoosing = {"topk", "argmax", "argmin", "max", "min"};
constexpr int64_t kMostChoices = 512;

// Of kFirst those whose results have a shape that depends on numbers.
inline const Names kShapes = {
    "nonzero",  "masked_select",     "_unique2",
    "_unique",  "unique_dim",        "unique_consecutive",
    "bincount", "repeat_interleave", "unique_dim_consecutive",
};

// They take masks as indices.
inline const Names kMasks = {"index", "index_put_", "_index_put_impl_"};

// Their CPU kernels trust the indices they are given; nor is any backward pass followed, for that
// reason and as no fact goes through one.
inline const Names kTrusting = {
    "_ctc_loss",    "segment_reduce", "_embedding_bag",  "_embedding_bag_forward_only",
    "max_unpool2d", "max_unpool3d",   "grid_sampler_2d", "grid_sampler_3d",
};

// Memory mode: values that are not known pass these checks, as zeros are finite.
inline const Names kChecks = {"isfinite", "_is_all_true"};

// Memory mode: their CUDA kernels ask whether values are finite or fit, which zeros read back deny.
inline const Names kAsking = {"linalg_eig", "linalg_eigvals", "segment_reduce"};

// Of composite ops that CUDA has no kernel of its own for, those that launch kernels or ask a
// library that we compute as a whole.
inline const char* const kWhole[] = {
    "copy_", "convolution", "_convolution", "convolution_backward", "cudnn_is_acceptable",
};

// The CPU's kernels keep other statistics for half and bfloat16 than CUDA's: computed in float.
inline const Names kWide = {
    "native_layer_norm",          "native_layer_norm_backward", "native_group_norm",
    "native_group_norm_backward", "native_batch_norm",          "native_batch_norm_backward",
    "_batch_norm_with_update",    "batch_norm_backward",        "_fused_rms_norm",
    "cudnn_batch_norm",           "cudnn_batch_norm_backward",  "_fused_rms_norm_backward",
};

}  // namespace glake::numbers
