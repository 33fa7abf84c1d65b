# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fovea" for Hugging Face transformers.

    import fovea.transformers
    fovea.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="fovea")

Inference, generation and training run by `fovea.torch`.  What a model's mask says reaches fovea as
lengths and windows, and an (s, t) array is made only where no lengths say the same:

    mask of transformers               fovea
    causal, bidirectional              causal
    2-D mask, padding at the left      key_first
    2-D mask, padding at the right     key_len and query_len; rows of padding give 0
    2-D mask with holes                mask
    sliding window                     window_left, and window_right where it is bidirectional
    chunked attention                  local_chunk; mask where chunks do not begin at a key
    packed position_ids                varlen_attention; mask with chunked attention
    cu_seq_lens_q and its companions   varlen_attention
    keys of a static cache not in use  key_len
    4-D mask of the caller             mask where it is bool, bias where it is numbers
    or_mask_function, image blocks     mask

Within torch.compile a 2-D mask becomes a mask of keys (b, 1, 1, t), and packed position_ids an array
of bits: give cu_seq_lens_q there.  The position in a static cache is key_len.

softcap, attention sinks (s_aux) and position_bias are served.  dropout, output_attentions, head
masks and paged caches are refused.

Within context_parallel, of fovea.distributed or of torch.distributed.tensor.experimental (which
accelerate enters), the text lies over several ranks.  causal, windows, chunks, softcap and
s_aux are served there; packed texts are those of query_start; masks and caches are refused.

In 8 and 4 bits, without gradients:

    attn_implementation="fovea:sage2"                  q, k and v by a method's name
    generate(past_key_values=QuantisedCache("kivi2"))  a cache of 2 bits

`METHODS` are the names: sage, sage2, sage2_int4, sage2pp, sage3, sagebwd and fa3_fp8, and the names
of fovea.recipe.  They take causal masks, windows, padding at the ends, packed sequences, softcap and
sinks.  Every step quantises all keys anew: for long generation take a cache.  A mask with holes,
chunks and position_bias are refused."""

import functools
import importlib.metadata
import inspect
import sys

__all__ = ["METHODS", "NAME", "Mask", "QuantisedCache", "attention", "mask", "register"]
NAME = "fovea"
PLAIN = {"causal", "window_left", "window_right"}  # what packed sequences may have
_OLDEST = "transformers 5.0 or later"


def register(name=NAME):
    """Makes attn_implementation=name known to transformers, and name:<method> for each of METHODS.
    Calling it again changes nothing.

    name: a str; default "fovea".
    Raises ImportError where torch is absent, and where transformers is absent or too old."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as why:
        raise ImportError(f"fovea.transformers: wanted {_OLDEST} with PyTorch: {why}") from why
    if not {"q_length", "cache_position"} & inspect.signature(sdpa_mask).parameters.keys():
        version = importlib.metadata.version("transformers")
        raise ImportError(f"fovea.transformers: transformers is {version}, wanted {_OLDEST}")
    from . import _low_bits  # fails here rather than in the first forward pass

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)
    for method in _low_bits.NAMES:
        by_method = functools.partial(attention, recipe=method)
        AttentionInterface.register(f"{name}:{method}", by_method)
        AttentionMaskInterface.register(f"{name}:{method}", mask)
    _low_bits.guard(name)


def __getattr__(name):
    """What needs transformers, which this module does not import before it is asked."""
    if name == "QuantisedCache":
        from ._low_bits import QuantisedCache

        return QuantisedCache
    if name == "METHODS":
        from .torch._quantised import NAMES

        return NAMES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Mask:
    """A mask as fovea takes it: fields of fovea.torch.attention, or the starts of packed sequences.

    A model hands it from its mask function to its attention.  To whatever else touches it, it is
    the bool array (b, 1, s, t) that it stands for, made on first touch.

    traced         it was made within a graph
    of_sequences   its mask says no more than cu_seq_lens_q would"""

    traced = of_sequences = False

    def __init__(self, shape, fields, whole, query_start=None, query_max=None):
        self.shape, self.ndim = shape, len(shape)
        self.fields, self.query_start, self.query_max = fields, query_start, query_max
        self.asked_positions = False
        self._whole, self._array, self._packing = whole, None, None

    @property
    def array(self):
        if self._array is None:
            self._array = self._whole()
        return self._array

    def find_packed(self, positions):
        """Reads packed sequences from position_ids (1, s) where the model did not give them to its
        mask function (gpt-oss).  The first layer asks, as looking waits for the device."""
        if self.asked_positions:
            return
        self.asked_positions = True
        b, _, s, t = self.shape
        plain = b == 1 < s == t and self.fields.keys() <= PLAIN and self.fields.get("causal")
        if plain and positions is not None and tuple(positions.shape) == (1, s):
            ids = (positions.diff(prepend=positions[:, :1] - 1) != 1).cumsum(1)
            self.query_start, self.query_max = starts_of(ids)
            if len(self.query_start) == 2:
                self.query_start = None

    def contiguous(self):  # generate() asks for it ahead of a static cache
        return self

    def dim(self):
        return self.ndim

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.array, name)

    def __getitem__(self, index):
        return self.array[index]

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        given = lambda x: x.array if isinstance(x, cls) else x
        return function(*map(given, args), **{k: given(x) for k, x in (kwargs or {}).items()})

    def __repr__(self):
        kind = "packed sequences" if self.query_start is not None else ", ".join(self.fields)
        return f"<fovea.transformers.Mask {self.shape}: {kind}>"


# ---- what transformers asks for before the first layer ----


def mask(**asked):
    """The mask function of AttentionMaskInterface; `asked` is what sdpa_mask takes.  Gives a Mask,
    or the bool array (b, 1, s, t) of sdpa_mask where lengths cannot say it."""
    padding = asked.get("attention_mask")
    if isinstance(padding, Mask):  # made ahead by generate()
        return padding
    if text := over_ranks():
        return of_ranks(text, asked, padding)
    if compiling():
        from . import _traced_mask

        return _traced_mask.mask(asked)
    kind = pattern(asked.get("mask_function"))
    if kind is None:
        return explicit(asked)
    rows, offset = queries(asked)
    b, t = asked["batch_size"], asked["kv_length"]
    if "packed" in kind:
        made = packed(kind)
    else:
        made = spans(kind, padding, b, rows, t, offset, asked.get("kv_offset", 0), asked)
    if made is None:
        return explicit(asked)
    return Mask((b, 1, rows, t), whole=lambda: explicit(asked), **made)


def compiling():
    import torch

    return torch.compiler.is_compiling()


def in_graph(attention_mask):
    return isinstance(attention_mask, Mask) and (attention_mask.traced or compiling())


def over_ranks():
    """How the text lies over several ranks, within a context_parallel; None outside."""
    import torch

    replaced = hasattr(torch.nn.functional.scaled_dot_product_attention, "__code__")
    if not replaced and "fovea.distributed" not in sys.modules:
        return None
    from .distributed import _context

    return _context.current()


def of_ranks(text, asked, padding):
    """The Mask of a rank's tokens.  What transformers takes for packed sequences are the chunks of a
    rank, so that query_start says those."""
    from .distributed import _context

    kind, shape, why = pattern(asked.get("mask_function"), True), (asked["batch_size"],), None
    rows, t = queries(asked)[0], asked["kv_length"]
    if kind is None:
        why = "the model's mask is no window, which is not served over several ranks"
    elif padding is not None and not bool(padding.all()):
        why = "attention_mask hides tokens: pad at the right, and give labels of -100 instead"
    elif rows != t:
        why = f"there are {rows} rows on {t} keys, and a cache is not served: give use_cache=False"
    elif compiling():
        why = "the model is compiled, which is not served over several ranks"
    fields = {} if why else windows(kind, None)
    if kind and "chunk" in kind:
        fields["local_chunk"] = kind["chunk"]
    _context.agree(text, (*shape, rows), fields, why)
    made = Mask((*shape, 1, rows, t), fields, lambda: refuse("the mask", "of several ranks' keys"))
    made.asked_positions = True
    return made


def explicit(asked):
    from transformers.masking_utils import sdpa_mask

    never = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(**{**asked, **never})


def queries(asked):
    """How many rows there are, and the position of the first, both as int."""
    if "q_length" in asked:
        return asked["q_length"], int(asked.get("q_offset", 0))
    positions = asked["cache_position"]  # transformers 5.0 to 5.2
    return len(positions), int(positions[0])


def pattern(function, of_ranks=False):
    """What a mask function of transformers consists of, read from its closure: causal, window,
    reach (a window to both sides), chunk with left_padding, packed.  None where a part is not one
    of transformers' own.  of_ranks: packed sequences are a rank's shards, and chunks go through."""
    from transformers import masking_utils as hf

    code = getattr(function, "__code__", None)
    if code is None:
        return None
    held = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        held[name] = cell.cell_contents
    if code is hf.causal_mask_function.__code__:
        return {"causal": True}
    if code is hf.bidirectional_mask_function.__code__:
        return {}
    if made_by(hf, "sliding_window_overlay", code):
        return {"window": held["sliding_window"]}
    if made_by(hf, "sliding_window_bidirectional_overlay", code):
        return {"reach": held["sliding_window"]}
    if made_by(hf, "chunked_overlay", code):
        return {"chunk": held["chunk_size"], "left_padding": held["left_padding"]}
    if made_by(hf, "packed_sequence_mask_function", code):
        return {"packed": held["packed_sequence_mask"]}
    if made_by(hf, "remap_positions_for_packed_sequence", code):
        inner = pattern(held["mask_function"], of_ranks)
        # positions rise by one within a sequence, so windows are what they were
        return None if inner is None or ("chunk" in inner and not of_ranks) else inner
    if made_by(hf, "and_masks", code):
        parts = [pattern(part, of_ranks) for part in held["mask_functions"]]
        if None in parts or sum(map(len, parts)) != len({key for p in parts for key in p}):
            return None  # a part that is not known, or one that comes twice
        return {key: value for part in parts for key, value in part.items()}
    return None


def made_by(hf, name, code):
    """Whether a function's code is that of the function which hf.name returns."""
    maker = getattr(hf, name, None)
    return maker is not None and code in maker.__code__.co_consts


def packed(kind):
    """The fields of a Mask for sequences behind one another; a new one begins with each row of
    the batch."""
    query_start, longest = starts_of(kind["packed"])
    fields = windows(kind, longest)
    return {"fields": fields, "query_start": query_start, "query_max": longest}


def starts_of(ids):
    """(query_start, longest) of runs of equal ids (b, s), one behind another."""
    import torch

    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = begins.flatten().nonzero().flatten().int()
    query_start = torch.cat((starts, starts.new_tensor([ids.numel()])))
    longest = int(query_start.diff().max()) if ids.numel() else 0
    return query_start, longest


def windows(kind, t):
    """causal and windows as fovea counts them: the row's own position is counted.  A window that
    holds every key of t is none; t is None where that is not to be asked."""
    fields = {}
    if kind.get("causal"):
        fields["causal"] = True
    if kind.get("window") is not None and (t is None or kind["window"] < t):
        fields["window_left"] = kind["window"]
    if kind.get("reach") is not None and (t is None or kind["reach"] + 1 < t):
        fields["window_left"] = kind["reach"] + 1
        if not kind.get("causal"):
            fields["window_right"] = kind["reach"] + 1
    return fields


def spans(kind, padding, b, s, t, offset, key_offset, asked):
    """The fields of a Mask for one run of keys in each sequence, or None where there is a hole.

    Row i stands at offset + i and key j at key_offset + j.  fovea puts the last row in use at the
    last key in use, so that end, the keys up to the last row's position, is key_len."""
    import torch

    aligned = bool(kind)
    end = offset + s - key_offset if aligned else t
    if not 0 < end <= t or (not kind.get("causal") and end != t):
        return None  # rows that see keys behind the last row's position
    static = s == 1 and kind.get("causal") and asked.get("allow_is_causal_skip") is False
    static = static or isinstance(asked.get("q_offset"), torch.Tensor)
    fields = windows(kind, t if static else end)  # the same ones in each step of a compiled model
    chunk = kind.get("chunk")
    first, last = [0] * b, [end] * b
    if padding is not None:
        seen = torch.nn.functional.pad(padding, (0, max(0, key_offset + end - padding.shape[1])))
        seen = seen[:, key_offset : key_offset + end].to(asked.get("device"), torch.int32)
        on = torch.arange(end, device=seen.device, dtype=torch.int32)
        ends = torch.stack((
            torch.where(seen > 0, on, end).amin(1),
            torch.where(seen > 0, on + 1, 0).amax(1),
            seen.sum(1, dtype=torch.int32),
        ))
        first, last, count = ends.tolist()
        if any(n and n != z - a for a, z, n in zip(first, last, count)):
            return None
        first = [a if n else 0 for a, n in zip(first, count)]
    length = lambda values: torch.tensor(values, dtype=torch.int32, device=asked.get("device"))
    if chunk is not None:
        left = kind["left_padding"].expand(b).tolist()
        begins = zip(first, last, left)
        if any(z and (key_offset - pad + a) % chunk for a, z, pad in begins):
            return None
        if max((z - a for a, z in zip(first, last)), default=0) > chunk:
            fields["local_chunk"] = chunk
    if any(first):
        fields["key_first"] = length(first)
    if static or any(z < t for z in last):
        fields["key_len"] = length(last)
    if aligned and any(z < end for z in last):
        fields["query_len"] = length([max(0, s - (end - z)) for z in last])
    return {"fields": fields}


# ---- what each layer asks for ----

_REFUSED = {
    "head_mask": "a head mask",
    "layer_head_mask": "a head mask",
    "cache": "a paged cache of continuous batching",
    "block_table": "a paged cache",
    "indices": "an index of keys",
    "block_indices": "an index of key blocks",
}


def refuse(what, got):
    raise ValueError(
        f'attn_implementation="{NAME}": {what} is {got}: load the model with '
        'attn_implementation="eager" for that'
    )


def attention(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    is_causal=None,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    position_bias=None,
    recipe=None,
    **kwargs,
):
    """The attention function of AttentionInterface: query (b, h, s, d), key (b, g, t, d), value
    (b, g, t, e) give (o, None), o (b, s, h, e).  recipe: one of METHODS; None: q, k and v as they
    are.  Raises ValueError for what the module's documentation refuses."""
    from . import _low_bits
    from . import torch as fovea_torch

    if dropout:
        refuse("dropout", f"{dropout} in training, wanted 0 (attention_dropout of the config)")
    if kwargs.get("output_attentions"):
        refuse("output_attentions", "True, and no array of probabilities is ever made")
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None:
            refuse(name, f"{what}, which is not served")
    held = key if isinstance(key, _low_bits.Held) else None
    if held is not None:
        key, value = held.k, held.v
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    shared = {"scale": scaling, "softcap": softcap or 0.0}
    if s_aux is not None:
        shared["sink_logit"] = s_aux
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if text := over_ranks():
        return layer_over_ranks(
            text, (q, k, v), attention_mask, is_causal, sliding_window, shared, position_bias, kwargs
        ), None
    extents = q.shape[0] * q.shape[1], k.shape[0] * k.shape[1]
    starts = sequences(attention_mask, kwargs, is_causal, sliding_window, extents)
    if starts is not None:
        fields = starts[-1]
        if position_bias is not None:
            refuse("position_bias", "given with packed sequences, which is not served")
    else:
        fields = seen(attention_mask, is_causal, sliding_window)
        if in_graph(attention_mask):
            from ._traced_mask import apart

            fields = apart(attention_mask, fields, kwargs.get("position_ids"))
        if position_bias is not None:
            bias = fields.get("bias")
            fields["bias"] = position_bias if bias is None else bias + position_bias
    if held is not None:
        o = _low_bits.with_cache(held, q, attention_mask, fields, starts, shared)
        if o is not None:
            return o, None
    if recipe is not None:
        o = _low_bits.by_method(recipe, q, k, v, attention_mask, fields, starts, shared)
    elif starts is not None:
        o = one_behind_another(fovea_torch, q, k, v, starts, shared)
    else:
        o = fovea_torch.attention(q, k, v, **fields, **shared)
    return o, None


def layer_over_ranks(text, tensors, mask, is_causal, window, shared, position_bias, kwargs):
    """The layer's rows of this rank's tokens."""
    from .distributed import _context

    for name, x in (("position_bias", position_bias), ("cu_seq_lens_q", kwargs.get("cu_seq_lens_q"))):
        if x is not None:
            refuse(name, "given within context_parallel, which has query_start for packed texts")
    fields = seen(mask, is_causal, window)
    if more := fields.keys() - PLAIN - {"local_chunk"}:
        refuse("attention_mask", f"a {min(more)}, which is not served within context_parallel")
    return _context.attention(text, *tensors, fields, shared, check=not isinstance(mask, Mask))


def seen(attention_mask, is_causal, window):
    """The fields of fovea.torch.attention that say which keys a row sees."""
    import torch

    if isinstance(attention_mask, Mask):
        return dict(attention_mask.fields)
    if attention_mask is None:  # transformers' convention: the last row stands at the last key
        if not is_causal:
            return {} if window is None else {"window_left": window, "window_right": window}
        return {"causal": True} if window is None else {"causal": True, "window_left": window}
    if attention_mask.dim() != 4:
        refuse("attention_mask", f"of shape {tuple(attention_mask.shape)}, wanted (b, h, s, t)")
    return {"mask" if attention_mask.dtype == torch.bool else "bias": attention_mask}


def sequences(attention_mask, kwargs, is_causal, window, extents):
    """(query_start, key_start, query_max, key_max, fields) of packed sequences, or None.  extents:
    rows and keys in all."""
    given = [kwargs.get(f"cu_seq_lens_{x}") for x in "qk"]
    if all(x is not None for x in given):
        if isinstance(attention_mask, Mask) and attention_mask.of_sequences:
            attention_mask = None
        fields = seen(attention_mask, is_causal, window)
        if more := fields.keys() - PLAIN:
            refuse("cu_seq_lens_q", f"given beside {min(more)}, wanted sequences without padding")
        longest = [kwargs.get(f"max_length_{x}") for x in "qk"]
        longest = [bound(n, x, rows) for n, x, rows in zip(longest, given, extents)]
        return (*(x.int() for x in given), *longest, fields)
    if not isinstance(attention_mask, Mask):
        return None
    if attention_mask.query_start is None and not in_graph(attention_mask):
        attention_mask.find_packed(kwargs.get("position_ids"))
    if attention_mask.query_start is not None:
        start, longest = attention_mask.query_start, attention_mask.query_max
        return start, start, longest, longest, attention_mask.fields
    return None


def bound(longest, starts, rows):
    """Rows of the longest sequence, or, within a graph that was not told, of all."""
    if longest is None:
        return rows if compiling() else int(starts.diff().max())
    return longest if isinstance(longest, int) else int(longest)


def one_behind_another(fovea_torch, q, k, v, starts, shared):
    """varlen_attention of (b, s, h, d), whose batch is one row after another."""
    query_start, key_start, query_max, key_max, fields = starts
    b, s = q.shape[:2]
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    o = fovea_torch.varlen_attention(
        q, k, v, query_start, key_start, query_max=query_max, key_max=key_max, **fields, **shared
    )
    return o.unflatten(0, (b, s))
