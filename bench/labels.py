# SPDX-License-Identifier: Apache-2.0
"""What a row of the table says, in words: its family, its section of a picture, its shape."""

import dataclasses
import re

FAMILIES = {  # what is as usual and therefore no part of a label
    "attention": "prefill: bf16, batch x length = 16k tokens, heads x D = 2048,"
    " unless a row says otherwise",
    "decode": "one query row a sequence over a cache: bf16, D128, 32 query heads on 8 key heads,"
    " unless a row says otherwise",
    "quant": "8-bit codes made beforehand: batch x length = 16k tokens, heads x D = 2048; the peer reads bf16",
    "kl": "distillation losses: bf16, batch 1, 16 heads unless a row says otherwise;"
    " the peer keeps every s x t array",
    "conv": "convolutional and multi-token attention: bf16, batch 1, 16 heads (host: 8),"
    " unless a row says otherwise",
    "trace": "key blocks of 64 chosen by bisection, and attention over them",
    "sparse": "lists of key blocks, and what chooses them: bf16, D128, 16 heads unless a row says otherwise",
    "linear": "linear attention and its companions: bf16, batch 1, rates in TB/s of the bytes that must move",
    "project": "the products of compact attention: bf16, 128 heads unless a row says otherwise",
    "ranks": "one text over several GPUs: bf16, D128, batch 1; times are the slowest rank's",
    "own": "fovea beside fovea without the feature, or beside a bound of other work",
    "own-codes": "codes of 8 bits and fewer beside our own 16 bits, copies or products of as much work: D128 unless a row says otherwise",
    "own-sparse": "lists and methods beside our own dense attention over the same keys: bf16, D128",
}
TITLES = {
    "attention": "dense attention",
    "decode": "decode",
    "quant": "8-bit attention",
    "kl": "KL divergence of attention",
    "conv": "convolutional attention",
    "trace": "trace_forward",
    "sparse": "attention over lists",
    "linear": "linear attention",
    "project": "products of heads",
    "ranks": "several GPUs",
    "own": "beside itself: what features cost",
    "own-codes": "codes beside itself",
    "own-sparse": "lists and methods beside itself",
}
PEERS = {
    "torch.sdpa.cudnn": "cuDNN",
    "torch.sdpa.flash": "PyTorch's FlashAttention-2",
    "torch.sdpa": "PyTorch's SDPA",
    "torch eager": "eager PyTorch",
    "torch.compile": "torch.compile",
    "torch dense": "PyTorch's dense attention",
    "torch, the same selection": "the same in PyTorch",
    "torch, the same selection and attention": "the same in PyTorch",
    "triton, the same selection": "the same in Triton",
    "triton, the same selection and attention": "the same in Triton",
    "torch._scaled_mm, equal work": "e4m3 matrix products of as many flops",
    "fla": "fla",
    "torch bmm": "PyTorch's bmm",
    "torch conv1d, silu": "conv1d and silu of PyTorch",
    "torch rms_norm, silu": "rms_norm and silu of PyTorch",
    "vLLM": "vLLM's Triton kernels",
    "fovea, one device": "one GPU",
    "torch context_parallel": "PyTorch's context parallel",
    "zig-zag ring of torch.sdpa.cudnn": "a ring over cuDNN",
    "fovea contiguous": "contiguous keys",
    "fovea dense": "dense attention",
    "fovea dense, expanded": "dense attention over expanded heads",
    "fovea dense, equal work": "equal sequences, as many pairs",
    "fovea nondeterministic": "`nondeterministic`",
    "fovea heads": "attention over its heads",
    "fovea, cache of bf16": "a cache of bf16",
    "fovea, cache of dtype": "a cache of 16 bits",
    "fovea 16 bits": "a cache of 16 bits",
    "fovea bf16": "our own in bf16",
    "fovea 16-bit gradients": "gradients of 16 bits",
    "torch copy, equal work": "a copy of as many bytes",
    "torch, two products": "two products of PyTorch",
}
OPERATIONS = {
    "attention": "attention",
    "quant": "8-bit attention",
    "quant_quantize": "codes",
    "kl": "KL",
    "conv_attention": "convolution",
    "ranks_ring": "ring attention",
    "ranks_kl": "KL over a ring",
    "ranks_delta": "delta rule over ranks",
    "ranks_decode": "decode, split cache",
    "ranks_trace": "trace over ranks",
    "x_conv1d": "short convolution",
    "x_norm_gate": "norm and gate",
    "x_gla": "gated linear attention",
    "x_delta": "delta rule",
    "x_gsa": "gated slot attention",
    "x_project": "products of heads",
    "x_tpa": "tensor product attention",
    "x_kv_decode": "low-bit caches, decode",
    "x_quant": "SageBwd",
    "x_multi_token": "multi-token",
    "x_kl_jensen_shannon": "other divergences",
    "x_kl_pool": "other divergences",
    "x_kl_indexer": "other divergences",
    "x_kl_gather": "other divergences",
    "x_sparse": "lists",
    "x_select_token": "choice of keys",
    "x_select_block": "choice of blocks",
    "x_pool": "summaries and choice",
    "x_probe": "probe and choice",
    **{operation: "methods" for operation in ("x_pooled", "x_indexed", "x_probed", "x_nsa", "x_compressed")},
}
SPARSE = "x_sparse", "x_select", "x_po", "x_prob", "x_indexed", "x_nsa", "x_compressed"
TOKENS = (  # of a case's name, in the order in which a label says them
    (r"Jensen-Shannon|pool|indexer|gather", "{0}"),
    (r"d(\d+)", "D{1}"),
    (r"causal|full", "{0}"),
    (r"[a-z]+attention|[a-z]*moba|[a-z]*attn|quest|msa|dsa|csa|hca|nsa|blasst|streamingllm|minference", "{0}"),
    (r"blocks(\d+)x(\d+)", "blocks of {1} x {2}"),
    (r"block(\d+)", "blocks of {1}"),
    (r"(\d+)x(\d+)", "kernel {1} x {2}"),
    (r"c(\d+)", "mixed by {1}"),
    (r"b(\d+)", "batch {1}"),
    (r"h(\d+)g(\d+)", "{1} heads on {2}"),
    (r"h1", "1 head"),
    (r"h(\d+)", "{1} heads"),
    (r"g(\d+)", "on {1} key heads"),
    (r"x(\d+)", "{1} index heads"),
    (r"keys(\d+)", "{1} keys a row"),
    (r"keep(\d+)", "keep {1}"),
    (r"count(\d+)", "count {1}"),
    (r"latent", "over latents"),
    (r"mla", "MLA"),
    (r"fp8", "FP8 latents"),
    (r"zipf", "few long lists"),
    (r"alike", "neighbours alike"),
    (r"scored", "with scoring"),
    (r"half", "half of the tiles skipped"),
    (r"none", "nothing skipped"),
    (r"page(\d+)", "pages of {1}"),
    (r"f(\d{4,})", "{1} channels"),
    (r"taps(\d+)", "{1} taps"),
    (r"fox|retention|simplegla|gdn|kda|gla|delta|rwkv6|rwkv7|mamba2|gsa", "{0}"),
    (r"absorb|out|expand", "{0}"),
    (r"on(\d+)", "on {1} heads of v"),
    (r"m(\d+)", "{1} slots"),
    (r"lengths", "lengths given"),
    (r"quantising", "with quantisation"),
    (r"sage2", "SageAttention2"),
    (r"sagebwd", "SageBwd"),
    (r"sage([qkv]4?)", "SageAttention2's {1}"),
    (r"kivi\d|kvquant\d|turboquant\d", "{0}"),
    (r"first", "tokens outside of heads"),
    (r"int8", "8 bits"),
    (r"both", "with the forward"),
    (r"f32|f16|e4m3|i8", "{0}"),
    (r"gradients", "gradients"),
    (r"skewed", "lengths 1 to 8k"),
    (r"checked", "arguments compared"),
    (r"graph", "in a CUDA graph"),
)


@dataclasses.dataclass(frozen=True)
class Words:
    family: str
    operation: str
    what: str
    label: str
    length: str
    peer: str

    @property
    def section(self):
        return f"{self.what}, beside {self.peer}"

    @property
    def keys(self):
        """The length as a number."""
        return int(self.length[:-1]) * 1024 if self.length[-1] == "k" else int(self.length)


def apart(row):
    """Is the peer ours, a bound, or other work?"""
    if row["op"].startswith("ranks_"):
        return False
    other = row["peer"].startswith("fovea") or row["peer"].endswith("equal work")
    return other or row["case"].endswith("_of_cudnn")


def own(family, operation, tokens):
    """The family of rows that stand apart."""
    if family == "sparse":
        return "own-sparse"
    codes = operation in ("quant", "x_quant", "quant_quantize", "x_kv_decode")
    return "own-codes" if codes or {"fp8", "e4m3", "i8"} & set(tokens) else "own"


def shape(operation, tokens):
    """The label: each token's words in their order, heads and key heads as one."""
    usual = "h16" if operation.startswith(("x_kl", *SPARSE)) else None
    if operation.startswith(SPARSE):
        tokens = [re.sub(r"^(\d+x\d+)$", r"blocks\1", token) for token in tokens]
    if operation == "attention" and "decode" in tokens:
        usual = "d128"
    if operation == "x_quant":  # the section says it
        usual = "sagebwd"
    text = " ".join(token for token in tokens if token != usual)
    text = re.sub(r"\bh(\d+) g(\d+)\b", r"h\1g\2", text)
    if operation.startswith("x_kl_"):
        kind = operation.removeprefix("x_kl_")
        text += " " + {"jensen_shannon": "Jensen-Shannon"}.get(kind, kind)
    if operation == "trace" and "full" not in tokens:
        text += " causal"
    words = []
    for pattern, form in TOKENS:
        for token in text.split():
            if found := re.fullmatch(pattern, token):
                words.append(form.format(found[0], *found.groups()))
    return ", ".join(words)


def what(operation, direction, tokens):
    if operation == "trace":
        return "trace, selection " + ("alone" if "selection" in tokens else "and attention")
    if "decode" in tokens:
        return "decode" if operation == "attention" else f"{OPERATIONS[operation]}, decode"
    if "verify" in tokens:
        return f"{OPERATIONS[operation]}, check of a draft"
    found = f"{OPERATIONS[operation]}, {direction}" if direction else OPERATIONS[operation]
    found += ", same bits in each run" if "order" in tokens else ""
    return found + (", packed sequences" if "varlen" in tokens else "")


def words(row):
    operation, _, direction = row["op"].rpartition("_")
    if direction not in ("forward", "backward"):
        operation, direction = row["op"], ""
    tokens = row["case"].split("_")
    peer = PEERS.get(row["peer"], row["peer"])
    if row["case"].endswith("_of_cudnn"):
        peer = "cuDNN's dense attention"
    if "decode" in tokens and operation == "attention":
        family = "decode"
    elif operation.startswith(SPARSE):
        family = "sparse"
    else:
        known = {"x_multi_token": "conv", "conv_attention": "conv", "x_project": "project", "quant_quantize": "quant"}
        known |= dict.fromkeys((name for name in OPERATIONS if name.startswith("ranks_")), "ranks")
        known |= dict.fromkeys(("x_conv1d", "x_norm_gate", "x_gla", "x_delta", "x_gsa"), "linear")
        family = known.get(operation, "kl" if operation.startswith("x_kl") else operation)
    length = next((t[1:] for t in tokens if re.fullmatch(r"[nt]\d+k?", t)), "8k")
    return Words(
        own(family, operation, tokens) if apart(row) else family,
        OPERATIONS.get(operation, operation),
        what(operation, direction, tokens),
        shape(operation, tokens),
        length,
        peer,
    )


def rate(row):
    value = float(row["tflops_or_gbs"])
    if row["op"] in ("trace_forward", "ranks_trace"):
        return f"{value:.0f} Mrow/s"
    if row["op"].startswith("ranks_delta"):
        return f"{value:.2f} TB/s"
    if row["op"] in ("ranks_decode", "x_kv_decode", "quant_quantize"):
        return f"{value:.0f} GB/s"
    if words(row).family == "linear":
        return f"{value:.2f} TB/s"
    tokens = row["case"].split("_")
    bytes_bound = "decode" in tokens or row["case"].startswith("topk")
    if "mla" in tokens:  # as the case says
        bytes_bound = int(next(t[1:] for t in tokens if re.fullmatch(r"h\d+", t))) <= 64
    if row["op"].startswith("x_project"):
        bytes_bound = words(row).keys < 1024
    if bytes_bound:
        return f"{value:.0f} GB/s"
    return f"{value:.0f} TFLOP/s" if value >= 10 else f"{1000 * value:.0f} GFLOP/s"
