"""Operators that move numbers, and those of integers; `rows.py` says how a line is read."""

MOVES = """
Transpose    1x64x56x56  perm=[0,2,3,1]
Transpose    1x56x56x64  perm=[0,3,1,2]
Transpose    768x3072  perm=[1,0]
Transpose    1x128x12x64  perm=[0,2,1,3]
Transpose    1x12x128x64  perm=[0,1,3,2]
Transpose    1x8x7x8x7x96  perm=[0,1,3,2,4,5]
Transpose    2x1x8x32x32x64  perm=[2,0,4,1,3,5]
Transpose    3x224x224  perm=[1,2,0]
Transpose    1x2x116x28x28  perm=[0,2,1,3,4]
Transpose    f16:1x64x56x56  perm=[0,2,3,1]
Transpose    u8:1x224x224x3  perm=[0,3,1,2]
Transpose    i64:128x512  perm=[1,0]
Concat       1x64x56x56 1x64x56x56  axis=1
Concat       1x128x768 1x128x768  axis=2
Concat       1x1x768 1x196x768  axis=1
Concat       1x128x1 1x128x1 1x128x1 1x128x1  axis=2
Split        1x128x2304  axis=2 num_outputs=3 outputs=3
Split        1x116x28x28  axis=1 num_outputs=2 outputs=2
Slice        1x128x768 =[0] =[1] =[1]
Slice        1x3x640x640 =[0] =[640] =[2] =[2]
Slice        1x3x640x640 =[0] =[640] =[3] =[2]
Slice        1x128x12x64 =[32] =[64] =[3]
Slice        1x1000x80 =[-1] =[-1001] =[1] =[-1]
Pad          1x64x56x56 =[0,0,1,1,0,0,1,1]
Pad          1x64x56x56 =[0,0,3,3,0,0,3,3]  mode=reflect
Pad          1x64x56x56 =[0,0,3,3,0,0,3,3]  mode=edge
Pad          1x64x56x56 =[0,0,3,3,0,0,3,3]  mode=wrap
Pad          1x1x16000 =[0,0,200,0,0,200]  mode=reflect
Pad          1x56x56x96 =[0,4,4,0,0,3,3,0]
Expand       1x128x1 =[1,128,768]
Expand       1x2x1x256x64 =[1,2,7,256,64]
Expand       1x1x768 =[64,49,768]
Tile         1x128x64 =[1,1,8]
Tile         1x64x28x28 =[1,1,2,2]
Tile         100x1 =[1,100]
Gather       =30522x384 i64:1x128~0,30522
Gather       =f16:32000x512 i64:1x128~0,32000
Gather       1x197x768 =(0)  axis=1
Gather       1x64x56x56 i64:28~0,56  axis=3
Gather       12x49x49 i64:2401~0,49  axis=2
GatherElements 1x300x256 i64:1x100x256~0,300  axis=1
GatherElements 12x512x512 i64:12x512x512~0,512  axis=2
GatherND     1x64x56x56 i64:100x4~0,1
GatherND     64x64x128 i64:400x2~0,64
ScatterElements 1x300x256 i64:1x100x256~0,300 1x100x256  axis=1
ScatterElements 1x1000 i64:1x50~0,1000 1x50  axis=1 reduction=add
ScatterND    1x64x64x128 i64:100x3~0,1 100x128
ScatterND    512x64 i64:16x1~0,512 16x64
ScatterND    4096x32 i64:2000x1~0,4096 2000x32  reduction=add
TensorScatter 1x8x512x64 1x8x1x64 i64:1~0,512  opset=24
OneHot       i64:128~0,1000 =(1000) =f:[0,1]
OneHot       i64:1x512x512~0,21 =(21) =f:[0,1]  axis=1
Trilu        12x128x128
Trilu        12x128x128  upper=0
EyeLike      128x128
ReverseSequence 50x4x256 i64:4~1,50
Range        =(0) =(4096) =(1)
ConstantOfShape =[1,64,56,56]
Compress     1000x64 =bool:1000  axis=0
NonZero      bool:100x100
Unique       i64:1000~0,100  outputs=4
Reshape      1x64x56x56 =[1,64,-1]
Squeeze      1x1280x1x1 =[2,3]
Unsqueeze    128x768 =[0]
Flatten      1x512x7x7
Identity     1x64x56x56
Shape        1x64x56x56
Size         1x64x56x56
"""

INTEGERS = """
Add          i64:1x512 i64:1x512
Add          i64:128x768 =(1)
Mul          i32:128x768 i32:128x768
Div          i64:128x512 =(7)
Div          i32:128x512 i32:128x512~1,99
Mod          i64:128x512 =(7)
Mod          i32:128x512 i32:128x512~1,99
Pow          i64:128x512~0,99 =(2)
Neg          i64:128x512
Abs          i32:128x512
Sign         i64:128x512
Max          i64:128x512 i64:128x512
Clip         i64:128x512 =(0) =(100)
Equal        i64:1x1x512x512 =(0)
Greater      i64:512x1 i64:1x512
LessOrEqual  i32:128x512 i32:128x512
And          bool:1x1x512x512 bool:1x1x512x512
Or           bool:1x1x512x512 bool:1x1x1x512
Xor          bool:512x512 bool:512x512
Not          bool:1x1x512x512
BitShift     u8:128x512 =u8:(2)  direction=RIGHT
BitwiseAnd   i32:128x512 =i32:(15)
BitwiseOr    i64:128x512 i64:128x512
BitwiseXor   u8:128x512 u8:128x512
BitwiseNot   i32:128x512
Where        bool:512x512 i64:512x512 =(0)
Cast         i64:128x512  to=1
Cast         i64:128x512  to=6
Cast         u8:1x224x224x3  to=1
Cast         bool:1x1x512x512  to=1
Cast         i32:128x512  to=7
ReduceSum    i64:1x512 =[1]
ReduceMax    i32:128x512 =[1]
ReduceMax    u8:1x64x56x56 =[2,3]
ArgMax       i32:64x512  axis=1
ArgMax       u8:64x512  axis=1
TopK         i64:1x1000~-999999,999999 =[5]
CumSum       i64:1x512 =(1)
CumSum       i32:1x100x100 =(1)
Concat       i64:1x256 i64:1x256  axis=1
Gather       i64:1x512 i64:1x100~0,512  axis=1
Slice        i64:1x512 =[1] =[512] =[1]
Expand       i64:1x512 =[512,512]
Tile         i64:1x512 =[64,1]
Pad          i64:1x512 =[0,1,0,1]
Pad          u8:1x3x224x224 =[0,0,8,8,0,0,8,8]
MaxPool      u8:1x64x56x56  kernel_shape=[3,3] strides=[2,2]
Resize       u8:1x3x240x320 - =f:[1,1,2,2]  mode=nearest
Resize       u8:1x3x240x320 - =f:[1,1,2,2]  mode=linear
Trilu        i64:512x512
"""

QUANTISED = """
QuantizeLinear 1x64x56x56 =f:(0.02) =u8:(128)
QuantizeLinear 128x768 =f:(0.02) =i8:(0)
QuantizeLinear 64x64x3x3 =64~0.01,0.1 =i8:64~0,1  axis=0
DequantizeLinear u8:1x64x56x56 =f:(0.02) =u8:(128)
DequantizeLinear i8:768x768 =768~0.01,0.1 =i8:768~0,1  axis=1
DequantizeLinear i32:1000 =f:(0.02)
DynamicQuantizeLinear 128x768  outputs=3
DynamicQuantizeLinear 1x64x56x56  outputs=3
MatMulInteger u8:128x768 =i8:768x768 =u8:(128) =i8:(0)
MatMulInteger u8:1x768 =i8:768x3072 =u8:(128) =i8:(0)
MatMulInteger i8:128x768 =i8:768x768
ConvInteger  u8:1x64x28x28 =u8:64x64x3x3 =u8:(128) =u8:(128)  pads=[1,1,1,1]
QLinearMatMul u8:128x768 =f:(0.02) =u8:(128) =i8:768x768 =f:(0.01) =i8:(0) =f:(0.2) =u8:(128)
QLinearConv  u8:1x64x28x28 =f:(0.02) =u8:(128) =i8:64x64x3x3 =f:(0.01) =i8:(0) =f:(0.5) \
    =u8:(128)  pads=[1,1,1,1]
QLinearConv  u8:1x96x28x28 =f:(0.02) =u8:(128) =i8:96x1x3x3 =f:(0.01) =i8:(0) =f:(0.1) \
    =u8:(128)  pads=[1,1,1,1] group=96
QLinearConv  u8:1x3x224x224 =f:(0.02) =u8:(128) =i8:64x3x7x7 =f:(0.01) =i8:(0) =f:(0.5) \
    =u8:(128)  pads=[3,3,3,3] strides=[2,2]
com.microsoft.QLinearAdd u8:1x64x56x56 =f:(0.02) =u8:(128) u8:1x64x56x56 =f:(0.03) =u8:(120) \
    =f:(0.04) =u8:(128)
com.microsoft.QLinearMul u8:1x64x56x56 =f:(0.02) =u8:(128) u8:1x64x1x1 =f:(0.03) =u8:(120) \
    =f:(0.04) =u8:(128)
com.microsoft.QLinearSigmoid u8:1x64x56x56 =f:(0.02) =u8:(128) =f:(0.004) =u8:(0)
com.microsoft.QLinearLeakyRelu u8:1x64x56x56 =f:(0.02) =u8:(128) =f:(0.02) =u8:(128)  alpha=0.1
com.microsoft.QLinearGlobalAveragePool u8:1x512x7x7 =f:(0.02) =u8:(0) =f:(0.02) =u8:(0)
com.microsoft.QLinearAveragePool u8:1x192x28x28 =f:(0.02) =u8:(0) =f:(0.02) =u8:(0)  \
    kernel_shape=[3,3] strides=[1,1]
com.microsoft.QLinearConcat =f:(0.04) =u8:(128) u8:1x64x28x28 =f:(0.02) =u8:(128) u8:1x64x28x28 \
    =f:(0.03) =u8:(120)  axis=1
com.microsoft.MatMulNBits 1x896 =u8:896x28x16 =25088~0.01,0.02  K=896 N=896 bits=4 block_size=32
com.microsoft.MatMulNBits 64x896 =u8:896x28x16 =25088~0.01,0.02  K=896 N=896 bits=4 block_size=32
com.microsoft.DynamicQuantizeMatMul 128x768 =i8:768x768 =f:(0.01) =i8:(0)
com.microsoft.MatMulIntegerToFloat u8:128x768 =i8:768x768~-63,63 =f:[0.02] =f:[0.01] =u8:[128]
com.microsoft.QAttention u8:1x128x768 =i8:768x2304~-63,63 =2304 =f:(0.02) =f:(0.001) - =u8:(128) \
    =i8:(0)  num_heads=12
com.microsoft.GatherBlockQuantized =u8:32000x448 i64:1x128~0,32000 =32000x28  block_size=32 bits=4 \
    quantize_axis=1
com.microsoft.Attention 1x128x768 =768x2304 =2304  num_heads=12
com.microsoft.MultiHeadAttention 1x128x768 1x128x768 1x128x768  num_heads=12
com.microsoft.MultiHeadAttention 1x1x768 1x12x1500x64 1x12x1500x64  num_heads=12
com.microsoft.GroupQueryAttention 1x1x896 1x1x128 1x1x128 1x2x512x64 1x2x512x64 i32:1~499,500 \
    =i32:(512) =512x32 =512x32  num_heads=14 kv_num_heads=2 do_rotary=1 outputs=3
com.microsoft.GroupQueryAttention 1x128x896 1x128x128 1x128x128 - - i32:1~127,128 =i32:(128) \
    =512x32 =512x32  num_heads=14 kv_num_heads=2 do_rotary=1 outputs=3
com.microsoft.RotaryEmbedding 1x128x896 i64:1x128~0,128 =512x32 =512x32  num_heads=14
com.microsoft.FusedConv 1x64x28x28 =64x64x3x3 =64  pads=[1,1,1,1] activation=Relu
com.microsoft.FusedMatMul 12x128x64 12x128x64  transB=1 alpha=0.125
com.microsoft.SkipLayerNormalization 1x128x768 1x128x768 =768 =768
com.microsoft.BiasGelu 1x128x3072 =3072
com.microsoft.FastGelu 1x128x3072
com.microsoft.QuickGelu 1x128x3072
com.microsoft.Gelu 1x128x3072
"""
