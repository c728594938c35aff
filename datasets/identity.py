"""The names of stored rows' cases, worked out anew from their columns: what `KernelSpec.case_id` gives, a table at a time."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa
import pyarrow.compute as pc

from ..features.kernel import get_family


def case_ids_of(rows: pa.Table, family: str) -> list[str]:
    """`KernelSpec.case_id` of every row of one family's table.

    Its content is put together as JSON by whole columns, which is several times as fast as making a spec of each row, so
    that every row of a large store can be checked.
    """
    fam = get_family(family)
    dims = _joined([_pair(rows, name) for name in fam.dim_names], rows.num_rows)
    knobs = _joined([_pair(rows, name) for name in sorted(fam.config)], rows.num_rows)
    content = pc.binary_join_element_wise(
        f'["{fam.name}"', _word(rows, "dtype"), dims, _word(rows, "variant"), _word(rows, "impl"), _word(rows, "kv_dtype"),
        knobs, pc.fill_null(rows["threads"].combine_chunks().cast(pa.string()), "null"),
        pc.binary_join_element_wise(_word(rows, "cache_state"), "]", ""), ", ",
    )  # fmt: skip
    return [hashlib.blake2b(one, digest_size=8).hexdigest() for one in content.cast(pa.binary()).to_pylist()]


def _pair(rows: pa.Table, name: str) -> pa.Array:
    """`["m", 64], `, empty where there is no value."""
    text = rows[name].combine_chunks().cast(pa.string())
    return pc.fill_null(pc.binary_join_element_wise(f'["{name}", ', text, "], ", ""), "")


def _joined(parts: list[pa.Array], n: int) -> pa.Array:
    """`[["m", 64], ["n", 8]]` of the parts that are there."""
    if not parts:
        return pa.array(["[]"] * n, pa.string())
    inside = pc.utf8_rtrim(pc.binary_join_element_wise(*parts, ""), ", ")
    return pc.binary_join_element_wise("[", inside, "]", "")


def _word(rows: pa.Table, name: str) -> pa.Array:
    """A text column as JSON, null as `null`."""
    column = rows[name].combine_chunks()
    found = pc.unique(column)
    words = pa.array([json.dumps(word) for word in found.to_pylist()], pa.string())
    return pc.take(words, pc.index_in(column, value_set=found))
