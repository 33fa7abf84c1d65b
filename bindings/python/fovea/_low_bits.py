# SPDX-License-Identifier: Apache-2.0
"""What fovea.transformers does in 8, 4 and 2 bits: "fovea:<method>", and QuantisedCache.

Padding would enter means and scales, so that padded batches are packed: the tokens in use of each
sequence behind one another.  A QuantisedCache keeps no padding either; its attention packs the new
tokens, appends them, and reads what is there."""

import functools
import itertools

import torch
from transformers import cache_utils as hf

from . import torch as fovea_torch
from . import transformers as ours
from .torch._cache import CACHES
from .torch._quantised import NAMES, full_name

_PLAIN = ours.PLAIN
_LENGTHS = {"key_first", "key_len", "query_len"}


def listed(name):
    """The implementations by name, for a sentence."""
    return ", ".join([name, *(f"{name}:{method}" for method in NAMES)])


def guard(name):
    """Words transformers' refusal of an unknown "fovea:...": its own does not list registered names,
    and it asks no one else."""
    from transformers import PreTrainedModel

    asked = getattr(PreTrainedModel, "get_correct_attn_implementation", None)
    names = getattr(asked, "fovea_names", None)
    if asked is None or names is not None:
        return names and names.add(name)
    names = {name}

    @functools.wraps(asked)
    def checked(self, requested_attention, *rest, **more):
        ours_, _, method = str(requested_attention).partition(":")
        if method and ours_ in names and method not in NAMES:
            raise ValueError(
                f'attn_implementation is "{requested_attention}", wanted one of {listed(ours_)}'
            )
        return asked(self, requested_attention, *rest, **more)

    checked.fovea_names = names
    PreTrainedModel.get_correct_attn_implementation = checked
    return None


def refuse(what, wanted):
    raise ValueError(f"{what} is not served: {wanted}")


# ---- batches with padding, as packed sequences ----


class Packing:
    """The tokens in use of a padded batch: the rows [begin, end) and the keys [first, last) of each
    sequence.  None where all are in use."""

    def __init__(self, fields, b, s, t, device):
        def of(name, otherwise):
            x = fields.get(name)
            return [otherwise] * b if x is None else x.tolist()

        self.device, self.s, self.t = device, s, t
        first, last, end = of("key_first", 0), of("key_len", t), of("query_len", s)
        aligned = bool(fields.keys() & _PLAIN)  # a row has a place among the keys
        self.rows = [
            (max(0, a - (z - e)) if aligned else 0, e) for a, z, e in zip(first, last, end)
        ]
        self.rows = [(min(x, e), e) for x, e in self.rows]
        self.keys = [(a, max(a, z)) for a, z in zip(first, last)]
        self.whole = all(x == (0, s) for x in self.rows)

    @functools.cached_property
    def of_rows(self):
        return self.places(self.rows, self.s)

    @functools.cached_property
    def of_keys(self):
        return self.places(self.keys, self.t)

    def places(self, spans, n):
        """(where tokens stand in the flat batch, starts of the sequences, the longest)."""
        at = [i * n + j for i, (a, z) in enumerate(spans) for j in range(a, z)]
        counts = [z - a for a, z in spans]
        starts = [0, *itertools.accumulate(counts)]
        make = functools.partial(torch.tensor, device=self.device)
        return make(at), make(starts, dtype=torch.int32), max(counts)

    def back(self, o):
        """(b, s, h, e) of packed rows; those of padding are 0."""
        whole = o.new_zeros((len(self.rows) * self.s, *o.shape[1:]))
        return whole.index_copy(0, self.of_rows[0], o).unflatten(0, (-1, self.s))


def packing(attention_mask, fields, b, s, t, device):
    """The Packing of a Mask, made once for all layers; None where there are no lengths."""
    if not fields.keys() & _LENGTHS:
        return None
    made = attention_mask._packing
    if made is None:
        made = attention_mask._packing = Packing(fields, b, s, t, device)
    return made


def only(fields, who, wanted):
    """Refuses what neither a method nor a cache serves."""
    for name in sorted(fields.keys() - _PLAIN - _LENGTHS):
        why = "a mask that is no padding at the ends" if name == "mask" else name
        refuse(f"{who} with {why}", wanted)
    if ours.compiling() and fields.keys() & _LENGTHS:
        refuse(f"{who} with padding or a static cache within torch.compile", wanted)


# ---- attention by a method's name ----


def by_method(recipe, q, k, v, attention_mask, fields, starts, shared):
    """quantised_attention of (b, s, h, d); starts as ours.sequences gives them, or None."""
    recipe = full_name(recipe)
    call = functools.partial(fovea_torch.quantised_attention, recipe=recipe, **shared)
    if starts is not None:
        query_start, key_start, query_max, key_max, fields = starts
        b, s = q.shape[:2]
        o = call(
            *(x.flatten(0, 1) for x in (q, k, v)), query_start=query_start, key_start=key_start,
            query_max=query_max, key_max=key_max, **fields,
        )  # fmt: skip
        return o.unflatten(0, (b, s))
    only(fields, f"fovea:{recipe}", 'load the model with attn_implementation="fovea" for that')
    plain = {name: x for name, x in fields.items() if name in _PLAIN}
    pack = packing(attention_mask, fields, *q.shape[:2], k.shape[1], q.device)
    if pack is None:
        return call(q, k, v, **plain)
    (rows, query_start, query_max), (keys, key_start, key_max) = pack.of_rows, pack.of_keys
    o = call(
        q.flatten(0, 1)[rows], k.flatten(0, 1)[keys], v.flatten(0, 1)[keys],
        query_start=query_start, key_start=key_start, query_max=query_max, key_max=key_max,
        **plain,
    )  # fmt: skip
    return pack.back(o)


# ---- the cache ----


def with_cache(held, q, attention_mask, fields, starts, shared):
    """o of the new rows over the cache; None for a prompt, which reads its own keys."""
    wanted = "take transformers' own cache for that"
    if starts is not None:
        refuse("QuantisedCache with packed sequences", wanted)
    if shared["softcap"]:
        refuse("QuantisedCache with softcap", wanted)
    only(fields, "QuantisedCache", wanted)
    if held.first:
        held.append(attention_mask, fields, q.shape[1])
        return None
    more = {name: x for name, x in shared.items() if name != "softcap"}
    return held.read(q, attention_mask, fields, more)


class Held:
    """What a layer of QuantisedCache gives in place of all keys and values: the new ones, and itself."""

    def __init__(self, layer, k, v):
        self.layer, self.k, self.v = layer, k, v
        self.first = layer.seen == 0
        layer.seen += k.shape[-2]
        self.shape = (*k.shape[:2], layer.seen, k.shape[-1])
        self.device, self.dtype = k.device, k.dtype

    def append(self, attention_mask, fields, s):
        """Puts the new tokens in use there; gives their Packing, or None where all are."""
        cache, b = self.layer.cache, self.k.shape[0]
        k, v = (x.transpose(1, 2).to(cache.dtype) for x in (self.k, self.v))
        pack = packing(attention_mask, fields, b, s, self.shape[2], k.device)
        if pack is None or pack.whole:
            cache.append(k, v)
            return None
        rows, starts, longest = pack.of_rows
        flat = (x.flatten(0, 1)[rows] for x in (k, v))
        cache.append(*flat, query_start=starts, query_max=longest)
        return pack

    def read(self, q, attention_mask, fields, shared):
        """Appends, and the attention of (b, s, h, d) over the cache."""
        cache, (b, s) = self.layer.cache, q.shape[:2]
        pack = self.append(attention_mask, fields, s)
        plain = {name: x for name, x in fields.items() if name in _PLAIN}
        call = functools.partial(cache.decode, **{"causal": False, **plain}, **shared)
        x = q.to(cache.dtype)
        if pack is None:
            return call(x).to(q.dtype)
        rows, starts, longest = pack.of_rows
        o = call(x.flatten(0, 1)[rows], query_start=starts, query_max=longest)
        return pack.back(o).to(q.dtype)

    def misused(self, *_, **__):
        raise RuntimeError(
            "QuantisedCache: its keys are codes that only fovea's attention reads: load the model with "
            'attn_implementation="fovea"'
        )

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.misused()

    __getitem__ = misused

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return cls.misused(None)


class QuantisedLayer(hf.CacheLayerMixin):
    """A layer of QuantisedCache."""

    is_sliding = supports_early_init = False

    def __init__(self, recipe, options):
        super().__init__()
        self.recipe, self.options, self.cache, self.seen = recipe, options, None, 0

    def lazy_initialization(self, key_states, value_states):
        (b, g, _, d), e = key_states.shape, value_states.shape[-1]
        kind = key_states.dtype
        if kind not in (torch.float16, torch.bfloat16):
            kind = torch.float16
        self.cache = fovea_torch.QuantisedCache(
            self.recipe, b, g, d, e, dtype=kind, device=key_states.device, **self.options
        )
        self.is_initialized = True

    def update(self, key_states, value_states, *_, **__):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = Held(self, key_states, value_states)
        return held, held

    def get_mask_sizes(self, query_length):
        if not isinstance(query_length, int):  # transformers 5.0 to 5.2 give positions
            query_length = query_length.shape[0]
        return self.seen + query_length, 0

    def get_seq_length(self):
        return self.seen

    def get_max_length(self):
        return -1

    get_max_cache_shape = get_max_length  # its name in older versions

    def reset(self):
        self.seen = 0
        if self.cache is not None:
            self.cache.reset()

    def crop(self, tokens_to_remove):
        """A negative number: so many tokens less; a positive one: what is left."""
        drop = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.seen - tokens_to_remove)
        if drop and self.cache is not None:
            self.cache.crop(self.cache.lengths - drop)
            self.seen -= drop

    def reorder_cache(self, beam_idx):
        if self.cache is not None:
            self.cache.select(beam_idx)

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats):
        if self.cache is not None:
            self.cache.select(torch.arange(self.cache.rows).repeat_interleave(repeats))

    def offload(self):
        refuse("QuantisedCache with offloading", "it is small enough to stay where it is")

    prefetch = offload


class QuantisedCache(hf.Cache):
    """past_key_values for generate() in 2 or 4 bits (KIVI, KVarN), read by
    attn_implementation="fovea".

        cache = fovea.transformers.QuantisedCache("kivi2")
        model.generate(**inputs, past_key_values=cache)

    recipe    "kivi2", "kivi4" or "kvarn"
    options   group, residual, page and capacity of fovea.torch.QuantisedCache

    The prompt is read in 16 bits, or as "fovea:<method>" reads it, and then quantised, as KIVI does;
    later tokens read the cache.  Models in f32 keep the newest tokens in f16.  Left padding is not
    kept.  Windows are windows of attention: every token stays.  Softcap, position_bias, packed
    sequences and masks with holes are refused."""

    def __init__(self, recipe="kivi2", **options):
        if recipe not in CACHES:
            refuse(f"QuantisedCache: recipe {recipe!r}", f"wanted one of {', '.join(CACHES)}")
        if unknown := options.keys() - {"group", "residual", "page", "capacity"}:
            raise TypeError(
                f"QuantisedCache: there is no {min(unknown)}, wanted group, residual, page or capacity"
            )
        self.recipe, self.options = recipe, options
        make = functools.partial(QuantisedLayer, recipe, options)
        super().__init__(layer_class_to_replicate=make)

    @property
    def bytes_a_token(self):
        """Of a token of one sequence that is quantised, over all layers."""
        return sum(x.cache.bytes_a_token for x in self.layers if x.cache is not None)

    @property
    def nbytes(self):
        """All that is allocated."""
        return sum(x.cache.nbytes for x in self.layers if x.cache is not None)
