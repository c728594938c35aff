"""Operators whose arithmetic their bytes do not show, as products: factorisations, solving, distances, quantised layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil, prod

from ....features.kernel import KernelSpec
from ..operation import REAL_DTYPES, Operation, TensorInfo, float_dtype
from .kernel_use import SCATTERED, UNKNOWN, Costing, KernelUse, Uses, last_size

_Count = Callable[[Operation, int, int, float], float]
"""Operations on one matrix, given its longer and its shorter side and the columns it is solved for."""


def _singular_values(operation: Operation, long: int, short: int, right: float) -> float:
    named = operation.arguments
    if not named.get("compute_uv", True):
        return min(4 * long - 4 * short / 3, 2 * long + 2 * short) * short**2
    if named.get("full_matrices", False):
        return 4 * long**2 * short + min(8 * long + 9 * short, 22 * short) * short**2
    return min(14 * long + 8 * short, 6 * long + 20 * short) * short**2


def _qr(operation: Operation, long: int, short: int, right: float) -> float:
    # Q takes as much again as R; it is empty where it is not wanted.
    return (2 if operation.outputs[0].numel else 1) * _reflections(operation, long, short, right)


def _reflections(operation: Operation, long: int, short: int, right: float) -> float:
    return 2 * short**2 * (long - short / 3)


def _reflected(operation: Operation, long: int, short: int, right: float) -> float:
    """A matrix of columns times as many reflections."""
    columns = right * short / long
    return columns * short * (4 * long - 2 * short)


def _least_squares(operation: Operation, long: int, short: int, right: float) -> float:
    """By reflections, or where these are given by singular values."""
    if operation.outputs[-1].numel:
        return 4 * long * short**2 + 8 * short**3 + 4 * long * short * right
    return _reflections(operation, long, short, right) + 4 * long * short * right


def _lu(operation: Operation, long: int, short: int, right: float) -> float:
    return short**2 * (long - short / 3)


def _eigenvalues(operation: Operation, long: int, short: int, right: float) -> float:
    return (9 if operation.arguments.get("compute_v", True) else 4 / 3) * short**3


def _cubes(of_size: float, of_columns: float = 0.0) -> _Count:
    """Operations of square matrices: so many of their size cubed, and for each column so many of their size squared."""
    return lambda operation, long, short, right: of_size * short**3 + of_columns * short**2 * right


_FACTORISATIONS: Mapping[str, tuple[_Count, int]] = {
    "cholesky": (_cubes(1 / 3), 0), "linalg_cholesky_ex": (_cubes(1 / 3), 0), "linalg_ldl_factor_ex": (_cubes(1 / 3), 0),
    "cholesky_inverse": (_cubes(2 / 3), 0), "cholesky_solve": (_cubes(0, 2), 1), "linalg_lu_solve": (_cubes(0, 2), 0),
    "linalg_ldl_solve": (_cubes(0, 2), 0), "linalg_solve_triangular": (_cubes(0, 1), 0), "triangular_solve": (_cubes(0, 1), 1),
    "linalg_lu_factor_ex": (_lu, 0), "linalg_lu": (_lu, 0), "_linalg_det": (_lu, 0), "_linalg_slogdet": (_lu, 0),
    "_linalg_solve_ex": (_cubes(2 / 3, 2), 0), "linalg_inv_ex": (_cubes(2), 0), "linalg_qr": (_qr, 0),
    "geqrf": (_reflections, 0), "linalg_householder_product": (_reflections, 0), "ormqr": (_reflected, 0),
    "linalg_lstsq": (_least_squares, 0),
    "_linalg_eigh": (_eigenvalues, 0), "linalg_eig": (_cubes(25), 0), "_linalg_eigvals": (_cubes(10), 0),
    "_linalg_svd": (_singular_values, 0), "linalg_pinv": (_singular_values, 0),
    # Five products, of Taylor polynomials up to degree 18 (aten/src/ATen/native/LinearAlgebra.cpp); squarings are in values.
    "linalg_matrix_exp": (_cubes(10), 0),
}  # fmt: skip
"""Operations of each, and which of its tensors is the matrix.

Golub and Van Loan, Matrix Computations, 3rd edition: sections 3.1 and 3.2 (triangular systems, LU), 4.2 (Cholesky), 5.2 (QR),
7.5 (eigenvalues), 8.3 (those of symmetric matrices), 5.4 and 8.6 (singular values), 5.1 (products with reflections), 5.3 and
5.5 (least squares).
"""


_OF_PRODUCTS: Mapping[str, tuple[float, float]] = {"cpu": (4.0, 5.0), "gpu": (17.0, 17.0)}
"""How many times as long factorisations take as products of as many operations, and how much further the ends of the interval
lie. CPU: 92 of 16 kinds, sizes of 64 to 1024 in fp32 and fp64, on one core of a Zen 3 took 1.1 to 19 times, 4.3 in the median.
None was measured on a GPU, where steps wait for each other longer: as long as products at best, 300 times at worst."""


def _amounting_to(
    operation: Operation, like: TensorInfo, flops: float, m: int, n: int, *, batch: int = 1, scale: float = 1.0,
    widening: float,
) -> Uses:  # fmt: skip
    """The product of `m` by `n` that takes so many operations on real numbers, four times as many on complex ones."""
    if not m * n * batch or flops <= 0:
        return []
    real = REAL_DTYPES.get(like.dtype)
    k = ceil(flops * (4 if real else 1) / (2 * m * n))
    spec = KernelSpec.of(
        "gemm", real or float_dtype(like), variant="batched" if batch > 1 else "", timing="device", batch=batch, m=m, n=n, k=k
    )  # fmt: skip
    name = f"{operation.name} as a product of as many operations"
    return [KernelUse(spec, scale=scale, widening=widening, stand_in=name)]


def _factorisation(operation: Operation, kind: str, *, count: _Count, matrix: int) -> Uses:
    of = operation.inputs[matrix]
    batch, short, long = prod(of.shape[:-2]), min(of.shape[-2:]), max(of.shape[-2:])
    right = operation.outputs[0].numel / max(1, batch * short)
    flops = count(operation, long, short, right)
    scale, widening = _OF_PRODUCTS[kind]
    return _amounting_to(operation, of, flops, long, short, batch=batch, scale=scale, widening=widening)


def _distances(operation: Operation, kind: str) -> Uses:
    """Distances of each row of one matrix from each of another: two operations at least for each pair of numbers."""
    a, b = operation.inputs[-3:-1] if operation.name.endswith("backward") else operation.inputs
    batch = prod(operation.outputs[0].shape[:-2])
    m, n, size = a.shape[-2], b.shape[-2], a.shape[-1]
    return _amounting_to(operation, a, 2.0 * m * n * size, m, n, batch=batch, widening=UNKNOWN)


def _own_distances(operation: Operation, kind: str) -> Uses:
    """Distances of the rows of one matrix from each other, each pair once; the backward has the gradients before it."""
    a = operation.inputs[1 if operation.name.endswith("backward") else 0]
    rows, size = a.shape
    return _amounting_to(operation, a, 1.0 * rows * rows * size, rows, rows, widening=UNKNOWN)


def _trilinear(operation: Operation, kind: str) -> Uses:
    """Sums of products of three tensors that are spread over common dimensions, as `bilinear` and its gradients run them."""
    named = operation.arguments
    spread = []
    for number, tensor in enumerate(operation.inputs, 1):
        sizes = list(tensor.shape)
        for dim in sorted(named[f"expand{number}"]):
            sizes.insert(dim, 1)
        spread.append(sizes)
    out, every = operation.outputs[0], prod(map(max, zip(*spread, strict=True)))
    n = out.shape[-1] if out.shape else 1
    return _amounting_to(operation, out, 2.0 * every, out.numel // max(1, n), n, widening=UNKNOWN)


_QUANTISED = 0.6
"""Times of a product of fp32 that one with weights quantised to int8 takes PyTorch on a CPU, with quantising its operand:
0.24 to 0.77 of eight shapes on one core of a Zen 3, whose instructions are those of fp32; 2.4 of one row of 256 numbers."""

_IN_FP16 = 1.0
"""The same with weights in fp16: 0.45 to 1.65 of those eight shapes, 0.92 in the median; 3.7 of the row of 256 numbers."""


def _quantised_product(operation: Operation, kind: str, *, scale: float) -> Uses:
    """`quantized.linear_dynamic`, whose weights are no tensor: they have as many columns as what it returns."""
    x, out = operation.inputs[0], operation.outputs[0]
    m, n = prod(x.shape[:-1]), last_size(out)
    flops = 2.0 * m * n * last_size(x)
    return _amounting_to(operation, x, flops, m, n, scale=scale, widening=SCATTERED)


OPERATORS: Mapping[str, Costing] = {
    **{
        f"aten.{name}": partial(_factorisation, count=count, matrix=matrix)
        for name, (count, matrix) in _FACTORISATIONS.items()
    },
    **dict.fromkeys(("aten._euclidean_dist", "aten._cdist_forward", "aten._cdist_backward"), _distances),
    **dict.fromkeys(("aten._pdist_forward", "aten._pdist_backward"), _own_distances),
    "aten._trilinear": _trilinear,
    **dict.fromkeys(
        ("quantized.linear_dynamic", "quantized.linear_relu_dynamic"), partial(_quantised_product, scale=_QUANTISED)
    ),
    **dict.fromkeys(
        ("quantized.linear_dynamic_fp16", "quantized.linear_relu_dynamic_fp16"),
        partial(_quantised_product, scale=_IN_FP16),
    ),
}
"""Costs of operators whose arithmetic their bytes do not show, each as the product that amounts to it."""
