# SPDX-License-Identifier: Apache-2.0
"""Any Hugging Face model whose attention goes through transformers' AttentionInterface.

    from fovea_trace.hf import trace_model
    from fovea_trace.page import write_page
    trace = trace_model(model, tokenizer(text, return_tensors="pt").input_ids, tokenizer=tokenizer)
    write_page(trace, "trace.html")

The model runs once, as it would; its own attention makes the outputs.  Each layer's queries and
keys, as attention gets them (after rope), are traced on the way."""
from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import fovea

from fovea_trace.record import Trace
from fovea_trace.watch import Progress, Watcher

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Fields = dict[str, Any]  # of an attention function of transformers


class Unseen(ValueError):
    """The model does something that a trace would not show truly."""


class _Enough(Exception):
    """No later layer is asked for."""


def trace_model(
        model: PreTrainedModel, input_ids: torch.Tensor | Sequence[int], *, tokenizer: Any = None,
        token_text: Sequence[str] | None = None, layers: Sequence[int] | None = None,
        keep: int = 16, block_rows: int = 64, block_keys: int = 64, edge_kind: str = "mass",
        exact: bool = False, tokens_of: int | None = None, title: str = "",
        ctx: fovea.Context | None = None, progress: Progress = lambda layer, edges: None,
        stopped: Callable[[Watcher], None] | None = None) -> Trace:
    """The fovea_trace.record.Trace of a causal model on one sequence.

    input_ids    (1, tokens) or (tokens): a tensor on the model's device, or a list
    tokenizer    gives the text of each token; token_text, a list, says it instead
    layers       to trace, ascending; None: all
    tokens_of    the row block whose single tokens are weighed too
    ctx          fovea.Context; None: one on the model's device
    progress     is told (layer, edges so far) before each layer
    stopped      is told the watcher at Ctrl-C; the layers that are done are then the trace, unless
                 it raises.  None: Ctrl-C goes on
    the rest     as trace_forward"""
    import torch

    ids = torch.as_tensor(input_ids)
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.shape[0] != 1 or ids.shape[1] == 0:
        raise Unseen(f"trace_model: input_ids has shape {tuple(ids.shape)}, wanted (1, tokens)")
    device = next(model.parameters()).device
    if token_text is None:
        token_text = text_of(ids[0].tolist(), tokenizer)
    if len(token_text) != ids.shape[1]:
        raise Unseen(f"trace_model: token_text has {len(token_text)} entries, wanted "
                     f"{ids.shape[1]}, one for each token")
    config = model.config.get_text_config()
    traced = chosen(layers, config.num_hidden_layers)
    blocks = -(-ids.shape[1] // block_rows)
    if tokens_of is not None and not 0 <= tokens_of < blocks:
        raise Unseen(f"trace_model: tokens_of is {tokens_of}, wanted a block of 0 .. {blocks - 1}")
    with contextlib.ExitStack() as stack:
        if ctx is None:
            backend = "cuda" if device.type == "cuda" else "host"
            ctx = stack.enter_context(fovea.Context(backend, device.index or 0))
        watcher = Watcher(ctx, traced, tokens_of, progress, keep=keep, block_rows=block_rows,
                          block_keys=block_keys, edge_kind=edge_kind, exact=exact)
        stack.enter_context(watched(model, watcher))
        try:
            with torch.inference_mode(), contextlib.suppress(_Enough), watcher.begin():
                model(input_ids=ids.to(device), use_cache=False)
            if len(watcher.retained) != len(traced):
                raise Unseen(
                    f"trace_model: {len(watcher.retained)} of {len(traced)} layers of "
                    f"{type(model).__name__} called transformers' AttentionInterface")
        except KeyboardInterrupt:
            if stopped is None:
                raise
            stopped(watcher)
        about = dict(title=title, model=config.name_or_path or type(model).__name__,
                     dtype=str(next(model.parameters()).dtype).removeprefix("torch."))
        return watcher.trace(about, token_text)


def chosen(layers: Sequence[int] | None, count: int) -> list[int]:
    out = list(range(count) if layers is None else layers)
    if not out or out != sorted(set(out)) or out[0] < 0 or out[-1] >= count:
        raise Unseen(f"trace_model: layers is {out}, wanted ascending layers of 0 .. {count - 1}")
    return out


def text_of(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """What each token adds to the text; a letter of many tokens is with its last one."""
    if tokenizer is None:
        return [f"[{token}]" for token in ids]
    out, held = list[str](), list[int]()
    for token in ids:
        held.append(token)
        said = tokenizer.decode(held, clean_up_tokenization_spaces=False)
        whole = not said.endswith("\ufffd")
        out.append(said if whole else "")
        held = [] if whole else held
    if held:
        out[-1] = tokenizer.decode(held, clean_up_tokenization_spaces=False)
    return out


@contextlib.contextmanager
def watched(model: PreTrainedModel, watcher: Watcher) -> Iterator[None]:
    """The model's attention as it is, and `watcher` beside it.

    A layer asks AttentionInterface.get_interface for its attention, eager or any other.  Here the
    layers of `model` get that function with the watcher before it; masks are not touched."""
    from transformers import AttentionInterface, __version__
    interface: Any = AttentionInterface  # its method is replaced
    plain = getattr(interface, "get_interface", None)
    if plain is None:
        raise ImportError(f"trace_model: transformers is {__version__}, wanted 5 or later")
    ours = {id(module) for module in model.modules()}

    def get_interface(self: Any, *which: Any) -> Any:
        own = plain(self, *which)

        def attention(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                      *rest: Any, scaling: float | None = None, **fields: Any) -> Any:
            layer = getattr(module, "layer_idx", None)
            if id(module) in ours and layer in watcher.layers:
                check(module, query, key, fields)
                watcher.see(layer, query.transpose(1, 2), key.transpose(1, 2), scale=scaling)
                if layer == watcher.layers[-1]:
                    raise _Enough
            return own(module, query, key, value, *rest, scaling=scaling, **fields)

        return attention

    training = model.training
    model.eval()
    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = plain
        model.train(training)


def check(module: Any, query: torch.Tensor, key: torch.Tensor, fields: Fields) -> None:
    """Refuses what trace_forward does not compute: another mask or logit would be a wrong trace."""
    where = f"trace_model: layer {module.layer_idx}"
    window = fields.get("sliding_window")
    if window is not None and window < key.shape[2]:
        raise Unseen(f"{where} has a sliding window of {window} tokens, fewer than the "
                     f"{key.shape[2]} of the text: leave it out of layers, or shorten the text")
    if fields.get("softcap"):
        raise Unseen(f"{where} caps its logits (softcap), which a trace does not: leave it out")
    if fields.get("s_aux") is not None:
        raise Unseen(f"{where} has sink logits (s_aux), which a trace does not: leave it out")
    if not getattr(module, "is_causal", True) or fields.get("is_causal") is False:
        raise Unseen(f"{where} is not causal, wanted the layers of a causal language model")
    if query.shape[2] != key.shape[2]:
        raise Unseen(f"{where} has {query.shape[2]} queries and {key.shape[2]} keys, wanted "
                     "self-attention of one text")


def load(name: str, dtype: str = "f32", backend: str = "host") -> tuple[PreTrainedModel, Any]:
    """(model, tokenizer) of a folder or a name on the Hugging Face hub."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as why:
        install = f"{sys.executable} -m pip install torch transformers"
        raise ImportError(f"--hf: {why}: {install}") from None
    if os.path.isabs(name) or name.startswith(".") or os.path.isdir(name):  # no name on the hub
        if not os.path.isfile(os.path.join(name, "config.json")):
            what = "a folder without config.json" if os.path.isdir(name) else "no folder"
            raise OSError(f"--hf {name}: {what}, wanted what save_pretrained() writes")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError) as why:
        raise OSError(f"--hf {name}: no tokenizer ({first_line(why)})") from None
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype={"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype])
    except (OSError, ValueError, ImportError) as why:
        raise OSError(f"--hf {name}: {first_line(why)}") from None
    return model.to("cuda" if backend == "cuda" else "cpu"), tokenizer


def first_line(why: BaseException) -> str:
    return str(why).strip().partition("\n")[0].rstrip(": ")
