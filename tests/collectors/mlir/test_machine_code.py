"""Machine code, counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.collectors.mlir import machine_code as code_counts
from kernelcast.collectors.mlir.machine_code import CodeCounts, count_files, count_text, kernel_names

LISTING = """
a.so:     file format elf64-x86-64

Sections:
Idx Name          Size      VMA               LMA               File off  Algn
  4 .rodata       000001aa  0000000000000340  0000000000000340  00000340  2**4
  5 .text         00000030  00000000000014f0  00000000000014f0  000004f0  2**4
  6 .ltext        00000010  00000000000014f0  00000000000014f0  000004f0  2**4

Disassembly of section .text:

00000000000014f0 <main_dispatch_0>:
    14f0:\tpush   %rbp
    14f1:\tmov    %rsp,%rbp
    14f4:\tvmovaps %zmm2,0x1c0(%rsp)
    14f8:\tvaddps -0x40(%rbp),%ymm0,%ymm1
    14fc:\tmov    0x10(%rsp,%rax,8),%rcx
    1500:\tlea    0x8(%rsp),%rdi
    1504:\tlock xadd %eax,(%rdi)
    1508:\tvmovss (%rsp),%xmm3
    150c:\tnopw   0x0(%rax,%rax,1)
    1510:\tcs nopw 0x0(%rax,%rax,1)
    1514:\txchg   %ax,%ax
    1518:\tret
"""


def test_instructions_vectors_and_stack_slots_are_counted() -> None:
    # Slots: the zmm store, the folded load and the scalar load; not the array with an index, the address, or the push.
    assert count_text(LISTING) == CodeCounts(code_b=0x40, instructions=9, vector_instructions=3, spills=3)


def test_rbp_counts_only_where_it_is_the_frame_pointer() -> None:
    assert count_text(LISTING.replace("mov    %rsp,%rbp", "mov    %rsi,%rbp")).spills == 2


def test_kernels_are_counted_by_what_a_library_exports(tmp_path: Path) -> None:
    item = tmp_path / "one.so"
    item.write_bytes(
        b"\0main_dispatch_0\0main_dispatch_0_softmax_8xf32_dispatch_tensor_store\0main_dispatch_11_matmul\0"
    )
    assert kernel_names([item]) == {"main_dispatch_0", "main_dispatch_11"}


def test_no_files_and_no_disassembler_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert count_files([]) is None
    monkeypatch.setattr(code_counts, "objdump", lambda: None)
    assert count_files([tmp_path / "a.so"]) is None
