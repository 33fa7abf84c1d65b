# SPDX-License-Identifier: Apache-2.0
"""Peers: the ranks of one call, what they send each other, and how they fail together."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from .._errors import FoveaError, InvalidArgument

TEXT = 1024  # bytes of what a rank tells the others before a call
TENSORS = 8  # at most, of one exchange
_by_group: dict = {}  # NCCL's group -> a gloo group of the same ranks, for what the host asks


def eager(function):
    """What torch.compiler.disable marks, without its import: torch.compile leaves it as it is."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "it exchanges with other ranks"
    return function


class PeerError(FoveaError):
    """An exchange failed: a rank died, or did not come within the group's timeout."""


def group_of(op, group):
    """The process group in None (all ranks), a ProcessGroup, or a DeviceMesh of one axis."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument(
            f"{op}: there is no process group: call torch.distributed.init_process_group first"
        )
    if group is None:
        return dist.group.WORLD
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise InvalidArgument(
                f"{op}: group is a DeviceMesh of {group.ndim} axes, wanted one: mesh[name]"
            )
        return group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{op}: group is a {type(group).__name__}, wanted a ProcessGroup, a DeviceMesh of one "
            "axis that this rank is in, or None"
        )
    return group


class Peers:
    """rank, size, and exchanges whose failures name the operation."""

    def __init__(self, op, group):
        self.op, self.group = op, group_of(op, group)
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)

    def world_rank(self, rank):
        return dist.get_global_rank(self.group, rank)

    @contextlib.contextmanager
    def naming(self, what):
        try:
            yield
        except FoveaError:
            raise
        except RuntimeError as why:
            text = str(why).strip().splitlines()[0] if str(why).strip() else type(why).__name__
            raise PeerError(
                f"{self.op}: rank {self.rank} of {self.size}: {what} failed, since a rank died or "
                f"did not come within the group's timeout: {text}"
            ) from why

    # Before a call

    def agree(self, check, describe):
        """Runs describe(), which validates the arguments and gives words that are the same on every
        rank.  What one rank refuses, or has otherwise, every rank refuses."""
        if not check or self.size == 1:
            return describe()
        refusal = None
        try:
            text = "; ".join(describe())
        except (FoveaError, TypeError) as why:
            refusal, text = why, f"!{why}"
        told = self.tell(text)
        if refusal is not None:
            raise refusal
        for rank, words in enumerate(told):
            if words.startswith("!"):
                raise InvalidArgument(f"{self.op}: rank {rank} refused its arguments: {words[1:]}")
        for rank, words in enumerate(told):
            if words != told[0]:
                mine, theirs = told[0].split("; "), words.split("; ")
                one, other = next(
                    (pair for pair in zip(mine, theirs) if pair[0] != pair[1]), (told[0], words)
                )
                raise InvalidArgument(
                    f"{self.op}: {one} on rank 0 and {other} on rank {rank}, wanted the same on "
                    "every rank"
                )
        return None

    def tell(self, text):
        """Each rank's text, cut to TEXT bytes, on every rank."""
        group = self.host_group()
        mine = torch.zeros(TEXT, dtype=torch.uint8)
        data = text.encode()[:TEXT]
        mine[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
        all_of = [torch.empty_like(mine) for _ in range(self.size)]
        with self.naming("the check of arguments"):
            dist.all_gather(all_of, mine, group=group)
        return [bytes(x.tolist()).rstrip(b"\0").decode(errors="replace") for x in all_of]

    def host_group(self):
        """A group whose exchanges the host sees at once: the group itself, or one of gloo."""
        if "gloo" in dist.get_backend(self.group):
            return self.group
        made = _by_group.get(self.group)
        if made is None:
            ranks = dist.get_process_group_ranks(self.group)
            made = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
            _by_group[self.group] = made
        return made

    # Exchanges

    def exchange(self, to, sent, source, received, step=0):
        """Starts sending tensors to rank `to` and receiving others from `source`; either is None
        where there is nothing.  `step` is the same on both sides, and no other's between two ranks.
        Gives what waits for both."""
        tag, ops = step * TENSORS, []
        if to is not None:
            ops += [
                dist.P2POp(dist.isend, x, self.world_rank(to), self.group, tag + i)
                for i, x in enumerate(sent)
            ]
        if source is not None:
            ops += [
                dist.P2POp(dist.irecv, x, self.world_rank(source), self.group, tag + i)
                for i, x in enumerate(received)
            ]
        what = f"the exchange with rank {to if to is not None else source}"
        if to is not None and source not in (None, to):
            what = f"the exchange with ranks {to} and {source}"
        with self.naming(what):
            works = dist.batch_isend_irecv(ops) if ops else []

        def wait(keep=sent):  # what is sent lives until then
            with self.naming(what):
                for work in works:
                    work.wait()
            return received

        return wait

    def gather(self, x):
        """x of every rank, (size, *x.shape)."""
        made = x.new_empty((self.size, *x.shape))
        with self.naming("an all-gather"):
            if self.size == 1:
                made[0].copy_(x)
            elif x.is_cuda:
                dist.all_gather_into_tensor(made, x.contiguous(), group=self.group)
            else:
                dist.all_gather(list(made.unbind(0)), x.contiguous(), group=self.group)
        return made


class Alone(Peers):
    """One rank, for calls that exchange nothing."""

    def __init__(self, op):
        self.op, self.group, self.rank, self.size = op, None, 0, 1


def peers_of(op, group):
    return group if isinstance(group, Peers) else Peers(op, group)


def tensors(op, ranks, **of):
    """Words for the tensors of a call; refuses what is no dense tensor of so many dimensions, or on
    another device than the first.  None is left out."""
    words, first = [], None
    for name, x in of.items():
        if x is None:
            words.append(f"{name} None")
            continue
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{op}: {name} is a {type(x).__name__}, wanted a torch.Tensor")
        wanted = ranks.get(name)
        if wanted is not None and x.dim() != wanted:
            raise InvalidArgument(
                f"{op}: {name} has {x.dim()} dimensions {tuple(x.shape)}, wanted {wanted}"
            )
        if first is None:
            first = (name, x.device)
        elif x.device != first[1]:
            raise InvalidArgument(
                f"{op}: {name} is on {x.device}, wanted {first[1]} as {first[0]}"
            )
        words.append(f"{name} is {tuple(x.shape)} {str(x.dtype).partition('.')[2]}")
    return words


def attend_shapes(op, q, k, v=None, names=("q", "k", "v")):
    """Refuses q (b, s, h, d), k (b, s, g, d), v (b, s, g, e) that do not fit together."""
    qn, kn, vn = names
    for name, x in ((kn, k), (vn, v)):
        if x is not None and x.shape[:2] != q.shape[:2]:
            raise InvalidArgument(
                f"{op}: {name} is {tuple(x.shape)}, wanted {tuple(q.shape[:2])} first as {qn}: a "
                "rank has the keys of its own tokens"
            )
        if x is not None and x.dtype != q.dtype:
            raise InvalidArgument(f"{op}: {name} has dtype {x.dtype}, wanted {q.dtype} as {qn}")
    if k.shape[3] != q.shape[3]:
        raise InvalidArgument(f"{op}: {kn} has {k.shape[3]} columns, wanted {q.shape[3]} as {qn}")
    if not k.shape[2] or q.shape[2] % k.shape[2]:
        raise InvalidArgument(
            f"{op}: {kn} has {k.shape[2]} heads, wanted a divisor of {q.shape[2]}"
        )
    if v is not None and v.shape[2] != k.shape[2]:
        raise InvalidArgument(f"{op}: {vn} has {v.shape[2]} heads, wanted {k.shape[2]} as {kn}")


def count(op, name, x):
    """A number of keys: an integer from 0 on."""
    if isinstance(x, bool) or not isinstance(x, int):
        raise TypeError(f"{op}: {name} is {x!r}, wanted an integer")
    if x < 0:
        raise InvalidArgument(f"{op}: {name} is {x}, wanted 0 or more")
    return x
