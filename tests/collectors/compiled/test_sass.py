from dataclasses import fields
from pathlib import Path

import pytest
from kernelcast.collectors.compiled.sass import (
    MIX,
    DisassemblyError,
    parse_listing,
    read_code,
)
from kernelcast.datasets.records.compiled_code import CompiledCode

# Lines of a real listing (attention for sm_90a), one of each kind.
LISTING = r"""
Resource usage:
 Common:
  GLOBAL:11 CONSTANT[4]:8
 Function attention:
  REG:255 STACK:616 SHARED:1024 LOCAL:0 CONSTANT[0]:592 TEXTURE:0 SURFACE:0 SAMPLER:0

	code for sm_90a
		Function : attention
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                                  /* 0x00000a00ff017b82 */
                                                                                           /* 0x000e700000000800 */
        /*01a0*/                   MUFU.RCP R8, R8 ;                                       /* 0x0000000800087308 */
                                                                                           /* 0x002e640000001000 */
        /*1070*/                   STL [R1+0x164], R34 ;                                   /* 0x0003e20000100800 */
        /*1f20*/              @!P3 LDG.E.128 R64, desc[UR60][R24.64] ;                     /* 0x0000003c1840b981 */
        /*2440*/                   STS.128 [R250+UR7+0x30000], R52 ;                       /* 0x03000034fa007988 */
        /*2700*/              @!PT LDS RZ, [RZ] ;                                          /* 0x00000000fffff984 */
        /*2730*/                   LDGSTS.E.BYPASS.128 [R13], desc[UR60][R116.64], P0 ;    /* 0x00000000740d7fae */
        /*2970*/                   LDGDEPBAR ;                                             /* 0x00000000000079af */
        /*2e00*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;                           /* 0x0000000000007b1d */
        /*3680*/              @!P0 BRA 0x8f70 ;                                            /* 0x0000005800388947 */
        /*3f20*/                   LDL R0, [R1+0x104] ;                                    /* 0x0001040001007983 */
        /*4000*/                   WARPGROUP.ARRIVE ;                                      /* 0x00000000000079c5 */
        /*4100*/                   HGMMA.64x128x16.F32.BF16 R72, gdesc[UR52], RZ, !UPT, gsb0 ;  /* 0x01e00000344879f0 */
        /*4110*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;                   /* 0x0000000c08047223 */
        /*4120*/                   QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24 ;    /* 0x01e00000081879f3 */
        /*4130*/                   IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4 ;              /* 0x0000000c08047237 */
        /*4bf0*/                   FFMA R228, R72, 0.12751743197441101074, -R11.reuse ;    /* 0x3e0293ee48e47823 */
        /*16130*/                   LDSM.16.M88.4 R24, [R90+UR4] ;                         /* 0x000000045a18783b */
        /*16140*/             @UP0 UTMALDG.2D [UR8], [UR4] ;                               /* 0x00000008040075b4 */
        /*16c30*/              @!P6 STG.E.128 desc[UR60][R2.64], R24 ;                     /* 0x000000180200e986 */
        /*16f20*/               @P1 EXIT ;                                                 /* 0x000000000000194d */
        /*16f60*/                   NOP;                                                   /* 0x0000000000007918 */
        /*16ff0*/                   NOP;                                                   /* 0x0000000000007918 */
		..........
"""


def test_counts_every_group_of_a_recorded_listing():
    code = parse_listing(LISTING)
    assert (code.registers, code.stack_b) == (255, 616)
    assert code.mix == {
        "tensor_ops": 4, "ffma_ops": 1, "mufu_ops": 1, "global_loads": 1, "global_stores": 1, "shared_loads": 2,
        "shared_stores": 1, "local_ops": 2, "async_copies": 2, "barriers": 1,
    }  # fmt: skip
    # LDC, LDGDEPBAR, BRA, WARPGROUP and EXIT belong to no group; NOP is padding.
    assert code.total == sum(code.mix.values()) + 5


def test_the_groups_counted_are_the_tables_columns():
    assert set(MIX) <= {field.name for field in fields(CompiledCode)}


@pytest.mark.parametrize(("text", "found"), [("", 0), (LISTING + LISTING, 2)])
def test_refuses_a_listing_of_no_or_several_kernels(text, found):
    with pytest.raises(DisassemblyError, match=f"expected one kernel in the listing, found {found}"):
        parse_listing(text)


def test_says_what_it_cannot_read(tmp_path):
    path = Path(tmp_path / "no.cubin")
    path.write_bytes(b"no cubin")
    with pytest.raises(DisassemblyError, match=r"cannot read .*no\.cubin"):
        read_code(path)
