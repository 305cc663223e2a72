"""Operators of floats in shapes of real networks; `rows.py` says how a line is read."""

ELEMENTWISE = """
Abs          128x3072
Neg          128x3072
Ceil         128x3072
Floor        128x3072
Round        128x3072
Sign         128x3072
Sqrt         128x3072~0,9
Reciprocal   128x3072~1,9
Exp          128x3072
Log          128x3072~0.1,9
Erf          128x3072
Sin          128x3072~-9,9
Cos          128x3072~-9,9
Tan          128x3072~-1,1
Asin         128x3072~-1,1
Acos         128x3072~-1,1
Atan         128x3072
Sinh         128x3072
Cosh         128x3072
Asinh        128x3072
Acosh        128x3072~1,9
Atanh        128x3072~-0.9,0.9
IsNaN        128x3072
IsInf        128x3072
Relu         1x64x112x112
LeakyRelu    1x64x112x112  alpha=0.1
PRelu        1x64x56x56 =64x1x1
Clip         1x64x112x112 =f:(0) =f:(6)
Elu          1x64x56x56
Celu         1x64x56x56  alpha=2.0
Selu         1x64x56x56
Gelu         128x3072
Gelu         128x3072  approximate=tanh
Sigmoid      1x64x112x112
HardSigmoid  1x64x112x112
HardSwish    1x64x112x112
Mish         1x64x56x56
Softplus     1x64x56x56
Softsign     1x64x56x56
Tanh         128x3072
ThresholdedRelu 1x64x56x56
Shrink       1x64x56x56
Swish        128x3072  opset=24
Add          1x64x56x56 1x64x56x56
Add          128x768 =768
Sub          1x64x56x56 1x64x1x1
Mul          1x192x28x28 1x192x1x1
Mul          1x128x768 1x128x1
Div          128x768 128x1~1,2
Div          128x3072 =f:(8)
Pow          128x3072 =f:(2)
Pow          128x3072 =f:(3)
Pow          128x768~0.1,4 =f:(0.5)
Pow          128x768~0.1,4 128x768~-2,2
Mod          128x768 128x768~1,9  fmod=1
Max          1x64x56x56 1x64x56x56
Min          1x64x56x56 1x64x56x56
Sum          1x64x56x56 1x64x56x56 1x64x56x56
Mean         1x64x56x56 1x64x56x56
Equal        128x3072 128x3072
Greater      128x3072 =f:(0)
Less         128x3072 128x3072
Where        bool:1x1x128x128 1x12x128x128 =f:(-1e9)
Where        bool:128x3072 128x3072 128x3072
Cast         128x3072  to=10
Cast         128x3072~0,255  to=2
Cast         128x3072  to=7
Cast         f16:128x3072  to=1
BatchNormalization 1x64x56x56 =64 =64 =64 =64~0.5,2
Add          f16:1x64x56x56 f16:1x64x56x56
Relu         f16:1x64x112x112
Exp          f16:128x3072
Tanh         f16:128x3072
Gelu         f16:128x3072
Add          f64:128x3072 f64:128x3072
Exp          f64:128x3072
"""

NORMALISATIONS = """
Softmax      12x128x128  axis=-1
Softmax      1x1000
Softmax      1x21x130x130  axis=1
LogSoftmax   128x32000
Hardmax      128x1000
LayerNormalization 128x768 =768 =768
LayerNormalization 3136x96 =96 =96
LayerNormalization f16:128x768 =f16:768 =f16:768
RMSNormalization 128x896 =896  opset=23
InstanceNormalization 1x64x128x128 =64 =64
GroupNormalization 1x320x32x32 =320 =320  num_groups=32 opset=21
GroupNormalization 1x128x128x128 =128 =128  num_groups=32 opset=21
MeanVarianceNormalization 1x64x56x56
LRN          1x96x55x55  size=5
LpNormalization 128x768  axis=1 p=2
LpNormalization 1x512x38x38  axis=1 p=2
ReduceL2     128x768 =[1]
"""

REDUCTIONS = """
ReduceSum    128x768 =[1]
ReduceSum    128x768 =[0]
ReduceSum    1x64x112x112 =[1]
ReduceMean   1x1280x7x7 =[2,3]
ReduceMean   1x64x112x112 =[1]
ReduceMean   128x768 =[-1]
ReduceMean   f16:128x768 =[-1]
ReduceMax    1x64x112x112 =[1]
ReduceMax    12x128x128 =[2]
ReduceMax    1x512x1000 =[2]  keepdims=0
ReduceMin    128x768 =[0]
ReduceProd   128x768~0.99,1.01 =[1]
ReduceL1     128x768 =[1]
ReduceLogSum 128x768~0,1 =[1]
ReduceLogSumExp 128x1000 =[1]
ReduceSumSquare 128x768 =[1]
ReduceSum    1x256x256
ArgMax       1x1000  axis=1
ArgMax       1x32000  axis=-1
ArgMax       256x1000  axis=1
ArgMax       2048x81  axis=1
ArgMax       1x21x130x130  axis=1
ArgMax       1x40x6625  axis=2
ArgMin       256x1000  axis=1
ArgMin       1x64x56x56  axis=1
TopK         1x1000 =[1]
TopK         1x1000 =[5]
TopK         1x32000 =[50]
TopK         1x8400 =[100]
TopK         1x8400 =[300]
TopK         64x1000 =[5]
TopK         1x8x256x256 =[4]
TopK         128x64 =[2]
CumSum       1x1000 =(1)
CumSum       16x1024x64 =(1)
CumSum       1x80x3000 =(2)
CumProd      16x128 =(1)  opset=26
"""

LAYERS = """
Conv         1x3x224x224 =64x3x7x7  strides=[2,2] pads=[3,3,3,3]
Conv         1x64x56x56 =64x64x3x3  pads=[1,1,1,1]
Conv         1x256x14x14 =1024x256x1x1
Conv         1x96x56x56 =96x1x3x3  pads=[1,1,1,1] group=96
Conv         1x96x56x56 =96x1x7x7  pads=[3,3,3,3] group=96
Conv         1x240x28x28 =240x24x3x3  pads=[1,1,1,1] group=10
Conv         1x256x33x33 =256x256x3x3  pads=[6,6,6,6] dilations=[6,6]
Conv         1x512x1500 =512x512x3  pads=[1,1]
Conv         1x80x3000 =384x80x3  pads=[1,1]
Conv         1x512x200 =512x1x31  pads=[15,15] group=512
Conv         1x768x49 =768x48x128  pads=[64,64] group=16
Conv         1x1x16000 =512x1x10  strides=[5]
Conv         1x16x8x28x28 =32x16x3x3x3  pads=[1,1,1,1,1,1]
Conv         1x3x16x112x112 =64x3x3x7x7  strides=[1,2,2] pads=[1,3,3,1,3,3]
Conv         1x64x8x28x28 =64x1x3x3x3  pads=[1,1,1,1,1,1] group=64
Conv         f16:1x64x56x56 =f16:64x64x3x3  pads=[1,1,1,1]
ConvTranspose 1x256x32x32 =256x128x4x4  strides=[2,2] pads=[1,1,1,1]
ConvTranspose 1x128x28x28 =128x64x2x2  strides=[2,2]
ConvTranspose 1x21x16x16 =21x21x64x64  strides=[32,32] pads=[16,16,16,16]
ConvTranspose 1x64x28x28 =64x1x4x4  strides=[2,2] pads=[1,1,1,1] group=64
ConvTranspose 1x512x100 =512x256x16  strides=[8] pads=[4,4]
ConvTranspose 1x64x8x16x16 =64x32x2x2x2  strides=[2,2,2]
ConvTranspose 1x32x8x28x28 =32x16x3x3x3  strides=[2,2,2] pads=[1,1,1,1,1,1]
DeformConv   1x64x28x28 =64x64x3x3 1x18x28x28  pads=[1,1,1,1]
MatMul       128x768 =768x3072
MatMul       1x768 =768x3072
MatMul       12x128x64 12x64x128
MatMul       8x1x64 8x64x512
MatMul       f16:128x768 =f16:768x768
Gemm         1x2048 =1000x2048 =1000  transB=1
Gemm         64x512 =512x512 =512
Einsum       1x12x128x64 1x12x128x64  equation=bhqd,bhkd->bhqk
Einsum       1x64x56x56 =64x32  equation=bchw,cd->bhwd
Einsum       1x128x768 =768x12x64  equation=abc,cde->abde
LSTM         25x1x512 =1x1024x512~-0.1,0.1 =1x1024x256~-0.1,0.1  hidden_size=256 outputs=3
LSTM         40x1x96 =2x192x96~-0.1,0.1 =2x192x48~-0.1,0.1  hidden_size=48 \
    direction=bidirectional outputs=1
LSTM         1x1x256 =1x1024x256~-0.1,0.1 =1x1024x256~-0.1,0.1  hidden_size=256 outputs=3
GRU          50x1x80 =1x768x80~-0.1,0.1 =1x768x256~-0.1,0.1  hidden_size=256 \
    linear_before_reset=1 outputs=2
GRU          100x4x64 =2x192x64~-0.1,0.1 =2x192x64~-0.1,0.1  hidden_size=64 \
    direction=bidirectional outputs=1
RNN          50x1x64 =1x64x64~-0.1,0.1 =1x64x64~-0.1,0.1  hidden_size=64 outputs=1
Attention    1x12x128x64 1x12x128x64 1x12x128x64  opset=23
Attention    1x14x1x64 1x2x256x64 1x2x256x64  opset=23
RotaryEmbedding 1x12x128x64 128x32 128x32 i64:1x128~0,128  opset=23
"""

IMAGES = """
MaxPool      1x64x112x112  kernel_shape=[3,3] strides=[2,2] pads=[1,1,1,1]
MaxPool      1x256x20x20  kernel_shape=[5,5] pads=[2,2,2,2]
MaxPool      1x512x38x38  kernel_shape=[2,2] strides=[2,2]
MaxPool      1x64x8x56x56  kernel_shape=[2,2,2] strides=[2,2,2]
MaxPool      1x64x1000  kernel_shape=[3] strides=[2]
MaxPool      1x64x112x112  kernel_shape=[2,2] strides=[2,2] outputs=2
AveragePool  1x192x35x35  kernel_shape=[3,3] pads=[1,1,1,1]
AveragePool  1x256x56x56  kernel_shape=[2,2] strides=[2,2]
AveragePool  1x2048x7x7  kernel_shape=[7,7]
AveragePool  1x64x8x28x28  kernel_shape=[2,2,2] strides=[2,2,2]
GlobalAveragePool 1x1280x7x7
GlobalMaxPool 1x512x14x14
GlobalLpPool 1x512x14x14
LpPool       1x64x56x56  kernel_shape=[3,3] strides=[2,2]
Resize       1x64x28x28 - =f:[1,1,2,2]  mode=nearest coordinate_transformation_mode=asymmetric
Resize       1x256x20x20 - =f:[1,1,2,2]  mode=nearest
Resize       1x64x28x28 - =f:[1,1,2,2]  mode=linear
Resize       1x21x65x65 - - =[1,21,520,520]  mode=linear \
    coordinate_transformation_mode=align_corners
Resize       1x3x64x64 - =f:[1,1,4,4]  mode=cubic
Resize       1x768x14x14 - - =[1,768,16,16]  mode=cubic
Resize       1x3x256x256 - =f:[1,1,0.5,0.5]  mode=linear antialias=1
Resize       1x64x32x32x32 - =f:[1,1,2,2,2]  mode=linear
Resize       1x64x500 - =f:[1,1,2]  mode=linear
Resize       1x64x500 - =f:[1,1,2]  mode=nearest
Upsample     1x64x28x28 =f:[1,1,2,2]  opset=9
GridSample   1x32x60x80 1x60x80x2~-1,1
GridSample   1x3x256x256 1x256x256x2~-1,1  padding_mode=border align_corners=1
GridSample   1x32x60x80 1x60x80x2~-1,1  mode=nearest
GridSample   1x3x64x64 1x64x64x2~-1,1  mode=cubic
AffineGrid   1x2x3 =[1,3,224,224]
RoiAlign     1x256x50x50 boxes:100x4~0,700 i64:100~0,1  output_height=7 output_width=7 \
    spatial_scale=0.0625 sampling_ratio=2
RoiAlign     1x256x50x50 boxes:100x4~0,700 i64:100~0,1  output_height=7 output_width=7 \
    spatial_scale=0.0625 coordinate_transformation_mode=output_half_pixel
NonMaxSuppression boxes:1x1000x4~0,1 1x1x1000~0,1 =[100] =f:[0.5] =f:[0.1]
DepthToSpace 1x256x28x28  blocksize=2
DepthToSpace 1x48x120x160  blocksize=4 mode=CRD
SpaceToDepth 1x3x640x640  blocksize=2
Col2Im       1x576x3136 =[56,56] =[3,3]  pads=[1,1,1,1]
DFT          1x64x256x1 - =(2)
DFT          1x400x257x2 - =(1)  inverse=1
STFT         1x16000x1 =(160) =400 =(400)  onesided=1
MelWeightMatrix =(80) =(400) =(16000) =f:(0) =f:(8000)
"""
