# SPDX-License-Identifier: Apache-2.0
"""What the cases share: the base class, both sides' calls, dtypes, limits, names, and how many
pairs are seen."""

import fovea
import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Largest relative Frobenius distance between fovea and the peer: each may be off by the limits of
# the dense specification.
LIMITS = {"f32": 4e-6, "f16": 9e-4, "bf16": 7e-3}
BACKWARD_LIMITS = {"f32": 1e-5, "f16": 1.2e-3, "bf16": 1e-2}


def size(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def pairs(s, t, causal):
    """(query, key) pairs that are seen, bottom-right aligned."""
    if not causal:
        return s * t
    return sum(min(max(i + t - s + 1, 0), t) for i in range(s))


def turned(*tensors):
    """(b, s, h, d) memory of torch's (b, h, s, d), or the other way around."""
    return [x.detach().transpose(1, 2).contiguous() for x in tensors]


class Own:
    """fovea's side: a call, and the first `compared` of its results (None: all) in torch's order of
    dimensions.  It is 0 where the peer computes something else."""

    def __init__(self, op, ctx, *inputs, compared=None, **fields):
        self.op, self.run, self.compared = op, getattr(fovea, op), compared
        self.inputs, self.fields = (ctx, *inputs), fields

    def __call__(self):
        results = self.run(*self.inputs, **self.fields)
        results = [results] if isinstance(results, torch.Tensor) else results
        return [x.transpose(1, 2) if x.ndim == 4 else x for x in results[: self.compared]]

    @property
    def workspace(self):
        return getattr(fovea, f"{self.op}_workspace")(*self.inputs, **self.fields)


class PeerFailed(Exception):
    """The peer cannot run a case here."""


def unrecorded(call):
    """The peer's forward: no graph is kept."""

    def run():
        with torch.no_grad():
            return [call()]

    return run


def refusing(why):
    """A peer that has no kernel: fovea's own time is told yet."""

    def run():
        raise PeerFailed(why)

    return run


def gradient(call, inputs, dout):
    """The peer's backward: its graph is built here and walked in each call."""
    for x in inputs:
        x.requires_grad_()
    try:
        result = call()
    except RuntimeError as error:
        return refusing(str(error))
    return lambda: torch.autograd.grad(result, inputs, dout, retain_graph=True)


class Case:
    """A row of the table.  A subclass is a dataclass of a shape (b, h, n, d and what else it has);
    `words` are the parts of its name, None for those that are as usual."""

    family = "attention"  # of the operation
    backward = False
    dtype = "bf16"
    peer = None  # whom the command line names
    memory = False  # is what the peer takes of it worth a word?
    saved = slice(None)  # of the forward's o and lse, what its backward reads
    products = 2, 5  # matrix products of a forward, of a backward
    unit, scale = "TFLOP/s", 1e-12

    def setup(self, ctx, device, seed):
        """(run fovea, run the peer), both giving tensors in (b, h, s, d) order."""
        raise NotImplementedError

    def words(self):
        raise NotImplementedError

    @property
    def op(self):
        return f"{self.family}_{'backward' if self.backward else 'forward'}"

    @property
    def name(self):
        return "_".join(word for word in self.words() if word)

    @property
    def mask(self):
        return "causal" if self.causal else "full"

    @property
    def unusual_dtype(self):
        return None if self.dtype == "bf16" else self.dtype

    @property
    def itemsize(self):
        return DTYPES[self.dtype].itemsize

    @property
    def limit(self):
        """Largest distance of both sides' results; 0 where nothing is compared."""
        return (BACKWARD_LIMITS if self.backward else LIMITS)[self.dtype]

    @property
    def work(self):
        products = self.products[self.backward]
        return 2 * products * pairs(self.n, self.n, self.causal) * self.b * self.h * self.d

    def draw(self, device, seed):
        """What draws normal numbers of a shape, in the case's dtype or another."""
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape, dtype=DTYPES[self.dtype]):
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        return normal

    def own(self, ctx, inputs, dout=None, family=None, compared=None, also=(), **fields):
        """fovea's forward, or the backward of a forward run here, with `also` its own fields."""
        family = family or self.family
        if not self.backward:
            return Own(f"{family}_forward", ctx, *inputs, compared=compared, **fields)
        saved = getattr(fovea, f"{family}_forward")(ctx, *inputs, lse=True, **fields)[self.saved]
        fields.update(also)
        return Own(f"{family}_backward", ctx, *inputs, *saved, dout, compared=compared, **fields)
