# SPDX-License-Identifier: Apache-2.0
"""trace_forward by its definition (include/fovea/trace.h) in PyTorch: what a user writes first, all
row blocks at once.  The two loops over keys are PyTorch's, which gathers key blocks and multiplies
them in batches, or Triton's, a program a row block.

Tensors are (h, n, d), n a multiple of the block; no masks but the causal one."""

import dataclasses

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

GATHERED = 1 << 30  # bytes of key blocks that PyTorch gathers at a time

if triton:

    @triton.jit
    def score_kernel(
        q, k, block, score, n, blocks,
        KEEP: tl.constexpr, B: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    ):  # fmt: skip
        item = tl.program_id(0).to(tl.int64)
        head, own = item // blocks, item % blocks
        inside, column = tl.arange(0, B), tl.arange(0, D)
        row = own * B + inside
        rows = tl.load(q + (head * n + row)[:, None] * D + column[None, :])
        for slot in range(KEEP):
            at = tl.load(block + item * KEEP + slot)
            if at >= 0:
                key = at * B + inside
                keys = tl.load(k + (head * n + key)[None, :] * D + column[:, None])
                x = tl.dot(rows, keys, input_precision="ieee")
                if CAUSAL:
                    x = tl.where(key[None, :] <= row[:, None], x, -float("inf"))
                tl.store(score + item * KEEP + slot, tl.max(x))

    @triton.jit
    def attend_kernel(
        q, k, v, block, o, n, blocks, scale,
        KEEP: tl.constexpr, B: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    ):  # fmt: skip
        item = tl.program_id(0).to(tl.int64)
        head, own = item // blocks, item % blocks
        inside, column = tl.arange(0, B), tl.arange(0, D)
        row = own * B + inside
        rows = tl.load(q + (head * n + row)[:, None] * D + column[None, :])
        top = tl.full([B], -float("inf"), tl.float32)
        total = tl.zeros([B], tl.float32)
        sum_v = tl.zeros([B, D], tl.float32)
        for slot in range(KEEP):
            at = tl.load(block + item * KEEP + slot)
            if at >= 0:
                key = at * B + inside
                keys = tl.load(k + (head * n + key)[None, :] * D + column[:, None])
                x = tl.dot(rows, keys, input_precision="ieee") * scale
                if CAUSAL:
                    x = tl.where(key[None, :] <= row[:, None], x, -float("inf"))
                new = tl.maximum(top, tl.max(x, 1))
                base = tl.where(new == -float("inf"), 0.0, new)
                p, shrink = tl.exp(x - base[:, None]), tl.exp(top - base)
                values = tl.load(v + (head * n + key)[:, None] * D + column[None, :])
                total = total * shrink + tl.sum(p, 1)
                sum_v = sum_v * shrink[:, None] + tl.dot(p.to(values.dtype), values)
                top = new
        tl.store(
            o + (head * n + row)[:, None] * D + column[None, :],
            (sum_v / total[:, None]).to(o.dtype.element_ty),
        )


@dataclasses.dataclass
class Peer:
    keep: int
    block: int = 64
    causal: bool = True
    loops: str = "torch"  # or triton

    def trace(self, q, k, v):
        return self.attend(q, k, v, self.select(q, k)[0])

    def select(self, q, k):
        """(h, blocks, keep) key blocks, -1 none, and their scores."""
        h, n, _ = q.shape
        blocks = n // self.block
        own = torch.arange(blocks, device=q.device)[None, :, None]

        def first(begin, end):
            return torch.where(begin < end, begin, -1)

        at = torch.arange(self.keep, device=q.device)
        reach = own + 1 if self.causal else torch.full_like(own, blocks)
        begin, end = (((at + i) * reach // self.keep).expand(h, -1, -1) for i in (0, 1))
        best = self.score(q, k, first(begin, end))
        for _ in range((blocks - 1).bit_length()):
            middle = begin + (end - begin + 1) // 2
            right = self.score(q, k, first(middle, end))
            begin, end = torch.cat((begin, middle), -1), torch.cat((middle, end), -1)
            best = torch.cat((best, right), -1)
            # Twice stable: by block, then by score.
            order = torch.where(begin < end, begin, blocks).argsort(dim=-1, stable=True)
            scores = best.gather(-1, order)
            order = order.gather(-1, scores.argsort(dim=-1, descending=True, stable=True))
            begin, end, best = (x.gather(-1, order[..., : self.keep]) for x in (begin, end, best))
        return first(begin, end), best

    def score(self, q, k, block):
        """The largest product of each row block with key blocks (h, blocks, keep)."""
        h, n, d = q.shape
        if self.loops == "triton":
            block = block.contiguous()
            out = torch.full(block.shape, -torch.inf, device=q.device)
            score_kernel[(block.shape[0] * block.shape[1],)](
                q, k, block, out, n, n // self.block, self.keep, self.block, d, self.causal
            )
            return out
        out = torch.empty(block.shape, device=q.device)
        for head, here, x in self._products(q, k, block):
            out[head, here] = x.amax((1, 3)).masked_fill_(block[head, here] < 0, -torch.inf)
        return out

    def attend(self, q, k, v, block):
        """Softmax attention over the key blocks."""
        h, n, d = q.shape
        out = torch.empty_like(q)
        if self.loops == "triton":
            attend_kernel[(h * (n // self.block),)](
                q, k, v, block.contiguous(), out, n, n // self.block, d**-0.5,
                self.keep, self.block, d, self.causal,
            )  # fmt: skip
            return out
        rows = out.view(h, -1, self.block, d)
        values = v.view(h, -1, self.block, d)
        for head, here, x in self._products(q, k, block):
            at = block[head, here]
            x.mul_(d**-0.5).masked_fill_((at < 0)[:, None, :, None], -torch.inf)
            p = x.flatten(2).softmax(-1).to(v.dtype)
            rows[head, here] = p @ values[head, at.clamp(min=0)].flatten(1, 2)
        return out

    def _products(self, q, k, block):
        """(head, row blocks, (row blocks, rows, slots, keys) f32 products), some row blocks at a
        time."""
        h, n, d = q.shape
        blocks, keep = block.shape[1:]
        rows, keys = (x.reshape(h, blocks, self.block, d) for x in (q, k))
        inside = torch.arange(self.block, device=q.device)
        step = max(1, GATHERED // (keep * self.block * d * q.element_size()))
        for head in range(h):
            for begin in range(0, blocks, step):
                here = slice(begin, begin + step)
                at = block[head, here]
                seen = keys[head, at.clamp(min=0)].flatten(1, 2).transpose(1, 2)
                if q.is_cuda and q.dtype != torch.float32:
                    x = torch.bmm(rows[head, here], seen, out_dtype=torch.float32)
                else:
                    x = rows[head, here] @ seen
                x = x.float().view(-1, self.block, keep, self.block)
                if self.causal:
                    own = torch.arange(blocks, device=q.device)[here]
                    last = (own[:, None] * self.block + inside)[:, :, None, None]
                    key = (at[:, :, None] * self.block + inside)[:, None]
                    x.masked_fill_(key > last, -torch.inf)
                yield head, here, x


def edges(selected, weight, layer=0):
    """Records {layer, head, row block, key block, weight} of (h, blocks, keep) slots."""
    at = (selected >= 0).nonzero()
    head, own, _ = at.unbind(1)
    key = selected[selected >= 0]
    words = torch.stack((torch.full_like(head, layer), head, own, key), 1).int()
    return torch.cat((words, weight[selected >= 0].float().view(torch.int32)[:, None]), 1)
