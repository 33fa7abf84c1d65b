# SPDX-License-Identifier: Apache-2.0
"""The divergences of the experimental header beside eager PyTorch, which has every row's weights of
every key in memory, logits in the inputs' dtype and softmaxes in f32."""

import dataclasses
import functools

import fovea
import torch
from counts import BACKWARD_LIMITS, DTYPES, LIMITS, name_of, pairs, size

BLOCK = 64  # keys of a block of `pool`
STATISTICS = {
    "jensen_shannon": ("kl_teacher", "kl_student", "lse_teacher", "lse_student"),
    "indexer": ("lse_teacher", "lse_student"),
    "gather": ("kl", "lse_teacher", "lse_student"),
    "pool": ("lse_teacher", "lse_student"),
}


@dataclasses.dataclass(frozen=True)
class Divergence:
    """`kind` of a teacher of h heads, b 1, and with `backward` the gradients of its student (the
    peer's graph is built beforehand).  `heads` and `f`: of the indexer.  `keys`: of the list that
    all heads of a row share, drawn at random; each side then has one key head."""

    kind: str
    h: int
    n: int
    d: int
    dtype: str = "bf16"
    causal: bool = True
    backward: bool = False
    heads: int = 0
    f: int = 0
    keys: int = 0
    unit = "TFLOP/s"
    scale = 1e-12
    peer = "torch eager"

    @property
    def op(self):
        return f"x_kl_{self.kind}_{'backward' if self.backward else 'forward'}"

    @property
    def name(self):
        return name_of(
            f"d{self.d}",
            "causal" if self.causal and not self.keys else None,
            f"n{size(self.n)}",
            f"h{self.h}",
            f"x{self.heads}_f{self.f}" if self.heads else None,
            f"keys{self.keys}" if self.keys else None,
            None if self.dtype == "bf16" else self.dtype,
        )

    @property
    def work(self):
        """Each product once: the logits, and of a backward the student's two sums."""
        seen = self.n * self.keys if self.keys else pairs(self.n, self.n, self.causal)
        teacher, student = seen * self.h * self.d, seen * self.h * self.d
        if self.kind == "indexer":
            student = seen * self.heads * self.f
        if self.kind == "pool":
            student //= BLOCK
        return 2 * (teacher + student * (3 if self.backward else 1))

    @property
    def limit(self):
        if self.keys and self.backward:
            return 3e-2  # the peer adds the gradients of a key up in bf16
        return (BACKWARD_LIMITS if self.backward else LIMITS)[self.dtype]

    @property
    def bytes(self):
        return self.h * self.n * (self.keys * self.d if self.keys else self.n) * 4

    def inputs(self, device, seed):
        """q and k of both sides and what else the operation reads, as torch lays them."""
        generator = torch.Generator(device).manual_seed(seed)

        def draw(*shape):
            x = torch.randn(1, *shape, generator=generator, device=device)
            return x.to(DTYPES[self.dtype])

        key_heads, keys = 1 if self.keys else self.h, self.n
        teacher = [draw(self.h, self.n, self.d), draw(key_heads, self.n, self.d)]
        if self.kind == "indexer":
            weight = torch.randn(1, self.n, self.heads, generator=generator, device=device)
            student = [draw(self.heads, self.n, self.f), draw(1, self.n, self.f)]
            return *teacher, *student, weight / (self.heads * self.f) ** 0.5
        if self.kind == "pool":
            keys //= BLOCK
        sides = *teacher, draw(self.h, self.n, self.d), draw(key_heads, keys, self.d)
        if not self.keys:
            return sides
        index = torch.rand(self.n, self.n, generator=generator, device=device).argsort(1)
        return *sides, index[:, : self.keys].int().contiguous()

    def hidden(self, n, device):
        return torch.ones(n, n, dtype=torch.bool, device=device).triu(1)

    def logits(self, q, k):
        x = (q @ k.transpose(2, 3)).float() * q.shape[3] ** -0.5
        return x.masked_fill_(self.hidden(self.n, q.device), -1e30) if self.causal else x

    def loss(self, q_t, k_t, q_s, k_s, more=None):
        """The peer's divergence of each row."""

        def divergence(log_p, log_r):
            kl = torch.nn.functional.kl_div(log_r, log_p, reduction="none", log_target=True)
            return kl.sum(-1)

        if self.kind == "jensen_shannon":
            p, r = self.logits(q_t, k_t).log_softmax(3), self.logits(q_s, k_s).log_softmax(3)
            m = torch.logaddexp(p, r) - torch.tensor(2.0).log()
            return (divergence(p, m) + divergence(r, m)) / 2
        if self.kind == "indexer":
            p = self.logits(q_t, k_t).softmax(3).mean(1)
            z = torch.relu(q_s @ k_s.transpose(2, 3)).float()
            b = torch.einsum("bhst,bsh->bst", z, more)
            if self.causal:
                b = b.masked_fill(self.hidden(self.n, b.device), -1e30)
            return torch.xlogy(p, p).sum(2) - (p * b.log_softmax(2)).sum(2)
        if self.kind == "gather":
            p, r = (
                torch.einsum("bhsd,snd->bhsn", q, k[0, 0][more.long()]).float() * self.d**-0.5
                for q, k in ((q_t, k_t), (q_s, k_s))
            )
            return divergence(p.log_softmax(3), r.log_softmax(3))
        p = self.logits(q_t, k_t).softmax(3).unflatten(3, (-1, BLOCK)).sum(4)
        r = (q_s @ k_s.transpose(2, 3)).float() * self.d**-0.5
        if self.causal:
            r = r.masked_fill(self.hidden(self.n, r.device)[:, ::BLOCK], -1e30)
        return torch.xlogy(p, p).sum(3) - (p * r.log_softmax(3)).sum(3)

    def setup(self, ctx, device, seed):
        q_t, k_t, q_s, k_s, *more = theirs = self.inputs(device, seed)
        ours = [x.detach().transpose(1, 2).contiguous() for x in (q_t, k_t, q_s, k_s)]
        if self.keys:
            ours.append(more[0][None, None].expand(1, self.h, -1, -1))
        else:
            ours += [x.detach() for x in more]  # theirs may require grad later
        fields = {} if self.keys else {"causal": self.causal}
        op = getattr(fovea, self.op)
        value = "js" if self.kind == "jensen_shannon" else "kl"
        statistics = STATISTICS[self.kind]
        outputs = dict.fromkeys((value, *(x for x in statistics if x != value)), True)
        forward = functools.partial(getattr(fovea, f"x_kl_{self.kind}_forward"), ctx, *ours)
        if not self.backward:

            def run():
                return forward(**outputs, **fields)[:1]

            run.workspace = getattr(fovea, f"{self.op}_workspace")(ctx, *ours, **outputs, **fields)

            def peer():
                with torch.no_grad():
                    return [self.loss(*theirs)]

            return run, peer
        saved = forward(**dict.fromkeys(statistics, True), **fields)
        students = [x.requires_grad_() for x in theirs[2 : 5 if self.kind == "indexer" else 4]]
        result = self.loss(*theirs)
        gain = torch.ones_like(result)
        if self.kind in ("jensen_shannon", "gather"):
            fields |= {"dq_teacher": False, "dk_teacher": False}

        def run():
            dq, dk, *rest = op(ctx, *ours, *saved, gain, **fields)
            return [dq.transpose(1, 2), dk.transpose(1, 2), *rest]

        run.workspace = getattr(fovea, f"{self.op}_workspace")(ctx, *ours, *saved, gain, **fields)
        return run, lambda: torch.autograd.grad(result, students, gain, retain_graph=True)
