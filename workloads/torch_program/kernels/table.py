"""Which kernels PyTorch's operators run: a table by name; the rest is priced by what it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ....features.kernel import View, get_family
from ..operation import OPTIMIZER, OPTIMIZER_STATE, Operation, Recording
from . import amounting, indexed, products, traffic
from .collectives import collective, host_copy
from .kernel_use import FACTORISATION, Costing, Uses, by_bytes, program_kernel, scaled
from .loops import loop_of


def _all(names: str, costing: Costing) -> dict[str, Costing]:
    return {f"aten.{name}": costing for name in names.split()}


_PRODUCTS: Mapping[str, Costing] = {
    **_all("mm addmm _scaled_mm _scaled_mm_v2 _int_mm", products.matrix_product),
    **_all("mv addmv dot vdot", products.matrix_vector),
    **_all("bmm baddbmm addbmm", products.batched_product),
    **_all("_weight_int8pack_mm", partial(products.packed_product, bits=8)),
    **_all("_weight_int4pack_mm _weight_int4pack_mm_for_cpu", partial(products.packed_product, bits=4)),
    **_all("_grouped_mm _scaled_grouped_mm", products.grouped_product),
    **_all("conv_tbc", products.convolution_of_steps),
    **_all("convolution", products.convolution),
    **_all("convolution_backward", products.convolution_backward),
    **_all(
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable", products.attention,
    ),
    **_all(
        "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward", products.attention_backward,
    ),
    "kernelcast.flex_attention": products.flex_attention,
    "kernelcast.flex_attention_backward": partial(products.flex_attention, backward=True),
    **dict.fromkeys(("aten.mkldnn_rnn_layer", "kernelcast.recurrent_layer"), products.recurrent),
    **dict.fromkeys(
        ("aten.mkldnn_rnn_layer_backward", "kernelcast.recurrent_layer_backward"), products.recurrent_backward
    ),
    **amounting.OPERATORS,
}  # fmt: skip
"""What computes more than it moves."""

OPERATORS: Mapping[str, Costing] = {
    **_PRODUCTS,
    **_all("_softmax _log_softmax _safe_softmax", traffic.softmax),
    **_all("_softmax_backward_data _log_softmax_backward_data", traffic.softmax_backward),
    **_all("native_layer_norm", partial(traffic.row_norm, variant="layernorm")),
    **dict.fromkeys(("aten._fused_rms_norm", "kernelcast.rms_norm"), partial(traffic.row_norm, variant="rmsnorm")),
    **_all("native_layer_norm_backward", partial(traffic.row_norm_backward, variant="layernorm")),
    **dict.fromkeys(
        ("aten._fused_rms_norm_backward", "kernelcast.rms_norm_backward"), partial(traffic.row_norm_backward, variant="rmsnorm")
    ),
    **_all("native_group_norm", traffic.group_norm),
    **_all("native_group_norm_backward", partial(traffic.group_norm, passes=2.0)),
    **_all(
        "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update "
        "_batch_norm_no_update", partial(traffic.batch_norm, passes=1.0),
    ),
    **_all(
        "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward", partial(traffic.batch_norm, passes=1.5)
    ),
    **_all(
        "sum mean amax amin max min argmax argmin prod any all var std var_mean std_mean norm linalg_vector_norm "
        "logsumexp nansum count_nonzero aminmax dist", traffic.reduction,
    ),
    **_all(
        "clone copy _to_copy contiguous cat stack repeat constant_pad_nd flip roll tril triu split_copy "
        "split_with_sizes_copy permute_copy transpose_copy expand_copy slice_backward select_backward "
        "as_strided_copy", traffic.copy,
    ),
    **_all(
        "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full zero fill scalar_tensor "
        "_new_zeros_with_same_feature_meta arange linspace eye rand randn rand_like randn_like randint randint_like "
        "randperm uniform normal "
        "bernoulli random exponential geometric cauchy log_normal hann_window hamming_window blackman_window "
        "kaiser_window bartlett_window tril_indices triu_indices fft_fftfreq fft_rfftfreq",
        traffic.fill,
    ),
    **dict.fromkeys(("fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy", "fsdp.chunk_cat"), traffic.copy),
    "aten._amp_foreach_non_finite_check_and_unscale_": traffic.over_lists,
    # Element by element, though PyTorch does not tag them.
    **_all(
        "masked_fill rsub floor_divide glu glu_backward log_sigmoid_forward log_sigmoid_backward elu_backward "
        "leaky_relu_backward hardtanh_backward hardswish hardswish_backward hardsigmoid_backward "
        "softplus_backward softshrink_backward hardshrink_backward _prelu_kernel _prelu_kernel_backward "
        "rrelu_with_noise rrelu_with_noise_backward mish_backward soft_margin_loss "
        "soft_margin_loss_backward complex polar _amp_update_scale addr linalg_cross frexp "
        "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask",
        traffic.elementwise,
    ),
    **_all(
        "reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward replication_pad1d "
        "replication_pad1d_backward replication_pad2d replication_pad2d_backward diagonal_copy diag_embed "
        "diagonal_backward narrow_copy view_copy unbind_copy unfold_copy unfold_backward squeeze_copy "
        "unsqueeze_copy t_copy alias_copy block_diag _chunk_cat rot90 pixel_unshuffle channel_shuffle "
        "native_channel_shuffle reflection_pad3d reflection_pad3d_backward replication_pad3d "
        "replication_pad3d_backward",
        traffic.copy,
    ),
    **_all("embedding", indexed.embedding),
    **_all("index_select", indexed.select_rows),
    **_all("index gather take _unsafe_index", indexed.gather),
    **_all("embedding_dense_backward", indexed.embedding_backward),
    **_all(
        "scatter scatter_add scatter_reduce index_add index_put index_copy index_fill masked_scatter "
        "_unsafe_index_put _index_put_impl slice_scatter select_scatter diagonal_scatter put index_reduce", indexed.scatter,
    ),
    **_all("nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward", indexed.per_row),
    **_all(
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d "
        "avg_pool3d_backward max_pool3d_with_indices max_pool3d_with_indices_backward fractional_max_pool2d "
        "fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward", traffic.pooling,
    ),
    **_all(
        "native_dropout native_dropout_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
        "adaptive_max_pool2d upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d "
        "upsample_bilinear2d_backward upsample_bicubic2d upsample_bicubic2d_backward _upsample_bilinear2d_aa "
        "_upsample_bilinear2d_aa_backward upsample_nearest1d upsample_nearest1d_backward upsample_linear1d "
        "upsample_linear1d_backward upsample_trilinear3d upsample_trilinear3d_backward upsample_nearest3d "
        "upsample_nearest3d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward "
        "adaptive_max_pool2d_backward grid_sampler_3d grid_sampler_3d_backward grid_sampler_2d "
        "grid_sampler_2d_backward im2col col2im pixel_shuffle _embedding_bag _embedding_bag_forward_only "
        "_embedding_bag_backward _embedding_bag_dense_backward _thnn_fused_lstm_cell _thnn_fused_gru_cell mse_loss "
        "mse_loss_backward "
        "smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy "
        "binary_cross_entropy_backward binary_cross_entropy_with_logits _upsample_nearest_exact1d "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d _upsample_nearest_exact2d_backward "
        "_upsample_nearest_exact3d _upsample_nearest_exact3d_backward _upsample_bicubic2d_aa "
        "_upsample_bicubic2d_aa_backward affine_grid_generator adaptive_max_pool3d adaptive_max_pool3d_backward "
        "max_unpool2d max_unpool3d multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
        "multilabel_margin_loss_backward segment_reduce _segment_reduce_backward lu_unpack _linalg_check_errors "
        "_pack_padded_sequence _embedding_bag_per_sample_weights_backward", traffic.sweep,
    ),
    **_all("_weight_norm_interface _weight_norm_interface_backward", partial(traffic.sweep, passes=1.5)),
    **_all("_fft_c2c _fft_r2c _fft_c2r", traffic.fourier),
    **_all("cumsum cumprod logcumsumexp cummax cummin", partial(traffic.sweep, passes=1.5, widening=3.0)),
    # A router's softmax, choice of 8 of 128 experts, sort and search take some 50 µs on an H200, whatever the number of tokens.
    **_all("sort argsort median nanmedian mode", partial(indexed.ordering, kernels=16.0)),
    **_all("_unique _unique2 unique_dim unique_consecutive", partial(indexed.ordering, kernels=16.0)),
    **_all("nonzero nonzero_static masked_select masked_scatter_backward", indexed.selection),
    **_all("searchsorted bucketize", indexed.searching),
    **_all("_ctc_loss _ctc_loss_backward", indexed.alignments),
    **_all("topk kthvalue", partial(indexed.ordering, kernels=10.0)),
}  # fmt: skip

_NAMESPACES: Mapping[str, Costing] = {
    "c10d": collective, "_c10d_functional": collective, "c10d_functional": collective,
    "host": host_copy, "triton": program_kernel,
}  # fmt: skip
"""What goes over links between devices, for which the memory's traffic stands where they are not known, and to the host; and
kernels that the program brings with it."""

NOT_ANSWERED = frozenset(_NAMESPACES) - {"triton"}
"""What has a note of its own."""


ON_LISTS = ("aten._foreach_", "aten._fused_")
"""How names of operators on lists of tensors begin."""


def kernels_of(operation: Operation, kind: str) -> Uses:
    """The kernels that an operator runs on a device of a kind, `gpu` or `cpu`; none where it moves nothing."""
    uses = _kernels_of(operation, kind)
    loop = loop_of(operation) if kind == "cpu" else None
    if loop is not None:
        uses = scaled(uses, loop.times, f"{operation.name} as a loop over single numbers", loop.widening)
    return [use.upper() for use in uses] if operation.upper_bound else uses


def _kernels_of(operation: Operation, kind: str) -> Uses:
    costing = OPERATORS.get(operation.name) or OPERATORS.get(operation.base_name)
    if costing is not None:
        return costing(operation, kind)
    if operation.name.startswith(ON_LISTS) and "self" in operation.arguments:
        return traffic.over_lists(operation, kind)
    if operation.pointwise:
        return traffic.elementwise(operation, kind)
    if operation.name.startswith(("aten.linalg_", "aten._linalg_")):
        return by_bytes(operation, kind, widening=FACTORISATION)
    return _NAMESPACES.get(operation.name.split(".")[0], by_bytes)(operation, kind)


def arithmetic(operation: Operation) -> float:
    """Operations of the products that an operator is priced as; 0 where it is by its bytes."""
    costing = _PRODUCTS.get(operation.name)
    uses = [] if costing is None else costing(operation, "gpu")
    products_alone = [use for use in uses if use.spec.family in ("gemm", "attention")]
    # What amounts to a product takes longer than it, with as many operations.
    amounts = operation.name in amounting.OPERATORS
    return sum(
        use.count * (1.0 if amounts else use.scale) * float(get_family(use.spec.family).flops(View.of(use.spec)))
        for use in products_alone
    )


def is_known(operation: Operation) -> bool:
    """Whether it has an entry, and is not priced as an operator of which nothing is known."""
    named = operation.name in OPERATORS or operation.base_name in OPERATORS
    return named or operation.pointwise or operation.name.startswith(ON_LISTS)


def makes_state(operation: Operation, recording: Recording) -> bool:
    """Whether it makes the state of an optimiser, which only the first step does."""
    return (
        operation.phase == OPTIMIZER
        and bool(operation.outputs)
        and (OPERATORS.get(operation.name) is traffic.fill)
        and all(recording.roles.get(tensor.storage) == OPTIMIZER_STATE for tensor in operation.outputs)
    )
