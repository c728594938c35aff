"""IREE's own dialects and torch-mlir's like them: attention and its kin, and the wrappers IREE puts around programs."""

from __future__ import annotations

from ..semantics import costs
from ..semantics.costs import unknown
from ..semantics.dynamic_sizes import of_destinations, of_first
from ..semantics.op_rule import Cost, Dialect, Site, rules
from .tensor import of_sizes


def _attention(site: Site) -> Cost:
    """Query, key, value, scale, a mask where there is one, and the destination."""
    query, key, value = site.operands[:3]
    arrays = [kind for kind in site.operands[3:-1] if kind.is_array and kind.shape]
    return costs.attention(site, query, key, value, (site.results or site.operands[-1:])[0], False, arrays[:1])


def _sort(site: Site) -> Cost:
    axis = site.int_of("dimension")
    return costs.sort(site, site.operands[0], -1 if axis is None else axis)


def _scan(site: Site) -> Cost:
    return costs.elementwise(site, "cumulative", 1.0, 0.0)


def _scatter(site: Site) -> Cost:
    return costs.gathered("scatter", site.operands[1:2], site.operands[0])


def _gather(site: Site) -> Cost:
    return costs.gathered("gather", site.operands[1:2], (site.results or site.operands[-1:])[0])


def _copied(site: Site) -> Cost:
    return costs.movement(site, "copy")


def _update(site: Site) -> Cost:
    """flow.tensor.update: the last array is put into the first."""
    moved = site.arrays[-1]
    return costs.movement(site, "copy", moved.nbytes, moved.nbytes)


def _argument_reduction(site: Site) -> Cost:
    axis = site.int_of("dimension")
    return costs.reduction(site, "argmax", site.operands[0], (-1 if axis is None else axis,))


_UNCOSTED = (
    "online_attention",
    "exp_reduction",
    "custom_op",
    "fft",
    "winograd.filter_transform",
    "winograd.input_transform",
    "winograd.output_transform",
    "split_reduction",
    "map_load",
    "map_store",
    "map_gather",
    "map_scatter",
)


def _uncosted(site: Site) -> Cost:
    return unknown(f"{site.name} is not costed")


DIALECT = Dialect(
    "iree",
    {
        **rules("attention", _attention, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules("sort topk topk_v2", _sort, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules("scan", _scan, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules("scatter", _scatter, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules("gather", _gather, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules("arg_compare", _argument_reduction, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules("im2col pack unpack", _copied, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules(
            "quantize_affine dequantize_affine",
            lambda site: costs.elementwise(site, "convert", 2.0, 0.0),
            dialect="iree_linalg_ext",
        ),
        **rules("index", costs.control, dialect="iree_linalg_ext"),
        **rules(_UNCOSTED, _uncosted, dialect="iree_linalg_ext", shapes=of_destinations),
        **rules("sort topk", _sort, dialect="tm_tensor", shapes=of_destinations),
        **rules("scan", _scan, dialect="tm_tensor", shapes=of_destinations),
        **rules("scatter", _scatter, dialect="tm_tensor", shapes=of_destinations),
        **rules("attention", _attention, dialect="tm_tensor", shapes=of_destinations),
        **rules("set_encoding unset_encoding", _copied, dialect="iree_encoding", shapes=of_first),
        **rules(
            (
                "tensor.reshape tensor.bitcast tensor.transfer tensor.barrier tensor.tie_shape dispatch.tie_shape "
                "tensor.encode"
            ),
            costs.view,
            dialect="flow",
            shapes=of_first,
        ),
        **rules("tensor.empty tensor.alloca", costs.view, dialect="flow", shapes=of_sizes),
        **rules("tensor.constant tensor.dynamic_constant", costs.constant, dialect="flow"),
        **rules("tensor.splat", lambda site: costs.movement(site, "broadcast", 0.0), dialect="flow"),
        **rules("tensor.slice", lambda site: costs.movement(site, "slice"), dialect="flow"),
        **rules("tensor.clone", _copied, dialect="flow", shapes=of_first),
        **rules("tensor.update", _update, dialect="flow"),
        **rules(
            (
                "tensor.load tensor.store tensor.trace dispatch.workgroup.id dispatch.workgroup.count "
                "dispatch.workgroup.size"
            ),
            costs.control,
            dialect="flow",
        ),
        **rules("dispatch.tensor.load dispatch.tensor.store bitcast", costs.view, dialect="iree_tensor_ext"),
        **rules(
            "dispatch.workload.ordinal compute_barrier.start compute_barrier.end", costs.view, dialect="iree_tensor_ext"
        ),
        **rules("dispatch.tensor.load dispatch.tensor.store", costs.view, dialect="flow"),
        **rules(
            "tensor.import tensor.export tensor.barrier tensor.alias interface.binding.subspan",
            costs.view,
            dialect="hal",
            shapes=of_first,
        ),
        **rules(
            (
                "interface.constant.load interface.workgroup.id interface.workgroup.count interface.workgroup.size "
                "buffer_view.assert buffer_view.dim element_type encoding_type fence.create fence.join fence.await "
                "fence.signal device.resolve"
            ),
            costs.control,
            dialect="hal",
        ),
        **rules(
            (
                "optimization_barrier unfoldable_constant global.load assume.int numeric.optional_narrow "
                "hoistable_conversion"
            ),
            costs.view,
            dialect="util",
            shapes=of_first,
        ),
        **rules("null global.store cmp.eq cast sizeof align", costs.control, dialect="util"),
    },
    {
        "util.return": "end",
        "flow.return": "end",
        "flow.dispatch.workgroups": "body",
        "flow.dispatch.region": "body",
        "flow.dispatch": "call",
        "flow.call": "call",
        "hal.return": "end",
        "iree_linalg_ext.yield": "end",
        "tm_tensor.yield": "end",
    },
)
