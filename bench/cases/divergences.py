# SPDX-License-Identifier: Apache-2.0
"""The divergences of the experimental header beside eager PyTorch, which has every row's weights of
every key in memory, logits in the inputs' dtype and softmaxes in f32."""

import dataclasses

import fovea
import torch

from .base import Case, Own, gradient, pairs, size, turned, unrecorded

BLOCK = 64  # keys of a block of `pool`
STATISTICS = {
    "jensen_shannon": ("kl_teacher", "kl_student", "lse_teacher", "lse_student"),
    "indexer": ("lse_teacher", "lse_student"),
    "gather": ("kl", "lse_teacher", "lse_student"),
    "pool": ("lse_teacher", "lse_student"),
}


@dataclasses.dataclass(frozen=True)
class Divergence(Case):
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
    peer = "torch eager"
    memory = True

    @property
    def family(self):
        return f"x_kl_{self.kind}"

    def words(self):
        yield f"d{self.d}"
        yield "causal" if self.causal and not self.keys else None
        yield from (f"n{size(self.n)}", f"h{self.h}")
        yield f"x{self.heads}_f{self.f}" if self.heads else None
        yield f"keys{self.keys}" if self.keys else None
        yield self.unusual_dtype

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
        return super().limit

    @property
    def bytes(self):
        return self.h * self.n * (self.keys * self.d if self.keys else self.n) * 4

    def inputs(self, device, seed):
        """q and k of both sides and what else the operation reads, as torch lays them."""
        normal = self.draw(device, seed)
        key_heads, keys = 1 if self.keys else self.h, self.n
        teacher = [normal(1, self.h, self.n, self.d), normal(1, key_heads, self.n, self.d)]
        if self.kind == "indexer":
            weight = normal(1, self.n, self.heads, dtype=torch.float32)
            student = [normal(1, self.heads, self.n, self.f), normal(1, 1, self.n, self.f)]
            return *teacher, *student, weight / (self.heads * self.f) ** 0.5
        if self.kind == "pool":
            keys //= BLOCK
        sides = *teacher, normal(1, self.h, self.n, self.d), normal(1, key_heads, keys, self.d)
        if not self.keys:
            return sides
        index = normal(self.n, self.n, dtype=torch.float32).argsort(1)
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
        theirs = self.inputs(device, seed)
        students = theirs[2 : 5 if self.kind == "indexer" else 4]
        ours = [*turned(*theirs[:4]), *(x.detach() for x in theirs[4:])]
        if self.keys:
            ours[4] = ours[4][None, None].expand(1, self.h, -1, -1)
        fields = {} if self.keys else {"causal": self.causal}
        loss = lambda: self.loss(*theirs)
        saved = dict.fromkeys(STATISTICS[self.kind], True)
        if not self.backward:
            value = {"js" if self.kind == "jensen_shannon" else "kl": True}
            own = Own(self.op, ctx, *ours, compared=1, **(value | saved), **fields)
            return own, unrecorded(loss)
        statistics = getattr(fovea, f"{self.family}_forward")(ctx, *ours, **saved, **fields)
        heads = () if self.kind == "indexer" else (self.h,)
        gain = torch.ones(1, *heads, self.n, device=device)
        if self.kind in ("jensen_shannon", "gather"):
            fields |= {"dq_teacher": False, "dk_teacher": False}
        own = Own(self.op, ctx, *ours, *statistics, gain, **fields)
        return own, gradient(loss, students, gain)
