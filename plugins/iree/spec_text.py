"""What `iree-compile` is told about chosen configurations: programs of the transform dialect, as text.

A *tuning spec* (`--iree-codegen-tuning-spec-path`) finds operations by what they compute, their maps and their sizes, and
gives each the attribute `compilation_info`, which IREE takes in place of its own choice. Convolutions of one image have lost
their batch when specs are applied and get it back a few passes later, where a configuration of theirs would be lost; so the
spec runs that very pass (`iree-codegen-insert-batch-dim-for-batchless-conv`) first. *Hints* are a preprocessing spec
(`--iree-preprocessing-transform-spec-filename`): beside `--iree-opt-data-tiling`, products they mark are packed and no others.
Both were tried with IREE 3.13.

The external *hook* for `--iree-hal-preprocess-executables-with` is a program that IREE hands one executable after another as
MLIR on standard input, and goes on with what it writes. It has the tuning spec in it and runs it with IREE's own interpreter of
the transform dialect, so that a hook and a spec choose the same. It must never break a compilation: what it does not know
passes through as it came, at once (the types of an operation's operands are looked for first, which needs no parser), and the
work is done in a forked child, so that whatever goes wrong there leaves the input as it was and one sentence on standard error.
"""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from .dispatches import CONTRACTION, CONVOLUTION, ELEMENT, Dispatch

Config = Mapping[str, int]

DATA_TILING = "data_tiling"
"""The knob that stands for IREE's data tiling, alone."""

_LEVELS: Mapping[str, tuple[str, Mapping[str, Mapping[str, str | int]]]] = MappingProxyType({
    CONTRACTION: ("DoubleTilingExpert", {
        "distribution": {"b": 1, "m": "tile_m", "n": "tile_n"},
        "cache_reduction": {"k": "tile_k"},
        "vector_common_parallel": {"b": 1, "m": "inner_m", "n": "inner_n"},
        "vector_reduction": {"k": "inner_k"},
    }),
    CONVOLUTION: ("ConvTileAndDecomposeExpert", {
        "distribution": {"n": 1, "h": "tile_h", "w": "tile_w", "c": "tile_c"},
        "vector_common_parallel": {"n": 1, "h": 1, "w": "inner_w", "c": "inner_c"},
        "vector_reduction": {"y": 1, "x": 1, "k": "inner_k"},
    }),
})  # fmt: skip
"""IREE's pipeline for a kind, and which knob, or fixed number, is the tile of which loop at which level."""

_HEAD = """\
// Written by kernelcast for `iree-compile {flag}`.
module @kernelcast attributes {{ transform.with_named_sequence{default} }} {{
"""

_APPLY = """\
transform.named_sequence @configure(%op: !transform.any_op {transform.readonly},
                                    %config: !transform.any_param {transform.readonly}) {
  transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
  transform.yield
}
"""

_MARK = """\
transform.named_sequence @pack(%op: !transform.any_op {transform.readonly}) {
  %mark = transform.param.constant unit -> !transform.any_param
  transform.annotate %op "iree.opt.data_tiling" = %mark : !transform.any_op, !transform.any_param
  transform.yield
}
"""

# Hints are looked for function by function, and one without any has all its products packed: so every function has one.
_MATCH_FUNCTION = """\
transform.named_sequence @match_function(%op: !transform.any_op {transform.readonly}) -> !transform.any_op {
  transform.match.operation_name %op ["util.func"] : !transform.any_op
  transform.yield %op : !transform.any_op
}
"""

_RESTORE = """\
  %functions = transform.structured.match ops{["func.func"]} in %variant : (!transform.any_op) -> !transform.any_op
  %root = transform.apply_registered_pass "iree-codegen-insert-batch-dim-for-batchless-conv" to %functions
      : (!transform.any_op) -> !transform.any_op
"""


def is_tiled(config: Config) -> bool:
    """Whether a configuration names tile sizes: neither the compiler's own choice nor data tiling."""
    return bool(config) and DATA_TILING not in config


def lowering_config(dispatch: Dispatch, config: Config) -> str:
    """The attribute `lowering_config` of a configuration with tile sizes, over the loops of a dispatch."""
    _, levels = _LEVELS[dispatch.kind]
    sizes = {level: [_size(tiles.get(role, 0), config) for role in dispatch.roles] for level, tiles in levels.items()}
    written = ", ".join(f"{level} = {row}" for level, row in sizes.items() if any(row))
    return f"#iree_cpu.lowering_config<{written}>"


def _size(tile: str | int, config: Config) -> int:
    return config.get(tile, 0) if isinstance(tile, str) else tile


def _compilation_info(dispatch: Dispatch, config: Config) -> str:
    pipeline, _ = _LEVELS[dispatch.kind]
    # Peeling splits remainders off; sizes that tiles do not divide would otherwise run masked throughout.
    return (
        f"#iree_codegen.compilation_info<lowering_config = {lowering_config(dispatch, config)}, translation_info = "
        f"#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<{pipeline}>, {{enable_loop_peeling}}>>"
    )


def tuning_spec(chosen: Sequence[tuple[Dispatch, Config]]) -> str:
    """A tuning spec for dispatches with configurations; those without tile sizes are left to the compiler."""
    tiled = [(dispatch, config) for dispatch, config in chosen if is_tiled(config)]
    names = [f"match_{i}" for i in range(len(tiled))]
    restore = any(dispatch.kind == CONVOLUTION for dispatch, _ in tiled)
    # The standard form can be linked with other specs; it may have a `foreach_match` and nothing else.
    standard = bool(tiled) and not restore
    text = _HEAD.format(
        flag="--iree-codegen-tuning-spec-path",
        default=", iree_codegen.tuning_spec_with_default_entrypoint" if standard else "",
    )
    if tiled:
        text += _APPLY
    for name, (dispatch, config) in zip(names, tiled, strict=True):
        text += f"// {dispatch.title}\n" + _configuring(name, dispatch, config)
    root = "%root" if restore else "%variant"
    cases = ",\n      ".join(f"@{name} -> @configure" for name in names)
    search = f"""\
  %done = transform.foreach_match in {root}
      {cases}
      : (!transform.any_op) -> !transform.any_op
  transform.yield %done : !transform.any_op
"""
    return (
        text
        + f"""\
transform.named_sequence @__kernel_config(%variant: !transform.any_op {{transform.{"consumed" if standard else "readonly"}}})
    -> !transform.any_op attributes {{ iree_codegen.tuning_spec_entrypoint }} {{
{_RESTORE if restore else ""}{search if tiled else "  transform.yield %variant : !transform.any_op" + chr(10)}}}
}}
"""
    )


def _configuring(name: str, dispatch: Dispatch, config: Config) -> str:
    return f"""\
transform.named_sequence @{name}(%op: !transform.any_op {{transform.readonly}})
    -> (!transform.any_op, !transform.any_param) {{
  transform.iree.match.has_no_lowering_config %op : !transform.any_op
{_MATCHES[dispatch.kind](dispatch.sizes, dispatch.roles, dispatch.maps)}\
  %config = transform.param.constant {_compilation_info(dispatch, config)} -> !transform.any_param
  transform.yield %op, %config : !transform.any_op, !transform.any_param
}}
"""


def _contraction_match(sizes: Mapping[str, int], roles: Sequence[str], maps: Sequence[str]) -> str:
    result = {
        name: [sizes[size]] if role in roles else []
        for name, role, size in (("batch", "b", "batch"), ("m", "m", "m"), ("n", "n", "n"), ("k", "k", "k"))
    }
    return _match("contraction", result, (), maps)


def _convolution_match(sizes: Mapping[str, int], roles: Sequence[str], maps: Sequence[str]) -> str:
    del roles
    result = {
        "batch": [sizes["batch"]], "image": [sizes["out_h"], sizes["out_w"]], "channels": [sizes["out_c"]],
        "window": [sizes["kernel_h"], sizes["kernel_w"]], "inputs": [sizes["in_c"]],
    }  # fmt: skip
    return _match("convolution", result, ("depth", "strides", "dilations"), maps)


_MATCHES = MappingProxyType({CONTRACTION: _contraction_match, CONVOLUTION: _convolution_match})


def _match(name: str, dims: Mapping[str, list[int]], others: Sequence[str], maps: Sequence[str]) -> str:
    results = ", ".join(f"%{each}" for each in (*dims, *others))
    check = "  transform.iree.match.dims_equal %{}, {} : !transform.param<i64>\n".format
    checks = "".join(check(dim, size) for dim, size in dims.items())
    return f"""\
  {results} = transform.iree.match.{name} %op,
      lhs_type = {ELEMENT}, rhs_type = {ELEMENT}, output_type = {ELEMENT},
      indexing_maps = [{", ".join(maps)}] : !transform.any_op -> !transform.param<i64>
{checks}"""


def data_tiling_hints(packed: Sequence[Dispatch]) -> str:
    """A preprocessing spec that marks products for data tiling, so that IREE packs these and leaves the others."""
    text = _HEAD.format(flag="--iree-opt-data-tiling --iree-preprocessing-transform-spec-filename", default="") + _MARK
    names = []
    for i, dispatch in enumerate(packed):
        text += f"// {dispatch.title}\n"
        for j, (roles, maps) in enumerate(_forms(dispatch)):
            names.append(f"match_{i}_{j}")
            text += f"""\
transform.named_sequence @{names[-1]}(%op: !transform.any_op {{transform.readonly}}) -> !transform.any_op {{
{_contraction_match(dispatch.sizes, roles, maps)}\
  transform.yield %op : !transform.any_op
}}
"""
    cases = ",\n      ".join(f"@{name} -> @pack" for name in (*names, "match_function"))
    return (
        text
        + _MATCH_FUNCTION
        + f"""\
transform.named_sequence @__transform_main(%module: !transform.any_op {{transform.consumed}}) {{
  %done = transform.foreach_match in %module
      {cases}
      : (!transform.any_op) -> !transform.any_op
  transform.yield
}}
}}
"""
    )


def _forms(dispatch: Dispatch) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """How a product may be written before preprocessing: loops of one are folded, and transposed operands fused, later."""
    absent = [role for role in "bmn" if role not in dispatch.roles]
    written = itertools.product(("bmk", "bkm"), ("bkn", "bnk"))
    for count, (left, right) in itertools.product(range(len(absent) + 1), tuple(written)):
        for added in itertools.combinations(absent, count):
            roles = tuple(role for role in "bmnk" if role in dispatch.roles or role in added)
            loops = ", ".join(f"d{i}" for i in range(len(roles)))
            yield (
                roles,
                tuple(
                    f"affine_map<({loops}) -> ({', '.join(f'd{roles.index(role)}' for role in order if role in roles)})>"
                    for order in (left, right, "bmn")
                ),
            )


HOOK_NAME = "kernelcast-iree-hook"

_PROGRAM = '''\
#!/bin/sh
""":"
[ -x {python} ] || {{ echo "{name}: {python} is gone; executables are compiled as they were" >&2; exec cat; }}
exec {python} -I "$0" "$@"
":"""
"""IREE executables with configurations chosen by kernelcast: MLIR on stdin, MLIR on stdout; see `iree-compile --help` for
--iree-hal-preprocess-executables-with. What is not known passes through unchanged."""
import os
import signal
import sys

LIMIT_S = 60
OPERANDS = {operands}
SPEC = r"""
{spec}"""


def main():
    source = sys.stdin.buffer.read()
    text = source.decode("utf-8", "replace")
    if any(all(name in text for name in types) for types in OPERANDS):
        output = configured(source)
        if output is not None:
            source = output
        else:
            sys.stderr.write("{name}: an executable could not be configured and is compiled as it was\\n")
    sys.stdout.buffer.write(source)
    sys.stdout.buffer.flush()


def configured(source):
    """The executable with its configurations, None where a child process could not make it in time."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            signal.alarm(LIMIT_S)
            output = apply_spec(source)
            with os.fdopen(writer, "wb") as sent:
                sent.write(output)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as received:
        output = received.read()
    _, status = os.waitpid(child, 0)
    return output if status == 0 and output else None


def apply_spec(source):
    from iree.compiler import ir
    from iree.compiler.dialects.transform import interpreter

    context = ir.Context()
    payload = ir.Module.parse(source, context)
    spec = ir.Module.parse(SPEC, context)
    entry = [op for op in spec.body.operations if op.operation.attributes["sym_name"].value == "__kernel_config"][0]
    interpreter.apply_named_sequence(payload.operation, entry.operation, spec.operation)
    if not payload.operation.verify():
        raise ValueError("not valid")
    return str(payload).encode()


try:
    main()
except BrokenPipeError:
    os._exit(1)
'''


def hook_program(chosen: Sequence[tuple[Dispatch, Config]]) -> str:
    """The hook for dispatches with configurations, as a program for this Python, in which IREE's compiler is."""
    tiled = [(dispatch, config) for dispatch, config in chosen if is_tiled(config)]
    operands = [list(dict.fromkeys(dispatch.types)) for dispatch, _ in tiled]
    return _PROGRAM.format(
        python=shlex.quote(sys.executable), operands=operands, spec=tuning_spec(chosen), name=HOOK_NAME
    )
