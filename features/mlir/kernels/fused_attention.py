"""Attention written out as a product, a softmax and a product, merged into the one kernel that GPU libraries run it as.

FlashAttention (Dao et al., NeurIPS 2022) and cuDNN's fused attention compute all of it without storing the scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from .dataflow import Flow
from .fusion import Fusion
from .idioms import Cluster
from .recognition import Recognised, attention


def merge_attention(
    clusters: Sequence[Cluster], fusion: Fusion, flow: Flow
) -> tuple[list[Cluster], dict[Cluster, Recognised]]:
    """Clusters with every product, softmax and product that only feed each other merged, and what those were recognised as."""
    readers: dict[Cluster, list[Cluster]] = {}
    for cluster in clusters:
        for owner in {fusion.values.owner(value) for value in cluster.reads}:
            if owner is not None and owner is not cluster:
                readers.setdefault(owner, []).append(cluster)
    returned = {fusion.values.owner(source) for value in flow.outputs for source in fusion.values.sources(value)}
    merged: dict[Cluster, Recognised] = {}
    missing: set[Cluster] = set()
    for softmax in clusters:
        after = readers.get(softmax, [])
        if softmax.kind != "softmax" or len(after) != 1 or softmax in returned:
            continue
        values = after[0]
        scores = next((c for c in _behind(softmax, fusion) if readers.get(c) == [softmax] and c not in returned), None)
        if scores is None or scores.kind != "contraction" or values.kind != "contraction" or {scores, values} & missing:
            continue
        known = _recognised(scores, softmax, values, flow)
        if known is None:
            continue
        # The kernel writes its result in any order of axes.
        turned = readers.get(values, [])
        turned = turned if len(turned) == 1 and values not in returned and _only_turns(turned[0], flow) else []
        for part in (scores, softmax, *turned):
            values.nodes += part.nodes
            values.lights |= part.lights
            values.reads |= part.reads
            part.parent = values
            missing.add(part)
        values.nodes.sort()
        values.kind = "attention"
        merged[values] = known
    return [cluster for cluster in clusters if cluster not in missing], merged


def _only_turns(cluster: Cluster, flow: Flow) -> bool:
    return all(flow.operators[index] == "transpose" for index in cluster.nodes)


def _behind(cluster: Cluster, fusion: Fusion) -> list[Cluster]:
    """The clusters whose results one reads."""
    owners = {fusion.values.owner(value) for value in cluster.reads}
    return [owner for owner in owners if owner is not None and owner is not cluster]


def _recognised(scores: Cluster, softmax: Cluster, values: Cluster, flow: Flow) -> Recognised | None:
    """The sizes of an attention, None where the products do not fit one."""
    first, second = flow.nodes[scores.root], flow.nodes[values.root]
    if softmax.idiom is not None:
        rows, kv_len = softmax.idiom.rows, softmax.idiom.cols
    else:
        detail = flow.nodes[softmax.root].detail
        rows, kv_len = (
            float(value) if isinstance(value := detail.get(name), int) else 0.0 for name in ("rows", "cols")
        )
    batch, m, n, head_dim = first.loops
    q_len = rows / batch
    if (
        {m, n} != {q_len, kv_len}
        or second.loops[3] != kv_len
        or second.loops[0] != batch
        or q_len not in second.loops[1:3]
    ):
        return None
    images, heads = _heads(flow, softmax, batch)
    sizes = (("batch", images), ("heads", heads), ("kv_heads", heads), ("q_len", q_len), ("kv_len", kv_len),
             ("head_dim", head_dim))  # fmt: skip
    masked = any(
        flow.operators[index] == "select" for part in (scores, softmax) for index in (*part.nodes, *part.lights)
    )
    return attention(first.dtype, sizes, masked, False)


def _heads(flow: Flow, softmax: Cluster, batch: float) -> tuple[float, float]:
    """How the products' batch divides into sequences and heads.

    By the first two of four axes larger than 1; all of it is heads where there are others.
    """
    node = flow.nodes[softmax.root]
    shape = [size for size in flow.types[node.results[0]].shape or () if size != 1] if node.results else []
    if len(shape) == 4 and shape[0] and shape[1] and shape[0] * shape[1] == batch:
        return float(shape[0]), float(shape[1])
    return 1.0, batch
