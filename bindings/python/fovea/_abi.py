# SPDX-License-Identifier: Apache-2.0
# Written by tools/api.py from include/fovea: edit the headers instead.
"""The C ABI: enums, structs, functions."""
import ctypes as C
import enum

VERSION = "0.1.0"
MAX_DIMS = 5


class Status(enum.IntEnum):
    """What a call came to.  The sentence behind it is fovea_last_error()."""

    OK = 0
    INVALID_ARGUMENT = 1  # no fovea could run this: fix the caller
    UNSUPPORTED = 2  # valid, but no kernel for it here (backend, device, build)
    OUT_OF_MEMORY = 3  # the workspace or a buffer could not be had
    DEVICE_ERROR = 4  # the device failed: destroy the context
    INTERNAL_ERROR = 5  # a bug in fovea


class Backend(enum.IntEnum):
    """Where a context computes."""

    HOST = 1  # the CPU: works everywhere
    CUDA = 2  # an NVIDIA GPU, sm_80 or later


class Dtype(enum.IntEnum):
    """Element types.  E2M1, I4 and E8M0 are reserved until an operation names them.  E2M1 and I4 pack
two elements a byte; their strides too count elements."""

    F32 = 1
    F16 = 2
    BF16 = 3
    E4M3 = 4
    E5M2 = 5
    E2M1 = 6
    I8 = 7
    I32 = 8
    I64 = 9
    U8 = 10
    I4 = 11
    E8M0 = 12


class Memory(enum.IntEnum):
    """Kinds of memory for fovea_alloc."""

    DEVICE = 0  # the backend's own memory (plain host memory on FOVEA_HOST)
    HOST = 1  # pinned host memory that the device reads at the same address


class Property(enum.IntEnum):
    """Keys of fovea_context_get."""

    BACKEND = 1  # fovea_backend
    DEVICE = 2  # device number
    MULTIPROCESSORS = 3  # multiprocessors (host: hardware threads)
    ARCHITECTURE = 4  # 10 * compute capability, 90 for Hopper (host: 0)
    THREADS = 5  # threads an operation may use on the host
    WORKSPACE_BYTES = 6  # bytes of the context's workspace now
    FREE_BYTES = 7  # free memory of the device (host: available memory)
    TOTAL_BYTES = 8  # total memory of the device or machine


class Build(enum.IntEnum):
    """Keys of fovea_build_get."""

    VERSION = 1  # "0.1.0"
    GIT = 2  # commit the library was built from, "unknown" outside git
    # CUDA toolkit, "13.0"; "none" in a host-only build. "13.0, fast compile": with slow
    # kernels, see README
    TOOLKIT = 3
    ARCHITECTURES = 4  # device code in the library, "80,90a"; "none" without
    OPERATIONS = 5  # every operation, comma separated
    COMPILER = 6  # of the host's code, "gcc 12.2.0"


class Scaling(enum.IntEnum):
    """How rope_table_get bends the frequencies of a longer context.

LLAMA3 goes by wavelength.  Wavelengths above original_len / low_factor are divided by factor.
Those below original_len / high_factor are kept.  Those between are blended.

YARN goes by pair number.  Pairs up to the one that turns high_factor times within original_len
are kept.  Pairs from the one that turns low_factor times are divided by factor.  Those between
are blended.  The two pairs are found from base and rounded outward.  The caller folds mscale
into scale."""

    NONE = 0  # base^(-i / half)
    LINEAR = 1  # divided by factor
    LLAMA3 = 2  # divided, kept or blended by wavelength
    YARN = 3  # divided, kept or blended by pair number


class CodeOrder(enum.IntEnum):
    """The order of tokens in transposed codes.  V_PERM16 is what Hopper's tensor cores ask for.  Each
run of 16 tokens then stands as 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15."""

    PLAIN = 0  # as they are
    V_PERM16 = 1  # runs of 16 in the order above


class CodeFormat(enum.IntEnum):
    """What a code is.  In i4 and e2m1 a byte holds two: element 2k in bits 0-3, 2k + 1 in bits 4-7.
i4 is two's complement.  e2m1 has a sign and 0 0.5 1 1.5 2 3 4 6."""

    DTYPE = 0  # what the tensor's dtype says: e4m3 or i8
    I4 = 1  # -7 .. 7, u8 of pairs
    E2M1 = 2  # u8 of pairs


class ScaleGroup(enum.IntEnum):
    """What shares a scale; entries as the opening comment says."""

    BLOCK = 0  # a block of tokens
    THREAD_Q = 1  # tokens of a block that are equal modulo 8
    THREAD_K = 2  # tokens of a block whose i % 8 / 2 are equal
    TOKEN = 3  # a token
    CHANNEL = 4  # a column, over all tokens of a sequence
    MICRO16 = 5  # 16 columns of a token
    MICRO32 = 6  # 32 columns of a token
    MICRO16_T = 7  # 16 columns of code_t
    MICRO32_T = 8  # 32 columns of code_t


class Smooth(enum.IntEnum):
    """What is taken off before codes are made."""

    NONE = 0  # nothing
    SEQUENCE = 1  # each column's mean over the sequence
    BLOCK = 2  # each column's mean over a block of 128 tokens, rounded to bf16


class PFormat(enum.IntEnum):
    """What p is rounded to before it meets v, and what v then is.
  E4M3_256, E4M3_448  e4m3(c p) / c, c = 256 or 448; v e4m3
  HALF                f16(p); v f16 or bf16
  I8                  with a = max p of 64 keys: round(127 p / a) a / 127; v i8
  E2M1_TWO            t = 2688 p, with a = max t of 16 keys: u = e4m3(a / 6),
                      e2m1(t / u) u / 2688, 0 where u is; v e2m1
  E2M1_ONE            with a = max p of 32 keys: u = 2^(floor(log2 a) - 2), e2m1(p / u) u;
                      v e2m1
Runs of 16, 32 and 64 keys are counted from a sequence's first."""

    E4M3_256 = 0  # FlashAttention-3
    E4M3_448 = 1  # SageAttention2
    HALF = 2  # SageAttention
    I8 = 3  # SageBwd
    E2M1_TWO = 4  # SageAttention3, NVFP4: a scale of two levels
    E2M1_ONE = 5  # SageAttention3, MXFP4: a scale of one level


class Accumulate(enum.IntEnum):
    """How products of p and v are summed.  A kernel may be more exact than what is asked for: CUDA
sums half_64 in f32."""

    TWO_LEVEL = 0  # tensor cores sum few keys, then these join O in f32
    F32 = 1  # in f32 as the tensor cores keep it
    HALF_64 = 2  # f16 within 64 keys, f32 across them; SageAttention, 2++


class Direction(enum.IntEnum):
    """Which distribution the logarithm of the ratio is weighted with."""

    TEACHER_STUDENT = 0  # KL(teacher || student): the student covers the teacher
    STUDENT_TEACHER = 1  # KL(student || teacher), reverse KL: the student seeks a mode


class EdgeKind(enum.IntEnum):
    """What edge_weight holds."""

    SCORE = 0  # score
    MAX_LOGIT = 1  # edge_max
    MASS = 2  # edge_mass


class XPool(enum.IntEnum):
    """How the teacher's probabilities of a block's keys become one."""

    SUM = 0  # their sum
    MAX = 1  # the largest


class XNormGateNorm(enum.IntEnum):
    """What each group of columns is divided by."""

    RMS = 0  # n = v / sqrt(mean(v^2) + eps)
    LAYER = 1  # n = (v - mean(v)) / sqrt(mean((v - mean(v))^2) + eps)
    L2 = 2  # n = v / sqrt(sum(v^2) + eps)
    NONE = 3  # n = v


class XNormGateAct(enum.IntEnum):
    """What a gate becomes before it is multiplied."""

    SILU = 0  # x / (1 + exp(-x))
    SIGMOID = 1  # 1 / (1 + exp(-x))
    NONE = 2  # x


class XSelectMeasure(enum.IntEnum):
    """How a row's summary q and a column's make a score."""

    DOT = 0  # scale sum_c q_c column_c
    # scale sum_c (max(q_c, 0) column_c + min(q_c, 0) column_low_c): no key between column_low
    # and column has a larger dot product (Quest)
    BOX = 1


class XSelectNormalise(enum.IntEnum):
    """What scores s of the eligible columns become.  A row's sums and maxima are over them alone."""

    NONE = 0  # s
    SOFTMAX = 1  # exp(s) / sum exp(s) over the row
    WEIGHTED = 2  # w exp(s) / sum w exp(s), w = column_weight
    MINMAX = 3  # (s - min) / (max - min) over the scope; a range of at most 1e-6 counts as 1
    MAX = 4  # s / max over the row, s where max <= 0


class XSelectReduce(enum.IntEnum):
    """How the query heads of a list head become one."""

    NONE = 0  # x = h: each has its own list
    SUM = 1  # in the order of heads; ineligible for one, ineligible
    MEAN = 2  # the sum over their number
    MAX = 3  # eligible for one, eligible


class XSelectRule(enum.IntEnum):
    """Which of the eligible columns are taken, in their order.  Masses of the three cumulative rules
are scores in fixed point, negative ones 0, T their total in the scope.  T = 0 takes nothing."""

    TOP_K = 0  # the first k
    TOP_P_GE = 1  # while the mass before is < cover T: reaches cover
    TOP_P_GT = 2  # while the mass before is <= cover T: exceeds cover
    TOP_P_UNDER = 3  # while the mass with it is <= cover T
    ABOVE = 4  # score > threshold
    AT_LEAST = 5  # score >= threshold
    NONE = 6  # only what is forced: bits to lists, unions


class XSelectScope(enum.IntEnum):
    """What one application of the rule covers.  Index in the order: list row by list row."""

    ROW = 0  # a list row
    HEAD = 1  # all list rows of a list head of a sequence
    ALL = 2  # all list heads of a sequence


class XSelectScore(enum.IntEnum):
    """How a query and a key make a score, for each query head."""

    DOT = 0  # scale <q, k>
    RELU_WEIGHTED = 1  # weight max(scale <q, k>, 0): lightning indexers
    HAMMING = 2  # scale (32 words - 2 popcount(code_q xor code))
    # scale <q_R, k_R> / sqrt(|q_R|_1 / |q|_1), 0 where |q_R|_1 is.  R: the `subset` columns
    # with the largest sum of |q_c| over the query heads of a key head
    SUBSET = 3


class XCode(enum.IntEnum):
    """What an operand is rounded to."""

    E4M3 = 0  # 8 bits, floating point
    I8 = 1  # 8 bits, integers
    I4 = 2  # 4 bits, integers; not of v
    E2M1 = 3  # 4 bits, floating point, with scales of 16 or 32 values
    PLAIN = 4  # v stays as it is: f16 or bf16


class XProbedKind(enum.IntEnum):
    """What of the probabilities is chosen from."""

    BLOCKS = 0  # sums over row blocks and key blocks, of all rows
    COLUMNS = 1  # sums over the probed rows, of each key
    LINES = 2  # the same, and of each distance behind the row
    MEANS = 3  # sums over row blocks of what all rows give the mean of each key block's keys


class XProjectAct(enum.IntEnum):
    """What stands between two layers."""

    NONE = 0  # x
    SILU = 1  # x / (1 + exp(-x))
    GELU = 2  # x (1 + erf(x / sqrt(2))) / 2


class XKvFormat(enum.IntEnum):
    """What codes stand for."""

    GROUPS = 0  # scale and zero of a group (KIVI)
    LEVELS = 1  # levels, offset and range, outliers (KVQuant)
    NORMS = 2  # levels times the norm of a token's head (TurboQuant)
    TILES = 3  # scale and zero of lines, a factor of columns (KVarN)


class XConv1dActivation(enum.IntEnum):
    """What is applied to each sum of a convolution."""

    NONE = 0  # z
    SILU = 1  # z / (1 + exp(-z))


class XGateMap(enum.IntEnum):
    """What turns a raw gate x into the log of a decay: g = map(x + bias), with the rate of its head.
A decay is e^g.  g = -inf resets exactly: what the state held before is gone, NaN too."""

    LOG = 0  # g = x, of any sign; nothing is ever divided by a decay
    SOFTPLUS = 1  # -exp(rate) ln(1 + exp(x))
    BOUNDED = 2  # -gate_bound sigmoid(exp(rate) x)
    LOG_SIGMOID = 3  # ln(sigmoid(x)) / gate_tau
    EXP = 4  # -exp(x)


class XFeatureMap(enum.IntEnum):
    """A map of each element of q or k."""

    NONE = 0  # x
    RELU = 1  # max(x, 0)
    ELU_PLUS_ONE = 2  # x + 1 from 0 on, exp(x) below
    SILU = 3  # x / (1 + exp(-x))


class XBetaMap(enum.IntEnum):
    """A map of the strength of a correction."""

    NONE = 0  # x
    SIGMOID = 1  # sigmoid(x)
    TWO_SIGMOID = 2  # 2 sigmoid(x)


class XSummary(enum.IntEnum):
    """Parts of a row of y, bits of `want`.  Those of the first four that are wanted stand side by
side, in the order of their bits; each of the others stands alone."""

    MAX = 1  # the largest of the block in each column
    MIN = 2  # the smallest
    MEAN = 4  # sum / tokens of the block
    SUM = 8  # the sum
    # the mean of the `ranked` tokens with the largest rank_score, the first of equals; NaN
    # ranks as -inf
    RANKED = 16
    RUNNING = 32  # the mean of the sequence, from `previous` and what is new
    # sum_i w_i x_i, w the softmax over the block of gate + bias, in each column by itself
    GATED = 64


class XProbeReduce(enum.IntEnum):
    """What the heads of a group become in an output of x_probe_forward."""

    SUM = 0  # the sum over the heads, in their order
    MEAN = 1  # the sum over their number
    MAX = 2  # the largest


class XGate(enum.IntEnum):
    """What a gate is before it multiplies."""

    NONE = 0  # g
    SIGMOID = 1  # 1 / (1 + exp(-g))
    COMPLEMENT = 2  # 1 - g
    SIGMOID_COMPLEMENT = 3  # 1 - 1 / (1 + exp(-g))


class XCompareMeasure(enum.IntEnum):
    """How x_compare_forward measures."""

    X_COMPARE_MSE = 0  # the mean of (candidate - reference)^2 over rows and columns
    # the mean over rows of sqrt(1/2 KL(p, m) + 1/2 KL(q, m)), m = (p + q) / 2.  p and q are
    # the rows over their sums; entries are >= 0
    X_COMPARE_JSD = 1


class XCacheRule(enum.IntEnum):
    """Which keys a bounded cache keeps."""

    RING = 0  # positions below sink_keys, and the last `recent`
    # the last `recent` positions, and of the others the `heavy` with the largest score, the
    # lowest position of equals; NaN is -inf
    HEAVY = 1


class Tensor(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("dtype", C.c_int32),
        ("ndim", C.c_int32),
        ("shape", C.c_int64 * 5),
        ("stride", C.c_int64 * 5),
    ]


class AttentionForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("q_value", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("key_first", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("query_position", Tensor),
        ("key_position", Tensor),
        ("head_window", Tensor),
        ("mask", Tensor),
        ("bias", Tensor),
        ("alibi", Tensor),
        ("sink_logit", Tensor),
        ("cos", Tensor),
        ("sin", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("local_chunk", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("causal", C.c_int32),
        ("rope_begin", C.c_int32),
        ("rope_interleaved", C.c_int32),
        ("splits", C.c_int32),
        ("k_scale", Tensor),
        ("v_scale", Tensor),
        ("context_len", Tensor),
        ("key_step", C.c_int64),
        ("key_shift", C.c_int64),
    ]


class AttentionBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("key_first", Tensor),
        ("query_position", Tensor),
        ("key_position", Tensor),
        ("head_window", Tensor),
        ("mask", Tensor),
        ("bias", Tensor),
        ("alibi", Tensor),
        ("sink_logit", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dlse", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dsink_logit", Tensor),
        ("dbias", Tensor),
        ("dalibi", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("local_chunk", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("causal", C.c_int32),
        ("nondeterministic", C.c_int32),
    ]


class MergeForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("o_part", Tensor),
        ("lse_part", Tensor),
        ("row", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
    ]


class MergeBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("o_part", Tensor),
        ("lse_part", Tensor),
        ("row", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dlse", Tensor),
        ("do_part", Tensor),
        ("dlse_part", Tensor),
    ]


class CacheAppendParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("k_new", Tensor),
        ("v_new", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("position", Tensor),
        ("cos", Tensor),
        ("sin", Tensor),
        ("norm_weight", Tensor),
        ("k_scale", Tensor),
        ("v_scale", Tensor),
        ("key_len_out", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("norm_eps", C.c_float),
        ("rope_begin", C.c_int32),
        ("rope_interleaved", C.c_int32),
        ("scale_power_of_two", C.c_int32),
        ("k_scale_out", Tensor),
        ("v_scale_out", Tensor),
    ]


class CacheCopyParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("source", Tensor),
        ("target", Tensor),
        ("pair", Tensor),
    ]


class CacheGetParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("k", Tensor),
        ("key_start", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("k_scale", Tensor),
        ("k_out", Tensor),
        ("key_max", C.c_int64),
    ]


class RopeForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("y", Tensor),
        ("position", Tensor),
        ("start", Tensor),
        ("cos", Tensor),
        ("sin", Tensor),
        ("rope_begin", C.c_int32),
        ("rope_interleaved", C.c_int32),
        ("inverse", C.c_int32),
        ("reserved", C.c_int32),
    ]


class RopeTableGetParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("cos", Tensor),
        ("sin", Tensor),
        ("frequency", Tensor),
        ("position_begin", C.c_int64),
        ("original_len", C.c_int64),
        ("base", C.c_float),
        ("factor", C.c_float),
        ("low_factor", C.c_float),
        ("high_factor", C.c_float),
        ("scaling", C.c_int32),
        ("reserved", C.c_int32),
    ]


class QuantQuantizeParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("start", Tensor),
        ("code", Tensor),
        ("code_t", Tensor),
        ("scale", Tensor),
        ("mean", Tensor),
        ("k", Tensor),
        ("k_mean", Tensor),
        ("key_start", Tensor),
        ("delta", Tensor),
        ("block", C.c_int64),
        ("seed", C.c_int64),
        ("scale_max", C.c_float),
        ("hadamard", C.c_int32),
        ("code_order", C.c_int32),
        ("group", C.c_int32),
        ("code_format", C.c_int32),
        ("smooth", C.c_int32),
    ]


class QuantDequantizeParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("y", Tensor),
        ("start", Tensor),
        ("code", Tensor),
        ("code_t", Tensor),
        ("scale", Tensor),
        ("mean", Tensor),
        ("block", C.c_int64),
        ("seed", C.c_int64),
        ("hadamard", C.c_int32),
        ("code_order", C.c_int32),
        ("group", C.c_int32),
        ("code_format", C.c_int32),
        ("smooth", C.c_int32),
        ("reserved", C.c_int32),
    ]


class QuantForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("v_t", Tensor),
        ("q_scale", Tensor),
        ("k_scale", Tensor),
        ("v_scale", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("sink_logit", Tensor),
        ("k_mean", Tensor),
        ("q_plain", Tensor),
        ("delta", Tensor),
        ("v_mean", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("skipped", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("skip_margin", C.c_float),
        ("causal", C.c_int32),
        ("q_block", C.c_int32),
        ("k_block", C.c_int32),
        ("code_order", C.c_int32),
        ("code_format", C.c_int32),
        ("v_format", C.c_int32),
        ("p_format", C.c_int32),
        ("accumulate", C.c_int32),
        ("q_group", C.c_int32),
        ("k_group", C.c_int32),
        ("v_group", C.c_int32),
        ("v_block", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("entry_keys", C.c_int32),
    ]


class KlForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("kl", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("row_weight", Tensor),
        ("total", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("head_window", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
        ("causal", C.c_int32),
        ("direction", C.c_int32),
        ("mean", C.c_int32),
        ("reserved", C.c_int32),
    ]


class KlBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("row_weight", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("head_window", Tensor),
        ("kl", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("dkl", Tensor),
        ("dtotal", Tensor),
        ("dq_student", Tensor),
        ("dk_student", Tensor),
        ("dq_teacher", Tensor),
        ("dk_teacher", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
        ("causal", C.c_int32),
        ("direction", C.c_int32),
        ("mean", C.c_int32),
        ("nondeterministic", C.c_int32),
    ]


class ConvAttentionForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("weight", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("history", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
        ("splits", C.c_int32),
        ("reserved", C.c_int32),
    ]


class ConvAttentionBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("weight", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dweight", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("history", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
        ("nondeterministic", C.c_int32),
        ("reserved", C.c_int32),
    ]


class TraceForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("keep_row", Tensor),
        ("block_mask", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("selected", Tensor),
        ("score", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("lse_dense", Tensor),
        ("edge_score", Tensor),
        ("edge_max", Tensor),
        ("edge_mass", Tensor),
        ("edge_value", Tensor),
        ("edge", Tensor),
        ("edge_weight", Tensor),
        ("edge_count", Tensor),
        ("edge_offset", Tensor),
        ("keep", C.c_int64),
        ("scale", C.c_float),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("layer", C.c_int32),
        ("edge_kind", C.c_int32),
        ("exact", C.c_int32),
        ("causal", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XKlJensenShannonForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("js", Tensor),
        ("kl_teacher", Tensor),
        ("kl_student", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("head_window", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
        ("weight", C.c_float),
        ("causal", C.c_int32),
    ]


class XKlJensenShannonBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("head_window", Tensor),
        ("kl_teacher", Tensor),
        ("kl_student", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("djs", Tensor),
        ("dq_student", Tensor),
        ("dk_student", Tensor),
        ("dq_teacher", Tensor),
        ("dk_teacher", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
        ("weight", C.c_float),
        ("causal", C.c_int32),
    ]


class XKlIndexerForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("weight", Tensor),
        ("kl", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("causal", C.c_int32),
    ]


class XKlIndexerBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("weight", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("dkl", Tensor),
        ("dq_student", Tensor),
        ("dk_student", Tensor),
        ("dweight", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("causal", C.c_int32),
    ]


class XKlGatherForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("index", Tensor),
        ("kl", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
    ]


class XKlGatherBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("index", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("kl", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("dkl", Tensor),
        ("dq_student", Tensor),
        ("dk_student", Tensor),
        ("dq_teacher", Tensor),
        ("dk_teacher", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
    ]


class XKlPoolForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("kl", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("head_window", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("block_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
        ("causal", C.c_int32),
        ("pool", C.c_int32),
    ]


class XKlPoolBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q_teacher", Tensor),
        ("k_teacher", Tensor),
        ("q_student", Tensor),
        ("k_student", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("head_window", Tensor),
        ("lse_teacher", Tensor),
        ("lse_student", Tensor),
        ("dkl", Tensor),
        ("dq_student", Tensor),
        ("dk_student", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("block_keys", C.c_int64),
        ("scale_teacher", C.c_float),
        ("scale_student", C.c_float),
        ("causal", C.c_int32),
        ("pool", C.c_int32),
    ]


class XMultiTokenForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("weight", Tensor),
        ("mix_before", Tensor),
        ("mix_after", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("history", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
    ]


class XMultiTokenBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("weight", Tensor),
        ("mix_before", Tensor),
        ("mix_after", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dweight", Tensor),
        ("dmix_before", Tensor),
        ("dmix_after", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("history", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
    ]


class XGroupNormForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("gain", Tensor),
        ("y", Tensor),
        ("query_len", Tensor),
        ("factor", C.c_float),
        ("eps", C.c_float),
    ]


class XGroupNormBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("gain", Tensor),
        ("query_len", Tensor),
        ("dy", Tensor),
        ("dx", Tensor),
        ("dgain", Tensor),
        ("factor", C.c_float),
        ("eps", C.c_float),
    ]


class XNormGateForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("gate", Tensor),
        ("add_before", Tensor),
        ("add_after", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("y", Tensor),
        ("query_len", Tensor),
        ("group", C.c_int64),
        ("factor", C.c_float),
        ("eps", C.c_float),
        ("norm", C.c_int32),
        ("act", C.c_int32),
        ("gate_first", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XNormGateBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("gate", Tensor),
        ("add_before", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("query_len", Tensor),
        ("dy", Tensor),
        ("dx", Tensor),
        ("dgate", Tensor),
        ("dweight", Tensor),
        ("dbias", Tensor),
        ("group", C.c_int64),
        ("factor", C.c_float),
        ("eps", C.c_float),
        ("norm", C.c_int32),
        ("act", C.c_int32),
        ("gate_first", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XSparseForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("q_value", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("index_bias", Tensor),
        ("column", Tensor),
        ("column_count", Tensor),
        ("row_begin", Tensor),
        ("key_begin", Tensor),
        ("tile", Tensor),
        ("tile_bits", Tensor),
        ("sink_logit", Tensor),
        ("head_map", Tensor),
        ("skip_head", Tensor),
        ("mass", Tensor),
        ("skipped", Tensor),
        ("k_scale", Tensor),
        ("v_scale", Tensor),
        ("context_len", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("key_step", C.c_int64),
        ("key_shift", C.c_int64),
        ("first_keys", C.c_int64),
        ("last_keys", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("skip_margin", C.c_float),
        ("causal", C.c_int32),
        ("splits", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("entry_keys", C.c_int32),
    ]


class XSparseBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("row_begin", Tensor),
        ("key_begin", Tensor),
        ("tile", Tensor),
        ("tile_bits", Tensor),
        ("sink_logit", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dlse", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dsink_logit", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("first_keys", C.c_int64),
        ("last_keys", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("causal", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("entry_keys", C.c_int32),
        ("nondeterministic", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XSelectBlockParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("row", Tensor),
        ("column", Tensor),
        ("column_low", Tensor),
        ("score", Tensor),
        ("column_weight", Tensor),
        ("row_lse", Tensor),
        ("block_mask", Tensor),
        ("forced", Tensor),
        ("row_forced", Tensor),
        ("column_forced", Tensor),
        ("count_head", Tensor),
        ("cover_head", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("kept_score", Tensor),
        ("kept_mass", Tensor),
        ("score_out", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("count", C.c_int64),
        ("min_keep", C.c_int64),
        ("max_keep", C.c_int64),
        ("min_extra", C.c_int64),
        ("force_first", C.c_int64),
        ("force_previous", C.c_int64),
        ("force_last", C.c_int64),
        ("remap_step", C.c_int64),
        ("remap_span", C.c_int64),
        ("scale", C.c_float),
        ("ratio", C.c_float),
        ("cover", C.c_float),
        ("threshold", C.c_float),
        ("measure", C.c_int32),
        ("normalise", C.c_int32),
        ("reduce", C.c_int32),
        ("reduce_raw", C.c_int32),
        ("rule", C.c_int32),
        ("scope", C.c_int32),
        ("ratio_up", C.c_int32),
        ("forced_count", C.c_int32),
        ("force_own", C.c_int32),
        ("complete", C.c_int32),
        ("causal", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XSelectTokenParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("k_scale", Tensor),
        ("code_q", Tensor),
        ("code", Tensor),
        ("weight", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("context_len", Tensor),
        ("block_mask", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("kept_score", Tensor),
        ("kept_mass", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("key_step", C.c_int64),
        ("key_shift", C.c_int64),
        ("count", C.c_int64),
        ("first_keys", C.c_int64),
        ("last_keys", C.c_int64),
        ("force_last", C.c_int64),
        ("pool_keys", C.c_int64),
        ("subset", C.c_int64),
        ("block_keys", C.c_int64),
        ("scale", C.c_float),
        ("ratio", C.c_float),
        ("measure", C.c_int32),
        ("reduce", C.c_int32),
        ("causal", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XSelectLineParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("bits", Tensor),
        ("vertical", Tensor),
        ("vertical_count", Tensor),
        ("slash", Tensor),
        ("slash_count", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("column", Tensor),
        ("column_count", Tensor),
        ("bits_out", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("aligned", C.c_int32),
        ("in_blocks", C.c_int32),
        ("causal", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XSelectHeadsParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("query_len", Tensor),
        ("clusters_of", Tensor),
        ("head_map", Tensor),
        ("label", Tensor),
        ("count", Tensor),
        ("clusters", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
    ]


class XEvictForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("k_kept", Tensor),
        ("v_kept", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("window", C.c_int64),
        ("width", C.c_int64),
        ("scale", C.c_float),
        ("reserved", C.c_int32),
    ]


class XIndexedForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("q_value", Tensor),
        ("index_q", Tensor),
        ("index_k", Tensor),
        ("index_k_scale", Tensor),
        ("block_k", Tensor),
        ("weight", Tensor),
        ("code_q", Tensor),
        ("code", Tensor),
        ("v_mean", Tensor),
        ("sink_logit", Tensor),
        ("k_scale", Tensor),
        ("v_scale", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("context_len", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("lists", C.c_int64),
        ("count", C.c_int64),
        ("first_keys", C.c_int64),
        ("last_keys", C.c_int64),
        ("force_last", C.c_int64),
        ("pool_keys", C.c_int64),
        ("index_step", C.c_int64),
        ("subset", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("index_scale", C.c_float),
        ("ratio", C.c_float),
        ("measure", C.c_int32),
        ("reduce", C.c_int32),
        ("causal", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XQuantisedForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("sink_logit", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("skipped", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("seed", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("v_scale_max", C.c_float),
        ("skip_margin", C.c_float),
        ("causal", C.c_int32),
        ("hadamard", C.c_int32),
        ("code", C.c_int32),
        ("v_code", C.c_int32),
        ("q_group", C.c_int32),
        ("k_group", C.c_int32),
        ("v_group", C.c_int32),
        ("q_block", C.c_int32),
        ("k_block", C.c_int32),
        ("v_block", C.c_int32),
        ("q_smooth", C.c_int32),
        ("k_smooth", C.c_int32),
        ("p_format", C.c_int32),
        ("accumulate", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("entry_keys", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XQuantBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
        ("k_smooth", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XPooledForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("row", Tensor),
        ("column", Tensor),
        ("column_low", Tensor),
        ("summary", Tensor),
        ("row_similar_least", Tensor),
        ("column_similar_least", Tensor),
        ("cover_head", Tensor),
        ("sink_logit", Tensor),
        ("k_scale", Tensor),
        ("v_scale", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("old_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("lists", C.c_int64),
        ("count", C.c_int64),
        ("min_keep", C.c_int64),
        ("min_extra", C.c_int64),
        ("force_first", C.c_int64),
        ("force_previous", C.c_int64),
        ("force_last", C.c_int64),
        ("subset", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("select_scale", C.c_float),
        ("ratio", C.c_float),
        ("cover", C.c_float),
        ("threshold", C.c_float),
        ("skip_margin", C.c_float),
        ("measure", C.c_int32),
        ("normalise", C.c_int32),
        ("reduce", C.c_int32),
        ("rule", C.c_int32),
        ("scope", C.c_int32),
        ("forced_count", C.c_int32),
        ("force_own", C.c_int32),
        ("causal", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("quantise", C.c_int32),
        ("code", C.c_int32),
        ("v_code", C.c_int32),
        ("q_group", C.c_int32),
        ("k_group", C.c_int32),
        ("v_group", C.c_int32),
        ("q_block", C.c_int32),
        ("k_block", C.c_int32),
        ("v_block", C.c_int32),
        ("k_smooth", C.c_int32),
        ("p_format", C.c_int32),
        ("accumulate", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XProbedForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("sample", Tensor),
        ("query_position", Tensor),
        ("cover_head", Tensor),
        ("sink_logit", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("column", Tensor),
        ("column_count", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("lists", C.c_int64),
        ("probe_rows", C.c_int64),
        ("count", C.c_int64),
        ("slash_count", C.c_int64),
        ("slash_force_first", C.c_int64),
        ("force_first", C.c_int64),
        ("force_previous", C.c_int64),
        ("full_last", C.c_int64),
        ("first_keys", C.c_int64),
        ("last_keys", C.c_int64),
        ("group_stride", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
        ("cover", C.c_float),
        ("threshold", C.c_float),
        ("skip_margin", C.c_float),
        ("kind", C.c_int32),
        ("reduce", C.c_int32),
        ("rule", C.c_int32),
        ("forced_count", C.c_int32),
        ("force_own", C.c_int32),
        ("reversed", C.c_int32),
        ("causal", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
    ]


class XFlexForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("key_max", C.c_int64),
        ("min_budget", C.c_int64),
        ("max_budget", C.c_int64),
        ("scale", C.c_float),
        ("cover", C.c_float),
        ("threshold", C.c_float),
        ("block", C.c_int32),
    ]


class XNsaForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("k_compressed", Tensor),
        ("v_compressed", Tensor),
        ("k_window", Tensor),
        ("v_window", Tensor),
        ("gate_compressed", Tensor),
        ("gate_selected", Tensor),
        ("gate_window", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("compressed_len", Tensor),
        ("page_table", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("o_compressed", Tensor),
        ("o_selected", Tensor),
        ("o_window", Tensor),
        ("lse_compressed", Tensor),
        ("lse_selected", Tensor),
        ("lse_window", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("compress_keys", C.c_int64),
        ("compress_step", C.c_int64),
        ("count", C.c_int64),
        ("window", C.c_int64),
        ("scale", C.c_float),
        ("block_keys", C.c_int32),
        ("gate_plain", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XNsaBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("k_compressed", Tensor),
        ("v_compressed", Tensor),
        ("k_window", Tensor),
        ("v_window", Tensor),
        ("gate_compressed", Tensor),
        ("gate_selected", Tensor),
        ("gate_window", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("compressed_len", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("o_compressed", Tensor),
        ("o_selected", Tensor),
        ("o_window", Tensor),
        ("lse_compressed", Tensor),
        ("lse_selected", Tensor),
        ("lse_window", Tensor),
        ("dout", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dk_compressed", Tensor),
        ("dv_compressed", Tensor),
        ("dk_window", Tensor),
        ("dv_window", Tensor),
        ("dgate_compressed", Tensor),
        ("dgate_selected", Tensor),
        ("dgate_window", Tensor),
        ("compress_keys", C.c_int64),
        ("compress_step", C.c_int64),
        ("window", C.c_int64),
        ("scale", C.c_float),
        ("block_keys", C.c_int32),
        ("gate_plain", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XInfllmForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("q_far", Tensor),
        ("k", Tensor),
        ("k_window", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("representative", Tensor),
        ("local_score", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("block_len", Tensor),
        ("page_table", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("window", C.c_int64),
        ("init_keys", C.c_int64),
        ("count", C.c_int64),
        ("scale", C.c_float),
        ("block_keys", C.c_int32),
    ]


class XCompressedForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("k_compressed", Tensor),
        ("v_compressed", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("index_q", Tensor),
        ("index_k", Tensor),
        ("weight", Tensor),
        ("sink_logit", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("compressed_len", Tensor),
        ("page_table", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("key_max", C.c_int64),
        ("compress_step", C.c_int64),
        ("count", C.c_int64),
        ("window", C.c_int64),
        ("scale", C.c_float),
        ("index_scale", C.c_float),
    ]


class XCompressedBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("k_compressed", Tensor),
        ("v_compressed", Tensor),
        ("sink_logit", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("compressed_len", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dk_compressed", Tensor),
        ("dv_compressed", Tensor),
        ("dsink_logit", Tensor),
        ("compress_step", C.c_int64),
        ("window", C.c_int64),
        ("scale", C.c_float),
        ("reserved", C.c_int32),
    ]


class XProjectForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("weight2", Tensor),
        ("bias2", Tensor),
        ("weight3", Tensor),
        ("bias3", Tensor),
        ("norm_weight", Tensor),
        ("position", Tensor),
        ("cos", Tensor),
        ("sin", Tensor),
        ("y", Tensor),
        ("code", Tensor),
        ("norm_eps", C.c_float),
        ("act", C.c_int32),
        ("bits", C.c_int32),
        ("rope_begin", C.c_int32),
        ("rope_interleaved", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XProjectBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("weight2", Tensor),
        ("bias2", Tensor),
        ("weight3", Tensor),
        ("bias3", Tensor),
        ("norm_weight", Tensor),
        ("position", Tensor),
        ("cos", Tensor),
        ("sin", Tensor),
        ("dy", Tensor),
        ("dx", Tensor),
        ("dweight", Tensor),
        ("dbias", Tensor),
        ("dweight2", Tensor),
        ("dbias2", Tensor),
        ("dweight3", Tensor),
        ("dbias3", Tensor),
        ("dnorm_weight", Tensor),
        ("norm_eps", C.c_float),
        ("act", C.c_int32),
        ("rope_begin", C.c_int32),
        ("rope_interleaved", C.c_int32),
    ]


class XGraphAppendParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("k", Tensor),
        ("q", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("old_len", Tensor),
        ("neighbour", Tensor),
        ("neighbour_count", Tensor),
        ("entry", Tensor),
        ("nearest", C.c_int64),
        ("kept", C.c_int64),
        ("added", C.c_int64),
        ("width", C.c_int64),
    ]


class XSelectGraphParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("neighbour", Tensor),
        ("neighbour_count", Tensor),
        ("entry", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("scanned", Tensor),
        ("count", C.c_int64),
        ("ef", C.c_int64),
    ]


class XGraphForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("neighbour", Tensor),
        ("neighbour_count", Tensor),
        ("entry", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("scanned", Tensor),
        ("count", C.c_int64),
        ("ef", C.c_int64),
        ("scale", C.c_float),
        ("softcap", C.c_float),
    ]


class XLshAppendParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("code", Tensor),
        ("bucket", Tensor),
        ("link", Tensor),
        ("query_len", Tensor),
        ("old_len", Tensor),
    ]


class XSelectLshParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("code_q", Tensor),
        ("bucket", Tensor),
        ("link", Tensor),
        ("q", Tensor),
        ("k", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("index_bias", Tensor),
        ("min_match", C.c_int64),
        ("bits", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XLshForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("code_q", Tensor),
        ("bucket", Tensor),
        ("link", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("index", Tensor),
        ("index_count", Tensor),
        ("index_bias", Tensor),
        ("max_keys", C.c_int64),
        ("min_match", C.c_int64),
        ("scale", C.c_float),
        ("bits", C.c_int32),
    ]


class XGsaForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("gate", Tensor),
        ("state_k_in", Tensor),
        ("state_v_in", Tensor),
        ("o", Tensor),
        ("state_k_out", Tensor),
        ("state_v_out", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("state_out_row", Tensor),
        ("output_from", Tensor),
        ("token_max", C.c_int64),
        ("scale", C.c_float),
        ("gate_bound", C.c_float),
        ("gate_tau", C.c_float),
        ("gate_map", C.c_int32),
        ("map_q", C.c_int32),
        ("map_k", C.c_int32),
    ]


class XGsaBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("gate", Tensor),
        ("state_k_in", Tensor),
        ("state_v_in", Tensor),
        ("dout", Tensor),
        ("dstate_k_out", Tensor),
        ("dstate_v_out", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dgate", Tensor),
        ("dstate_k_in", Tensor),
        ("dstate_v_in", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("output_from", Tensor),
        ("token_max", C.c_int64),
        ("scale", C.c_float),
        ("gate_bound", C.c_float),
        ("gate_tau", C.c_float),
        ("gate_map", C.c_int32),
        ("map_q", C.c_int32),
        ("map_k", C.c_int32),
    ]


class XTpaForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("a_k", Tensor),
        ("b_k", Tensor),
        ("a_v", Tensor),
        ("b_v", Tensor),
        ("q", Tensor),
        ("a_q", Tensor),
        ("b_q", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("context_len", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("key_step", C.c_int64),
        ("key_shift", C.c_int64),
        ("scale", C.c_float),
        ("scale_q", C.c_float),
        ("scale_k", C.c_float),
        ("scale_v", C.c_float),
        ("causal", C.c_int32),
        ("splits", C.c_int32),
    ]


class XTpaBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("a_k", Tensor),
        ("b_k", Tensor),
        ("a_v", Tensor),
        ("b_v", Tensor),
        ("q", Tensor),
        ("a_q", Tensor),
        ("b_q", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("dout", Tensor),
        ("dlse", Tensor),
        ("da_k", Tensor),
        ("db_k", Tensor),
        ("da_v", Tensor),
        ("db_v", Tensor),
        ("dq", Tensor),
        ("da_q", Tensor),
        ("db_q", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale", C.c_float),
        ("scale_q", C.c_float),
        ("scale_k", C.c_float),
        ("scale_v", C.c_float),
        ("causal", C.c_int32),
        ("nondeterministic", C.c_int32),
    ]


class XKvAppendParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("k_new", Tensor),
        ("v_new", Tensor),
        ("k_code", Tensor),
        ("k_scale", Tensor),
        ("k_zero", Tensor),
        ("v_code", Tensor),
        ("v_scale", Tensor),
        ("v_zero", Tensor),
        ("k_tail", Tensor),
        ("v_tail", Tensor),
        ("k_factor", Tensor),
        ("v_factor", Tensor),
        ("k_level", Tensor),
        ("v_level", Tensor),
        ("k_offset", Tensor),
        ("k_range", Tensor),
        ("v_bound", Tensor),
        ("k_norm", Tensor),
        ("v_norm", Tensor),
        ("k_outlier", Tensor),
        ("v_outlier", Tensor),
        ("k_first", Tensor),
        ("v_first", Tensor),
        ("counter", Tensor),
        ("page_table", Tensor),
        ("query_start", Tensor),
        ("query_len", Tensor),
        ("cache_row", Tensor),
        ("query_max", C.c_int64),
        ("bits", C.c_int32),
        ("group", C.c_int32),
        ("flush", C.c_int32),
        ("format", C.c_int32),
        ("v_bits", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XKvDecodeParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k_code", Tensor),
        ("k_scale", Tensor),
        ("k_zero", Tensor),
        ("v_code", Tensor),
        ("v_scale", Tensor),
        ("v_zero", Tensor),
        ("k_tail", Tensor),
        ("v_tail", Tensor),
        ("k_factor", Tensor),
        ("v_factor", Tensor),
        ("k_level", Tensor),
        ("v_level", Tensor),
        ("k_offset", Tensor),
        ("k_range", Tensor),
        ("v_bound", Tensor),
        ("k_norm", Tensor),
        ("v_norm", Tensor),
        ("k_outlier", Tensor),
        ("v_outlier", Tensor),
        ("k_first", Tensor),
        ("v_first", Tensor),
        ("counter", Tensor),
        ("page_table", Tensor),
        ("o", Tensor),
        ("lse", Tensor),
        ("query_start", Tensor),
        ("query_len", Tensor),
        ("cache_row", Tensor),
        ("sink_logit", Tensor),
        ("cos", Tensor),
        ("sin", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
        ("bits", C.c_int32),
        ("group", C.c_int32),
        ("splits", C.c_int32),
        ("format", C.c_int32),
        ("rope_begin", C.c_int32),
        ("rope_interleaved", C.c_int32),
        ("v_bits", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XConv1dForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("state_in", Tensor),
        ("y", Tensor),
        ("state_out", Tensor),
        ("snapshot", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("state_out_row", Tensor),
        ("output_from", Tensor),
        ("snapshot_row", Tensor),
        ("token_max", C.c_int64),
        ("snapshot_every", C.c_int64),
        ("activation", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XConv1dBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("state_in", Tensor),
        ("dy", Tensor),
        ("dstate_out", Tensor),
        ("dx", Tensor),
        ("dweight", Tensor),
        ("dbias", Tensor),
        ("dstate_in", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("output_from", Tensor),
        ("token_max", C.c_int64),
        ("activation", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XGlaForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("gate_head", Tensor),
        ("gate_key", Tensor),
        ("gate_value", Tensor),
        ("gate_rate", Tensor),
        ("gate_bias", Tensor),
        ("select", Tensor),
        ("bonus", Tensor),
        ("skip", Tensor),
        ("state_in", Tensor),
        ("z_in", Tensor),
        ("o", Tensor),
        ("state_out", Tensor),
        ("z_out", Tensor),
        ("snapshot", Tensor),
        ("z_snapshot", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("state_out_row", Tensor),
        ("output_from", Tensor),
        ("snapshot_row", Tensor),
        ("key_start", Tensor),
        ("key_len", Tensor),
        ("token_max", C.c_int64),
        ("snapshot_every", C.c_int64),
        ("scale", C.c_float),
        ("eps", C.c_float),
        ("gate_bound", C.c_float),
        ("gate_tau", C.c_float),
        ("gate_map", C.c_int32),
        ("map_q", C.c_int32),
        ("map_k", C.c_int32),
        ("full", C.c_int32),
        ("read_before", C.c_int32),
        ("normalise", C.c_int32),
        ("bonus_sigmoid", C.c_int32),
        ("splits", C.c_int32),
    ]


class XGlaBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("gate_head", Tensor),
        ("gate_key", Tensor),
        ("gate_value", Tensor),
        ("gate_rate", Tensor),
        ("gate_bias", Tensor),
        ("select", Tensor),
        ("bonus", Tensor),
        ("skip", Tensor),
        ("state_in", Tensor),
        ("z_in", Tensor),
        ("dout", Tensor),
        ("dstate_out", Tensor),
        ("dz_out", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dgate_head", Tensor),
        ("dgate_key", Tensor),
        ("dgate_value", Tensor),
        ("dgate_rate", Tensor),
        ("dgate_bias", Tensor),
        ("dselect", Tensor),
        ("dbonus", Tensor),
        ("dskip", Tensor),
        ("dstate_in", Tensor),
        ("dz_in", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("output_from", Tensor),
        ("key_start", Tensor),
        ("key_len", Tensor),
        ("token_max", C.c_int64),
        ("scale", C.c_float),
        ("eps", C.c_float),
        ("gate_bound", C.c_float),
        ("gate_tau", C.c_float),
        ("gate_map", C.c_int32),
        ("map_q", C.c_int32),
        ("map_k", C.c_int32),
        ("full", C.c_int32),
        ("read_before", C.c_int32),
        ("normalise", C.c_int32),
        ("bonus_sigmoid", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XDeltaForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("beta", Tensor),
        ("erase", Tensor),
        ("gate_head", Tensor),
        ("gate_key", Tensor),
        ("gate_rate", Tensor),
        ("gate_bias", Tensor),
        ("low_a", Tensor),
        ("low_b", Tensor),
        ("state_in", Tensor),
        ("o", Tensor),
        ("state_out", Tensor),
        ("snapshot", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("state_out_row", Tensor),
        ("output_from", Tensor),
        ("snapshot_row", Tensor),
        ("token_max", C.c_int64),
        ("snapshot_every", C.c_int64),
        ("scale", C.c_float),
        ("eps", C.c_float),
        ("gate_bound", C.c_float),
        ("gate_tau", C.c_float),
        ("gate_map", C.c_int32),
        ("beta_map", C.c_int32),
        ("l2_norm", C.c_int32),
        ("splits", C.c_int32),
    ]


class XDeltaBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("beta", Tensor),
        ("erase", Tensor),
        ("gate_head", Tensor),
        ("gate_key", Tensor),
        ("gate_rate", Tensor),
        ("gate_bias", Tensor),
        ("low_a", Tensor),
        ("low_b", Tensor),
        ("state_in", Tensor),
        ("dout", Tensor),
        ("dstate_out", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dbeta", Tensor),
        ("derase", Tensor),
        ("dgate_head", Tensor),
        ("dgate_key", Tensor),
        ("dgate_rate", Tensor),
        ("dgate_bias", Tensor),
        ("dlow_a", Tensor),
        ("dlow_b", Tensor),
        ("dstate_in", Tensor),
        ("start", Tensor),
        ("len", Tensor),
        ("state_row", Tensor),
        ("output_from", Tensor),
        ("token_max", C.c_int64),
        ("scale", C.c_float),
        ("eps", C.c_float),
        ("gate_bound", C.c_float),
        ("gate_tau", C.c_float),
        ("gate_map", C.c_int32),
        ("beta_map", C.c_int32),
        ("l2_norm", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XRecipe(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("name", C.c_char_p),
        ("title", C.c_char_p),
        ("paper", C.c_char_p),
        ("operation", C.c_char_p),
        ("backward", C.c_char_p),
        ("numbers", C.c_char_p),
        ("needs", C.c_char_p),
        ("words", C.c_char_p),
        ("year", C.c_int64),
    ]


class XPoolForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("y", Tensor),
        ("similar", Tensor),
        ("dissimilar", Tensor),
        ("similar_least", Tensor),
        ("rank_score", Tensor),
        ("gate", Tensor),
        ("bias", Tensor),
        ("previous", Tensor),
        ("key_begin", Tensor),
        ("key_start", Tensor),
        ("key_len", Tensor),
        ("old_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("key_max", C.c_int64),
        ("block", C.c_int64),
        ("step", C.c_int64),
        ("ranked", C.c_int64),
        ("want", C.c_int32),
        ("complete", C.c_int32),
        ("overlap", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XPoolBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("dy", Tensor),
        ("gate", Tensor),
        ("bias", Tensor),
        ("key_begin", Tensor),
        ("key_start", Tensor),
        ("key_len", Tensor),
        ("dx", Tensor),
        ("dgate", Tensor),
        ("dbias", Tensor),
        ("key_max", C.c_int64),
        ("block", C.c_int64),
        ("step", C.c_int64),
        ("want", C.c_int32),
        ("complete", C.c_int32),
        ("overlap", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XProbeForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("lse_in", Tensor),
        ("query_position", Tensor),
        ("lse", Tensor),
        ("column_sum", Tensor),
        ("diagonal_sum", Tensor),
        ("block_sum", Tensor),
        ("block_max", Tensor),
        ("query_start", Tensor),
        ("key_start", Tensor),
        ("query_len", Tensor),
        ("key_len", Tensor),
        ("page_table", Tensor),
        ("cache_row", Tensor),
        ("context_len", Tensor),
        ("query_max", C.c_int64),
        ("key_max", C.c_int64),
        ("window_left", C.c_int64),
        ("window_right", C.c_int64),
        ("sink_keys", C.c_int64),
        ("key_step", C.c_int64),
        ("key_shift", C.c_int64),
        ("group_stride", C.c_int64),
        ("scale", C.c_float),
        ("causal", C.c_int32),
        ("block_rows", C.c_int32),
        ("block_keys", C.c_int32),
        ("reversed", C.c_int32),
        ("reduce", C.c_int32),
    ]


class XCombineForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("x2", Tensor),
        ("x3", Tensor),
        ("x4", Tensor),
        ("coarse", Tensor),
        ("gate", Tensor),
        ("gate2", Tensor),
        ("gate3", Tensor),
        ("gate4", Tensor),
        ("gate_coarse", Tensor),
        ("row_begin", Tensor),
        ("query_len", Tensor),
        ("y", Tensor),
        ("block_rows", C.c_int64),
        ("coefficient", C.c_float),
        ("coefficient2", C.c_float),
        ("coefficient3", C.c_float),
        ("coefficient4", C.c_float),
        ("coefficient_coarse", C.c_float),
        ("gate_act", C.c_int32),
        ("gate2_act", C.c_int32),
        ("gate3_act", C.c_int32),
        ("gate4_act", C.c_int32),
        ("gate_coarse_act", C.c_int32),
    ]


class XCombineBackwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("x", Tensor),
        ("x2", Tensor),
        ("x3", Tensor),
        ("x4", Tensor),
        ("coarse", Tensor),
        ("gate", Tensor),
        ("gate2", Tensor),
        ("gate3", Tensor),
        ("gate4", Tensor),
        ("gate_coarse", Tensor),
        ("row_begin", Tensor),
        ("query_len", Tensor),
        ("dy", Tensor),
        ("dx", Tensor),
        ("dx2", Tensor),
        ("dx3", Tensor),
        ("dx4", Tensor),
        ("dcoarse", Tensor),
        ("dgate", Tensor),
        ("dgate2", Tensor),
        ("dgate3", Tensor),
        ("dgate4", Tensor),
        ("dgate_coarse", Tensor),
        ("block_rows", C.c_int64),
        ("coefficient", C.c_float),
        ("coefficient2", C.c_float),
        ("coefficient3", C.c_float),
        ("coefficient4", C.c_float),
        ("coefficient_coarse", C.c_float),
        ("gate_act", C.c_int32),
        ("gate2_act", C.c_int32),
        ("gate3_act", C.c_int32),
        ("gate4_act", C.c_int32),
        ("gate_coarse_act", C.c_int32),
    ]


class XCompareForwardParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("reference", Tensor),
        ("candidate", Tensor),
        ("query_len", Tensor),
        ("distance", Tensor),
        ("best", Tensor),
        ("measure", C.c_int32),
        ("reserved", C.c_int32),
    ]


class XCacheStepParams(C.Structure):
    _fields_ = [
        ("struct_size", C.c_size_t),
        ("k", Tensor),
        ("v", Tensor),
        ("position", Tensor),
        ("count", Tensor),
        ("score", Tensor),
        ("k_new", Tensor),
        ("v_new", Tensor),
        ("mass", Tensor),
        ("query_len", Tensor),
        ("old_len", Tensor),
        ("capacity", Tensor),
        ("sink_keys", C.c_int64),
        ("recent", C.c_int64),
        ("heavy", C.c_int64),
        ("rule", C.c_int32),
        ("reserved", C.c_int32),
    ]


SIZES = {
    Tensor: 96,
    AttentionForwardParams: 2496,
    AttentionBackwardParams: 2472,
    MergeForwardParams: 488,
    MergeBackwardParams: 872,
    CacheAppendParams: 1864,
    CacheCopyParams: 296,
    CacheGetParams: 688,
    RopeForwardParams: 600,
    RopeTableGetParams: 336,
    QuantQuantizeParams: 1008,
    QuantDequantizeParams: 624,
    QuantForwardParams: 2320,
    KlForwardParams: 1416,
    KlBackwardParams: 1896,
    ConvAttentionForwardParams: 1200,
    ConvAttentionBackwardParams: 1488,
    TraceForwardParams: 2064,
    XKlJensenShannonForwardParams: 1408,
    XKlJensenShannonBackwardParams: 1792,
    XKlIndexerForwardParams: 1208,
    XKlIndexerBackwardParams: 1496,
    XKlGatherForwardParams: 1184,
    XKlGatherBackwardParams: 1664,
    XKlPoolForwardParams: 1224,
    XKlPoolBackwardParams: 1416,
    XMultiTokenForwardParams: 1384,
    XMultiTokenBackwardParams: 1768,
    XGroupNormForwardParams: 400,
    XGroupNormBackwardParams: 592,
    XNormGateForwardParams: 808,
    XNormGateBackwardParams: 1096,
    XSparseForwardParams: 2896,
    XSparseBackwardParams: 2208,
    XSelectBlockParams: 2184,
    XSelectTokenParams: 1872,
    XSelectLineParams: 1392,
    XSelectHeadsParams: 696,
    XEvictForwardParams: 896,
    XIndexedForwardParams: 2640,
    XQuantisedForwardParams: 1192,
    XQuantBackwardParams: 1112,
    XPooledForwardParams: 2512,
    XProbedForwardParams: 1992,
    XFlexForwardParams: 912,
    XNsaForwardParams: 2280,
    XNsaBackwardParams: 3120,
    XInfllmForwardParams: 1480,
    XCompressedForwardParams: 1680,
    XCompressedBackwardParams: 1952,
    XProjectForwardParams: 1280,
    XProjectBackwardParams: 1944,
    XGraphAppendParams: 808,
    XSelectGraphParams: 984,
    XGraphForwardParams: 1280,
    XLshAppendParams: 488,
    XSelectLshParams: 984,
    XLshForwardParams: 1280,
    XGsaForwardParams: 1384,
    XGsaBackwardParams: 1864,
    XTpaForwardParams: 1624,
    XTpaBackwardParams: 2184,
    XKvAppendParams: 2728,
    XKvDecodeParams: 3160,
    XConv1dForwardParams: 1280,
    XConv1dBackwardParams: 1368,
    XGlaForwardParams: 2568,
    XGlaBackwardParams: 3424,
    XDeltaForwardParams: 2072,
    XDeltaBackwardParams: 2928,
    XRecipe: 80,
    XPoolForwardParams: 1496,
    XPoolBackwardParams: 1008,
    XProbeForwardParams: 1632,
    XCombineForwardParams: 1304,
    XCombineBackwardParams: 2264,
    XCompareForwardParams: 496,
    XCacheStepParams: 1096,
}
for _struct, _size in SIZES.items():
    if C.sizeof(_struct) != _size:
        raise ImportError(f"{_struct.__name__} has {C.sizeof(_struct)} bytes, wanted {_size}")

FUNCTIONS = {
    "fovea_version": (C.c_int32, []),
    "fovea_build_get": (C.c_char_p, [C.c_int]),
    "fovea_last_error": (C.c_char_p, []),
    "fovea_status_name": (C.c_char_p, [C.c_int]),
    "fovea_contiguous": (Tensor, [C.c_void_p, C.c_int, C.c_int32, C.POINTER(C.c_int64)]),
    "fovea_device_count": (C.c_int, [C.c_int, C.POINTER(C.c_int32)]),
    "fovea_context_create": (C.c_int, [C.c_int, C.c_int32, C.POINTER(C.c_void_p)]),
    "fovea_context_destroy": (None, [C.c_void_p]),
    "fovea_context_set_stream": (C.c_int, [C.c_void_p, C.c_void_p]),
    "fovea_context_set_workspace": (C.c_int, [C.c_void_p, C.c_void_p, C.c_size_t]),
    "fovea_context_set_threads": (C.c_int, [C.c_void_p, C.c_int32]),
    "fovea_context_get": (C.c_int, [C.c_void_p, C.c_int, C.POINTER(C.c_int64)]),
    "fovea_context_synchronize": (C.c_int, [C.c_void_p]),
    "fovea_context_wait": (C.c_int, [C.c_void_p, C.c_void_p]),
    "fovea_context_last_kernel": (C.c_char_p, [C.c_void_p]),
    "fovea_context_last_plan": (C.c_char_p, [C.c_void_p]),
    "fovea_context_last_reasons": (C.c_char_p, [C.c_void_p]),
    "fovea_alloc": (C.c_int, [C.c_void_p, C.c_int, C.c_size_t, C.POINTER(C.c_void_p)]),
    "fovea_free": (C.c_int, [C.c_void_p, C.c_void_p]),
    "fovea_copy": (C.c_int, [C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t]),
    "fovea_attention_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(AttentionForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_attention_forward": (C.c_int, [C.c_void_p, C.POINTER(AttentionForwardParams)]),
    "fovea_attention_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(AttentionBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_attention_backward": (C.c_int, [C.c_void_p, C.POINTER(AttentionBackwardParams)]),
    "fovea_merge_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(MergeForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_merge_forward": (C.c_int, [C.c_void_p, C.POINTER(MergeForwardParams)]),
    "fovea_merge_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(MergeBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_merge_backward": (C.c_int, [C.c_void_p, C.POINTER(MergeBackwardParams)]),
    "fovea_cache_append_workspace": (C.c_int, [C.c_void_p, C.POINTER(CacheAppendParams),
        C.POINTER(C.c_size_t)]),
    "fovea_cache_append": (C.c_int, [C.c_void_p, C.POINTER(CacheAppendParams)]),
    "fovea_cache_copy_workspace": (C.c_int, [C.c_void_p, C.POINTER(CacheCopyParams),
        C.POINTER(C.c_size_t)]),
    "fovea_cache_copy": (C.c_int, [C.c_void_p, C.POINTER(CacheCopyParams)]),
    "fovea_cache_get_workspace": (C.c_int, [C.c_void_p, C.POINTER(CacheGetParams),
        C.POINTER(C.c_size_t)]),
    "fovea_cache_get": (C.c_int, [C.c_void_p, C.POINTER(CacheGetParams)]),
    "fovea_rope_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(RopeForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_rope_forward": (C.c_int, [C.c_void_p, C.POINTER(RopeForwardParams)]),
    "fovea_rope_table_get_workspace": (C.c_int, [C.c_void_p, C.POINTER(RopeTableGetParams),
        C.POINTER(C.c_size_t)]),
    "fovea_rope_table_get": (C.c_int, [C.c_void_p, C.POINTER(RopeTableGetParams)]),
    "fovea_quant_quantize_workspace": (C.c_int, [C.c_void_p, C.POINTER(QuantQuantizeParams),
        C.POINTER(C.c_size_t)]),
    "fovea_quant_quantize": (C.c_int, [C.c_void_p, C.POINTER(QuantQuantizeParams)]),
    "fovea_quant_dequantize_workspace": (C.c_int, [C.c_void_p, C.POINTER(QuantDequantizeParams),
        C.POINTER(C.c_size_t)]),
    "fovea_quant_dequantize": (C.c_int, [C.c_void_p, C.POINTER(QuantDequantizeParams)]),
    "fovea_quant_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(QuantForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_quant_forward": (C.c_int, [C.c_void_p, C.POINTER(QuantForwardParams)]),
    "fovea_kl_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(KlForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_kl_forward": (C.c_int, [C.c_void_p, C.POINTER(KlForwardParams)]),
    "fovea_kl_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(KlBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_kl_backward": (C.c_int, [C.c_void_p, C.POINTER(KlBackwardParams)]),
    "fovea_conv_attention_forward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(ConvAttentionForwardParams), C.POINTER(C.c_size_t)]),
    "fovea_conv_attention_forward": (C.c_int, [C.c_void_p, C.POINTER(ConvAttentionForwardParams)]),
    "fovea_conv_attention_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(ConvAttentionBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_conv_attention_backward": (C.c_int, [C.c_void_p,
        C.POINTER(ConvAttentionBackwardParams)]),
    "fovea_trace_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(TraceForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_trace_forward": (C.c_int, [C.c_void_p, C.POINTER(TraceForwardParams)]),
    "fovea_x_kl_jensen_shannon_forward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XKlJensenShannonForwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_kl_jensen_shannon_forward": (C.c_int, [C.c_void_p,
        C.POINTER(XKlJensenShannonForwardParams)]),
    "fovea_x_kl_jensen_shannon_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XKlJensenShannonBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_kl_jensen_shannon_backward": (C.c_int, [C.c_void_p,
        C.POINTER(XKlJensenShannonBackwardParams)]),
    "fovea_x_kl_indexer_forward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XKlIndexerForwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_kl_indexer_forward": (C.c_int, [C.c_void_p, C.POINTER(XKlIndexerForwardParams)]),
    "fovea_x_kl_indexer_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XKlIndexerBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_kl_indexer_backward": (C.c_int, [C.c_void_p, C.POINTER(XKlIndexerBackwardParams)]),
    "fovea_x_kl_gather_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XKlGatherForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_kl_gather_forward": (C.c_int, [C.c_void_p, C.POINTER(XKlGatherForwardParams)]),
    "fovea_x_kl_gather_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XKlGatherBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_kl_gather_backward": (C.c_int, [C.c_void_p, C.POINTER(XKlGatherBackwardParams)]),
    "fovea_x_kl_pool_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XKlPoolForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_kl_pool_forward": (C.c_int, [C.c_void_p, C.POINTER(XKlPoolForwardParams)]),
    "fovea_x_kl_pool_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XKlPoolBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_kl_pool_backward": (C.c_int, [C.c_void_p, C.POINTER(XKlPoolBackwardParams)]),
    "fovea_x_multi_token_forward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XMultiTokenForwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_multi_token_forward": (C.c_int, [C.c_void_p, C.POINTER(XMultiTokenForwardParams)]),
    "fovea_x_multi_token_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XMultiTokenBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_multi_token_backward": (C.c_int, [C.c_void_p, C.POINTER(XMultiTokenBackwardParams)]),
    "fovea_x_group_norm_forward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XGroupNormForwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_group_norm_forward": (C.c_int, [C.c_void_p, C.POINTER(XGroupNormForwardParams)]),
    "fovea_x_group_norm_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XGroupNormBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_group_norm_backward": (C.c_int, [C.c_void_p, C.POINTER(XGroupNormBackwardParams)]),
    "fovea_x_norm_gate_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XNormGateForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_norm_gate_forward": (C.c_int, [C.c_void_p, C.POINTER(XNormGateForwardParams)]),
    "fovea_x_norm_gate_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XNormGateBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_norm_gate_backward": (C.c_int, [C.c_void_p, C.POINTER(XNormGateBackwardParams)]),
    "fovea_x_sparse_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSparseForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_sparse_forward": (C.c_int, [C.c_void_p, C.POINTER(XSparseForwardParams)]),
    "fovea_x_sparse_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSparseBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_sparse_backward": (C.c_int, [C.c_void_p, C.POINTER(XSparseBackwardParams)]),
    "fovea_x_select_block_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSelectBlockParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_select_block": (C.c_int, [C.c_void_p, C.POINTER(XSelectBlockParams)]),
    "fovea_x_select_token_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSelectTokenParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_select_token": (C.c_int, [C.c_void_p, C.POINTER(XSelectTokenParams)]),
    "fovea_x_select_line_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSelectLineParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_select_line": (C.c_int, [C.c_void_p, C.POINTER(XSelectLineParams)]),
    "fovea_x_select_heads_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSelectHeadsParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_select_heads": (C.c_int, [C.c_void_p, C.POINTER(XSelectHeadsParams)]),
    "fovea_x_evict_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XEvictForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_evict_forward": (C.c_int, [C.c_void_p, C.POINTER(XEvictForwardParams)]),
    "fovea_x_indexed_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XIndexedForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_indexed_forward": (C.c_int, [C.c_void_p, C.POINTER(XIndexedForwardParams)]),
    "fovea_x_quantised_forward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XQuantisedForwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_quantised_forward": (C.c_int, [C.c_void_p, C.POINTER(XQuantisedForwardParams)]),
    "fovea_x_quant_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XQuantBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_quant_backward": (C.c_int, [C.c_void_p, C.POINTER(XQuantBackwardParams)]),
    "fovea_x_pooled_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XPooledForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_pooled_forward": (C.c_int, [C.c_void_p, C.POINTER(XPooledForwardParams)]),
    "fovea_x_probed_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XProbedForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_probed_forward": (C.c_int, [C.c_void_p, C.POINTER(XProbedForwardParams)]),
    "fovea_x_flex_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XFlexForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_flex_forward": (C.c_int, [C.c_void_p, C.POINTER(XFlexForwardParams)]),
    "fovea_x_nsa_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XNsaForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_nsa_forward": (C.c_int, [C.c_void_p, C.POINTER(XNsaForwardParams)]),
    "fovea_x_nsa_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XNsaBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_nsa_backward": (C.c_int, [C.c_void_p, C.POINTER(XNsaBackwardParams)]),
    "fovea_x_infllm_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XInfllmForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_infllm_forward": (C.c_int, [C.c_void_p, C.POINTER(XInfllmForwardParams)]),
    "fovea_x_compressed_forward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XCompressedForwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_compressed_forward": (C.c_int, [C.c_void_p, C.POINTER(XCompressedForwardParams)]),
    "fovea_x_compressed_backward_workspace": (C.c_int, [C.c_void_p,
        C.POINTER(XCompressedBackwardParams), C.POINTER(C.c_size_t)]),
    "fovea_x_compressed_backward": (C.c_int, [C.c_void_p, C.POINTER(XCompressedBackwardParams)]),
    "fovea_x_project_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XProjectForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_project_forward": (C.c_int, [C.c_void_p, C.POINTER(XProjectForwardParams)]),
    "fovea_x_project_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XProjectBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_project_backward": (C.c_int, [C.c_void_p, C.POINTER(XProjectBackwardParams)]),
    "fovea_x_graph_append_workspace": (C.c_int, [C.c_void_p, C.POINTER(XGraphAppendParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_graph_append": (C.c_int, [C.c_void_p, C.POINTER(XGraphAppendParams)]),
    "fovea_x_select_graph_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSelectGraphParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_select_graph": (C.c_int, [C.c_void_p, C.POINTER(XSelectGraphParams)]),
    "fovea_x_graph_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XGraphForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_graph_forward": (C.c_int, [C.c_void_p, C.POINTER(XGraphForwardParams)]),
    "fovea_x_lsh_append_workspace": (C.c_int, [C.c_void_p, C.POINTER(XLshAppendParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_lsh_append": (C.c_int, [C.c_void_p, C.POINTER(XLshAppendParams)]),
    "fovea_x_select_lsh_workspace": (C.c_int, [C.c_void_p, C.POINTER(XSelectLshParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_select_lsh": (C.c_int, [C.c_void_p, C.POINTER(XSelectLshParams)]),
    "fovea_x_lsh_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XLshForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_lsh_forward": (C.c_int, [C.c_void_p, C.POINTER(XLshForwardParams)]),
    "fovea_x_gsa_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XGsaForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_gsa_forward": (C.c_int, [C.c_void_p, C.POINTER(XGsaForwardParams)]),
    "fovea_x_gsa_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XGsaBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_gsa_backward": (C.c_int, [C.c_void_p, C.POINTER(XGsaBackwardParams)]),
    "fovea_x_tpa_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XTpaForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_tpa_forward": (C.c_int, [C.c_void_p, C.POINTER(XTpaForwardParams)]),
    "fovea_x_tpa_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XTpaBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_tpa_backward": (C.c_int, [C.c_void_p, C.POINTER(XTpaBackwardParams)]),
    "fovea_x_kv_append_workspace": (C.c_int, [C.c_void_p, C.POINTER(XKvAppendParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_kv_append": (C.c_int, [C.c_void_p, C.POINTER(XKvAppendParams)]),
    "fovea_x_kv_decode_workspace": (C.c_int, [C.c_void_p, C.POINTER(XKvDecodeParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_kv_decode": (C.c_int, [C.c_void_p, C.POINTER(XKvDecodeParams)]),
    "fovea_x_conv1d_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XConv1dForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_conv1d_forward": (C.c_int, [C.c_void_p, C.POINTER(XConv1dForwardParams)]),
    "fovea_x_conv1d_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XConv1dBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_conv1d_backward": (C.c_int, [C.c_void_p, C.POINTER(XConv1dBackwardParams)]),
    "fovea_x_gla_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XGlaForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_gla_forward": (C.c_int, [C.c_void_p, C.POINTER(XGlaForwardParams)]),
    "fovea_x_gla_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XGlaBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_gla_backward": (C.c_int, [C.c_void_p, C.POINTER(XGlaBackwardParams)]),
    "fovea_x_delta_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XDeltaForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_delta_forward": (C.c_int, [C.c_void_p, C.POINTER(XDeltaForwardParams)]),
    "fovea_x_delta_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XDeltaBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_delta_backward": (C.c_int, [C.c_void_p, C.POINTER(XDeltaBackwardParams)]),
    "fovea_x_recipe_count": (C.c_int64, []),
    "fovea_x_recipe_at": (C.c_int, [C.c_int64, C.POINTER(XRecipe)]),
    "fovea_x_recipe_get": (C.c_int, [C.c_char_p, C.POINTER(XRecipe)]),
    "fovea_x_recipe_apply": (C.c_int, [C.c_char_p, C.c_char_p, C.c_void_p]),
    "fovea_x_pool_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XPoolForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_pool_forward": (C.c_int, [C.c_void_p, C.POINTER(XPoolForwardParams)]),
    "fovea_x_pool_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XPoolBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_pool_backward": (C.c_int, [C.c_void_p, C.POINTER(XPoolBackwardParams)]),
    "fovea_x_probe_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XProbeForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_probe_forward": (C.c_int, [C.c_void_p, C.POINTER(XProbeForwardParams)]),
    "fovea_x_combine_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XCombineForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_combine_forward": (C.c_int, [C.c_void_p, C.POINTER(XCombineForwardParams)]),
    "fovea_x_combine_backward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XCombineBackwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_combine_backward": (C.c_int, [C.c_void_p, C.POINTER(XCombineBackwardParams)]),
    "fovea_x_compare_forward_workspace": (C.c_int, [C.c_void_p, C.POINTER(XCompareForwardParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_compare_forward": (C.c_int, [C.c_void_p, C.POINTER(XCompareForwardParams)]),
    "fovea_x_cache_step_workspace": (C.c_int, [C.c_void_p, C.POINTER(XCacheStepParams),
        C.POINTER(C.c_size_t)]),
    "fovea_x_cache_step": (C.c_int, [C.c_void_p, C.POINTER(XCacheStepParams)]),
}


def declare(lib):
    """Gives every function of the library its types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
