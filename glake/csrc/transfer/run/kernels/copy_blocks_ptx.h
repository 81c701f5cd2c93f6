// PTX of copy_blocks.cu, by tools/kernels.py: not edited by hand.
#pragma once

// clang-format off
namespace glake::transfer {

constexpr const char kCopyBlocksPtx[] = R"ptx(.version 7.0
.target sm_70
.address_size 64

.visible .entry glake_copy_blocks(
	.param .u64 glake_copy_blocks_param_0,
	.param .u32 glake_copy_blocks_param_1
)
.maxntid 256, 1, 1
{
	.reg .pred 	%p<30>;
	.reg .b16 	%rs<5>;
	.reg .b32 	%r<101>;
	.reg .b64 	%rd<167>;

	ld.param.u64 	%rd64, [glake_copy_blocks_param_0];
	ld.param.u32 	%r5, [glake_copy_blocks_param_1];
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r6, %ntid.x;
	shr.u32 	%r7, %r6, 5;
	mov.u32 	%r8, %ctaid.x;
	shr.u32 	%r9, %r1, 5;
	mad.lo.s32 	%r2, %r7, %r8, %r9;
	setp.ge.u32 	%p1, %r2, %r5;
	@%p1 bra 	$L__BB0_33;

	and.b32  	%r10, %r1, 31;
	cvt.u64.u32 	%rd145, %r2;
	cvt.u64.u32 	%rd2, %r10;
	or.b64  	%rd3, %rd2, 96;
	cvta.to.global.u64 	%rd70, %rd64;

$L__BB0_2:
	.pragma "nounroll";
	mov.u32 	%r13, %nctaid.x;
	mul.lo.s32 	%r14, %r7, %r13;
	mul.wide.u32 	%rd68, %r14, %r10;
	add.s64 	%rd5, %rd145, %rd68;
	cvt.u64.u32 	%rd69, %r5;
	setp.ge.u64 	%p2, %rd5, %rd69;
	mov.u64 	%rd146, 0;
	mov.u64 	%rd147, %rd146;
	mov.u64 	%rd148, %rd146;
	@%p2 bra 	$L__BB0_4;

	mul.lo.s64 	%rd71, %rd5, 24;
	add.s64 	%rd72, %rd70, %rd71;
	ld.global.u64 	%rd148, [%rd72];
	ld.global.u64 	%rd147, [%rd72+8];
	ld.global.u64 	%rd146, [%rd72+16];

$L__BB0_4:
	mov.u32 	%r100, 0;

$L__BB0_5:
	.pragma "nounroll";
	mul.wide.u32 	%rd73, %r100, %r14;
	add.s64 	%rd74, %rd73, %rd145;
	setp.ge.u64 	%p3, %rd74, %rd69;
	@%p3 bra 	$L__BB0_32;

	mov.b64 {%r22,%r23}, %rd148;

	mov.u32 	%r34, 31;
	mov.u32 	%r35, -1;
	shfl.sync.idx.b32 	%r25|%p4, %r23, %r100, %r34, %r35;
	shfl.sync.idx.b32 	%r24|%p5, %r22, %r100, %r34, %r35;

	mov.b64 %rd77, {%r24,%r25};

	mov.b64 {%r26,%r27}, %rd147;

	shfl.sync.idx.b32 	%r29|%p6, %r27, %r100, %r34, %r35;
	shfl.sync.idx.b32 	%r28|%p7, %r26, %r100, %r34, %r35;

	mov.b64 %rd79, {%r28,%r29};

	mov.b64 {%r30,%r31}, %rd146;

	shfl.sync.idx.b32 	%r33|%p8, %r31, %r100, %r34, %r35;
	shfl.sync.idx.b32 	%r32|%p9, %r30, %r100, %r34, %r35;

	mov.b64 %rd81, {%r32,%r33};

	xor.b64  	%rd15, %rd79, %rd77;
	and.b64  	%rd82, %rd15, 15;
	setp.eq.s64 	%p10, %rd82, 0;
	@%p10 bra 	$L__BB0_22;

	and.b64  	%rd83, %rd15, 3;
	setp.eq.s64 	%p11, %rd83, 0;
	@%p11 bra 	$L__BB0_13;

	add.s64 	%rd151, %rd77, %rd2;
	add.s64 	%rd153, %rd79, %rd2;
	add.s64 	%rd18, %rd79, %rd81;
	setp.ge.s64 	%p12, %rd3, %rd81;
	@%p12 bra 	$L__BB0_11;

	mov.u64 	%rd149, %rd153;

$L__BB0_10:
	.pragma "nounroll";

	ld.global.cs.s8 %r36, [%rd149];

	add.s64 	%rd85, %rd149, 32;

	ld.global.cs.s8 %r37, [%rd85];

	add.s64 	%rd86, %rd149, 64;

	ld.global.cs.s8 %r38, [%rd86];

	add.s64 	%rd87, %rd149, 96;

	ld.global.cs.s8 %r39, [%rd87];

	cvt.s32.s8 	%r40, %r36;

	st.global.cs.s8 [%rd151], %r40;

	cvt.s32.s8 	%r41, %r37;
	add.s64 	%rd89, %rd151, 32;

	st.global.cs.s8 [%rd89], %r41;

	cvt.s32.s8 	%r42, %r38;
	add.s64 	%rd90, %rd151, 64;

	st.global.cs.s8 [%rd90], %r42;

	cvt.s32.s8 	%r43, %r39;
	add.s64 	%rd91, %rd151, 96;

	st.global.cs.s8 [%rd91], %r43;

	add.s64 	%rd153, %rd149, 128;
	add.s64 	%rd151, %rd151, 128;
	add.s64 	%rd92, %rd149, 224;
	setp.lt.u64 	%p13, %rd92, %rd18;
	mov.u64 	%rd149, %rd153;
	@%p13 bra 	$L__BB0_10;

$L__BB0_11:
	setp.ge.u64 	%p14, %rd153, %rd18;
	@%p14 bra 	$L__BB0_31;

$L__BB0_12:
	.pragma "nounroll";

	ld.global.cs.s8 %r44, [%rd153];

	cvt.s32.s8 	%r45, %r44;

	st.global.cs.s8 [%rd151], %r45;

	add.s64 	%rd151, %rd151, 32;
	add.s64 	%rd153, %rd153, 32;
	setp.lt.u64 	%p15, %rd153, %rd18;
	@%p15 bra 	$L__BB0_12;
	bra.uni 	$L__BB0_31;

$L__BB0_22:
	neg.s64 	%rd119, %rd77;
	and.b64  	%rd120, %rd119, 15;
	min.u64 	%rd47, %rd120, %rd81;
	setp.le.u64 	%p22, %rd47, %rd2;
	@%p22 bra 	$L__BB0_24;

	add.s64 	%rd121, %rd79, %rd2;
	ld.u8 	%rs3, [%rd121];
	add.s64 	%rd122, %rd77, %rd2;
	st.u8 	[%rd122], %rs3;

$L__BB0_24:
	sub.s64 	%rd48, %rd81, %rd47;
	add.s64 	%rd123, %rd47, %rd2;
	and.b64  	%rd124, %rd48, -16;
	add.s64 	%rd49, %rd123, %rd124;
	setp.ge.u64 	%p23, %rd49, %rd81;
	@%p23 bra 	$L__BB0_26;

	add.s64 	%rd125, %rd79, %rd49;
	ld.u8 	%rs4, [%rd125];
	add.s64 	%rd126, %rd77, %rd49;
	st.u8 	[%rd126], %rs4;

$L__BB0_26:
	shr.u64 	%rd127, %rd48, 4;
	add.s64 	%rd128, %rd77, %rd47;
	add.s64 	%rd129, %rd79, %rd47;
	shl.b64 	%rd130, %rd2, 4;
	add.s64 	%rd163, %rd128, %rd130;
	add.s64 	%rd165, %rd129, %rd130;
	shl.b64 	%rd131, %rd127, 4;
	add.s64 	%rd52, %rd129, %rd131;
	setp.ge.u64 	%p24, %rd3, %rd127;
	@%p24 bra 	$L__BB0_29;

	mov.u64 	%rd161, %rd165;

$L__BB0_28:
	.pragma "nounroll";

	ld.global.cs.v4.u32 {%r56,%r57,%r58,%r59}, [%rd161];

	add.s64 	%rd133, %rd161, 512;

	ld.global.cs.v4.u32 {%r60,%r61,%r62,%r63}, [%rd133];

	add.s64 	%rd134, %rd161, 1024;

	ld.global.cs.v4.u32 {%r64,%r65,%r66,%r67}, [%rd134];

	add.s64 	%rd135, %rd161, 1536;

	ld.global.cs.v4.u32 {%r68,%r69,%r70,%r71}, [%rd135];

	st.global.cs.v4.u32 [%rd163], {%r56,%r57,%r58,%r59};

	add.s64 	%rd137, %rd163, 512;

	st.global.cs.v4.u32 [%rd137], {%r60,%r61,%r62,%r63};

	add.s64 	%rd138, %rd163, 1024;

	st.global.cs.v4.u32 [%rd138], {%r64,%r65,%r66,%r67};

	add.s64 	%rd139, %rd163, 1536;

	st.global.cs.v4.u32 [%rd139], {%r68,%r69,%r70,%r71};

	add.s64 	%rd165, %rd161, 2048;
	add.s64 	%rd163, %rd163, 2048;
	add.s64 	%rd140, %rd161, 3584;
	setp.lt.u64 	%p25, %rd140, %rd52;
	mov.u64 	%rd161, %rd165;
	@%p25 bra 	$L__BB0_28;

$L__BB0_29:
	setp.ge.u64 	%p26, %rd165, %rd52;
	@%p26 bra 	$L__BB0_31;

$L__BB0_30:
	.pragma "nounroll";

	ld.global.cs.v4.u32 {%r88,%r89,%r90,%r91}, [%rd165];

	st.global.cs.v4.u32 [%rd163], {%r88,%r89,%r90,%r91};

	add.s64 	%rd163, %rd163, 512;
	add.s64 	%rd165, %rd165, 512;
	setp.lt.u64 	%p27, %rd165, %rd52;
	@%p27 bra 	$L__BB0_30;
	bra.uni 	$L__BB0_31;

$L__BB0_13:
	neg.s64 	%rd95, %rd77;
	and.b64  	%rd96, %rd95, 3;
	min.u64 	%rd31, %rd96, %rd81;
	setp.le.u64 	%p16, %rd31, %rd2;
	@%p16 bra 	$L__BB0_15;

	add.s64 	%rd97, %rd79, %rd2;
	ld.u8 	%rs1, [%rd97];
	add.s64 	%rd98, %rd77, %rd2;
	st.u8 	[%rd98], %rs1;

$L__BB0_15:
	sub.s64 	%rd32, %rd81, %rd31;
	add.s64 	%rd99, %rd31, %rd2;
	and.b64  	%rd100, %rd32, -4;
	add.s64 	%rd33, %rd99, %rd100;
	setp.ge.u64 	%p17, %rd33, %rd81;
	@%p17 bra 	$L__BB0_17;

	add.s64 	%rd101, %rd79, %rd33;
	ld.u8 	%rs2, [%rd101];
	add.s64 	%rd102, %rd77, %rd33;
	st.u8 	[%rd102], %rs2;

$L__BB0_17:
	shr.u64 	%rd103, %rd32, 2;
	add.s64 	%rd104, %rd77, %rd31;
	add.s64 	%rd105, %rd79, %rd31;
	shl.b64 	%rd106, %rd2, 2;
	add.s64 	%rd157, %rd104, %rd106;
	add.s64 	%rd159, %rd105, %rd106;
	shl.b64 	%rd107, %rd103, 2;
	add.s64 	%rd36, %rd105, %rd107;
	setp.ge.u64 	%p18, %rd3, %rd103;
	@%p18 bra 	$L__BB0_20;

	mov.u64 	%rd155, %rd159;

$L__BB0_19:
	.pragma "nounroll";

	ld.global.cs.u32 %r46, [%rd155];

	add.s64 	%rd109, %rd155, 128;

	ld.global.cs.u32 %r47, [%rd109];

	add.s64 	%rd110, %rd155, 256;

	ld.global.cs.u32 %r48, [%rd110];

	add.s64 	%rd111, %rd155, 384;

	ld.global.cs.u32 %r49, [%rd111];

	st.global.cs.u32 [%rd157], %r46;

	add.s64 	%rd113, %rd157, 128;

	st.global.cs.u32 [%rd113], %r47;

	add.s64 	%rd114, %rd157, 256;

	st.global.cs.u32 [%rd114], %r48;

	add.s64 	%rd115, %rd157, 384;

	st.global.cs.u32 [%rd115], %r49;

	add.s64 	%rd159, %rd155, 512;
	add.s64 	%rd157, %rd157, 512;
	add.s64 	%rd116, %rd155, 896;
	setp.lt.u64 	%p19, %rd116, %rd36;
	mov.u64 	%rd155, %rd159;
	@%p19 bra 	$L__BB0_19;

$L__BB0_20:
	setp.ge.u64 	%p20, %rd159, %rd36;
	@%p20 bra 	$L__BB0_31;

$L__BB0_21:
	.pragma "nounroll";

	ld.global.cs.u32 %r54, [%rd159];

	st.global.cs.u32 [%rd157], %r54;

	add.s64 	%rd157, %rd157, 128;
	add.s64 	%rd159, %rd159, 128;
	setp.lt.u64 	%p21, %rd159, %rd36;
	@%p21 bra 	$L__BB0_21;

$L__BB0_31:
	add.s32 	%r100, %r100, 1;
	setp.lt.u32 	%p28, %r100, 32;
	@%p28 bra 	$L__BB0_5;

$L__BB0_32:
	mul.wide.u32 	%rd143, %r14, 32;
	add.s64 	%rd145, %rd145, %rd143;
	setp.lt.u64 	%p29, %rd145, %rd69;
	@%p29 bra 	$L__BB0_2;

$L__BB0_33:
	ret;

}
)ptx";

}  // namespace glake::transfer
