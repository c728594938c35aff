"""IREE's own dialects and torch-mlir's like them: attention and its kin, and the wrappers IREE puts around programs."""

from __future__ import annotations

from ..semantics import costs
from ..semantics.costs import copied, moving, not_costed, per_element
from ..semantics.dynamic_sizes import of_destinations, of_first
from ..semantics.op_rule import Cost, Dialect, Site, rules
from .tensor import of_sizes


def _attention(site: Site) -> Cost:
    """Query, key, value, scale, a mask where there is one, and the destination."""
    query, key, value = site.operands[:3]
    arrays = [kind for kind in site.operands[3:-1] if kind.is_array and kind.shape]
    return costs.attention(site, query, key, value, (site.results or site.operands[-1:])[0], False, arrays[:1])


def _gather(site: Site) -> Cost:
    return costs.gathered("gather", site.operands[1:2], (site.results or site.operands[-1:])[0])


def _argument_reduction(site: Site) -> Cost:
    axis = site.int_of("dimension")
    return costs.reduction(site, "argmax", site.operands[0], (-1 if axis is None else axis,))


_UNCOSTED = (
    "online_attention exp_reduction custom_op fft winograd.filter_transform winograd.input_transform "
    "winograd.output_transform split_reduction map_load map_store map_gather map_scatter"
)
_FLOW_VIEWS = (
    "tensor.reshape tensor.bitcast tensor.transfer tensor.barrier tensor.tie_shape dispatch.tie_shape tensor.encode"
)
_FLOW_STEERED = (
    "tensor.load tensor.store tensor.trace dispatch.workgroup.id dispatch.workgroup.count dispatch.workgroup.size"
)
_TENSOR_EXT = (
    "dispatch.tensor.load dispatch.tensor.store bitcast dispatch.workload.ordinal compute_barrier.start "
    "compute_barrier.end"
)
_HAL_VIEWS = "tensor.import tensor.export tensor.barrier tensor.alias interface.binding.subspan"
_HAL_STEERED = (
    "interface.constant.load interface.workgroup.id interface.workgroup.count interface.workgroup.size "
    "buffer_view.assert buffer_view.dim element_type encoding_type fence.create fence.join fence.await fence.signal "
    "device.resolve"
)
_UTIL_VIEWS = (
    "optimization_barrier unfoldable_constant global.load assume.int numeric.optional_narrow hoistable_conversion"
)

DIALECT = Dialect(
    "iree",
    {
        **rules("iree_linalg_ext", "attention", _attention, of_destinations),
        **rules("iree_linalg_ext", "sort topk topk_v2", costs.sort_along, of_destinations),
        **rules("iree_linalg_ext", "scan", per_element("cumulative", 1.0), of_destinations),
        **rules("iree_linalg_ext", "scatter", costs.scatter(1, 0), of_destinations),
        **rules("iree_linalg_ext", "gather", _gather, of_destinations),
        **rules("iree_linalg_ext", "arg_compare", _argument_reduction, of_destinations),
        **rules("iree_linalg_ext", "im2col pack unpack", moving("copy"), of_destinations),
        **rules("iree_linalg_ext", "quantize_affine dequantize_affine", per_element("convert", 2.0)),
        **rules("iree_linalg_ext", "index", costs.control),
        **rules("iree_linalg_ext", _UNCOSTED, not_costed(" is not costed"), of_destinations),
        **rules("tm_tensor", "sort topk", costs.sort_along, of_destinations),
        **rules("tm_tensor", "scan", per_element("cumulative", 1.0), of_destinations),
        **rules("tm_tensor", "scatter", costs.scatter(1, 0), of_destinations),
        **rules("tm_tensor", "attention", _attention, of_destinations),
        **rules("iree_encoding", "set_encoding unset_encoding", moving("copy"), of_first),
        **rules("iree_tensor_ext", _TENSOR_EXT, costs.view),
        **rules("flow", _FLOW_VIEWS, costs.view, of_first),
        **rules("flow", "tensor.empty tensor.alloca", costs.view, of_sizes),
        **rules("flow", "tensor.constant tensor.dynamic_constant", costs.constant),
        **rules("flow", "tensor.splat", costs.filled),
        **rules("flow", "tensor.slice", moving("slice")),
        **rules("flow", "tensor.clone", moving("copy"), of_first),
        **rules("flow", "tensor.update", copied(-1)),
        **rules("flow", _FLOW_STEERED, costs.control),
        **rules("flow", "dispatch.tensor.load dispatch.tensor.store", costs.view),
        **rules("hal", _HAL_VIEWS, costs.view, of_first),
        **rules("hal", _HAL_STEERED, costs.control),
        **rules("util", _UTIL_VIEWS, costs.view, of_first),
        **rules("util", "null global.store cmp.eq cast sizeof align", costs.control),
    },
    {
        "call": "flow.dispatch flow.call",
        "body": "flow.dispatch.workgroups flow.dispatch.region",
        "end": "util.return flow.return hal.return iree_linalg_ext.yield tm_tensor.yield",
    },
)
