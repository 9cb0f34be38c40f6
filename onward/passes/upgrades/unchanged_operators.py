"""Schema changes since opset 7 that need no upgrade: an old node means the same in the new schema.

By the opset of the change. Most only allow more types; for others, a comment gives the reason.
Every change is either here or has an adapter: a test compares both with the history that onnx
ships, and names what a newer onnx has added.
"""

from __future__ import annotations

NEWEST = 28  # the newest opset that this table and the adapters cover

COMPATIBLE: dict[int, str] = {
    # variadic operators broadcast; MaxPool may give indices
    8: ("Max MaxPool Mean Min Sum"),
    9: ("Cast Constant Flatten Gemm Greater Less MatMul PRelu"),
    # ceil_mode and dilations: their defaults are the old way
    10: ("AveragePool MaxPool"),
    # negative axes; OneHot takes negative indices, which were not allowed; Gemm without C
    11: (
        "ArgMax ArgMin AveragePool Compress Concat Constant Conv ConvTranspose DepthToSpace "
        "Equal Flatten Gather Gemm Hardmax If LogSoftmax Loop LpPool MaxPool MaxUnpool "
        "NonMaxSuppression OneHot ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax "
        "ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Scan Slice Softmax Split "
        "Squeeze TopK Unsqueeze"
    ),
    # select_last_index, batch_dims: their defaults are the old way
    12: ("ArgMax ArgMin Clip Constant GatherND Max MaxPool Min Pow ReduceMax ReduceMin"),
    # axis of QuantizeLinear matters only to scales of rank 1, which were not allowed
    13: (
        "Abs Add ArgMax ArgMin Cast Ceil Clip Concat Constant DepthToSpace DequantizeLinear "
        "Div Dropout Equal Exp Expand Flatten Floor Gather GatherElements GatherND Gemm "
        "Greater Identity If IsNaN LRN Less Log Loop MatMul Max Mean "
        "MeanVarianceNormalization Min Mod Mul Neg NegativeLogLikelihoodLoss NonZero Pad Pow "
        "QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax "
        "ReduceMean ReduceMin ReduceProd ReduceSumSquare Relu Reshape ScatterElements "
        "ScatterND Shape Sigmoid Sign Size Slice SoftmaxCrossEntropyLoss SpaceToDepth Sqrt "
        "Sub Sum Tanh Tile Transpose"
    ),
    # layout=0 and allowzero=0 are the old way
    14: ("Add CumSum Div GRU Identity LSTM Mul RNN Relu Reshape Sub"),
    # start and end of Shape; BatchNormalization's statistics may have another type
    15: ("BatchNormalization Pow Shape"),
    # reduction=none is the old way
    16: (
        "GreaterOrEqual Identity If LeakyRelu LessOrEqual Loop PRelu Scan ScatterElements "
        "ScatterND Where"
    ),
    # axes of Pad and Resize, antialias: their defaults are the old way
    18: ("LpPool OptionalGetElement OptionalHasElement Pad Resize ScatterElements ScatterND"),
    # saturate=1: there were no float8 types to saturate
    19: (
        "AveragePool Cast CastLike Constant DequantizeLinear Equal Identity If Loop Pad "
        "QuantizeLinear Reshape Resize Scan Shape Size"
    ),
    20: ("ConstantOfShape IsInf IsNaN ReduceMax ReduceMin"),
    # block_size=0 and output_dtype=0 are the old way
    21: (
        "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad "
        "QLinearMatMul QuantizeLinear Reshape Scan Shape Size Squeeze Transpose Unsqueeze"
    ),
    # windows that start in the right padding are left out: runtimes always did
    22: (
        "Acos Acosh Asin Asinh Atan Atanh AveragePool Bernoulli Conv ConvTranspose Cos Cosh "
        "DeformConv Det Dropout Elu EyeLike GRU GlobalAveragePool GlobalLpPool GlobalMaxPool "
        "GridSample HardSigmoid HardSwish InstanceNormalization LSTM LpNormalization LpPool "
        "MaxPool MaxRoiPool MaxUnpool Mish Multinomial NegativeLogLikelihoodLoss RNN "
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike RoiAlign Round Selu "
        "Sin Sinh Softplus Softsign Tan ThresholdedRelu"
    ),
    # precision=0 and output_dtype=0 are the old way
    23: (
        "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad "
        "QuantizeLinear Reshape Scan Shape Size Squeeze Transpose Unsqueeze"
    ),
    # round_mode is for float8e8m0, which was not; a cast of infinity to float8e4m3fnuz saturates
    24: (
        "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad "
        "QuantizeLinear Reshape Scan Shape Size SplitToSequence Squeeze TopK Transpose "
        "Unsqueeze"
    ),
    25: (
        "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad "
        "QuantizeLinear Reshape Scan Shape Size Squeeze Transpose Unsqueeze"
    ),
    # stash_type is for half precision, which was not allowed
    27: ("Range"),
    # Mod of floats with fmod=0 was not allowed; SpaceToDepth's mode=DCR is the old way
    28: (
        "BitShift Cast Celu Compress DepthToSpace DequantizeLinear Einsum Mod OneHot Optional "
        "OptionalGetElement OptionalHasElement QuantizeLinear ReverseSequence SpaceToDepth "
        "Unique"
    ),
}

# Changes with an adapter whose newer form means nothing new: if the added attributes have their
# defaults, the node can be lowered unchanged.
REVERSIBLE: dict[int, str] = {
    9: "BatchNormalization",  # spatial=1 was the default
    13: "Erf",
    14: "BatchNormalization",
    25: "Attention",
    28: "ReduceLogSum ReduceLogSumExp",
}
