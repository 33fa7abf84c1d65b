# SPDX-License-Identifier: Apache-2.0
"""What only a CUDA device shows: graphs, streams, several devices, torch's own SDPA on fovea."""

import fovea
import fovea.torch as ft
import pytest
import torch
from formula import close

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and fovea.device_count("cuda")), reason="needs a CUDA device"
)


def inputs(device="cuda", dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(2, 96, h, 64, device=device, dtype=dtype) for h in (8, 2, 2)]


def test_graph_capture():
    q, k, v = inputs()
    for _ in range(2):  # takes the workspace, which a capture cannot
        ft.attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = ft.attention(q, k, v, causal=True)
    for x in (q, k, v):
        x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(o, ft.attention(q, k, v, causal=True))


def test_graph_capture_of_a_training_step():
    q, k, v = (x.requires_grad_() for x in inputs())

    def step():
        o = ft.attention(q, k, v, causal=True)
        return torch.autograd.grad(o, (q, k, v), torch.ones_like(o))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        want = [step() for _ in range(2)][-1]
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(made, want))


def test_the_current_stream_is_followed():
    q, k, v = inputs()
    want = ft.attention(q, k, v)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        x = q * 2  # waits on this stream
        o = ft.attention(x, k, v, scale=1 / 16)
    stream.synchronize()
    close(o, want, 2e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_the_device_of_the_tensors_is_used():
    want = ft.attention(*inputs("cuda:0"))
    o = ft.attention(*(x.to("cuda:1") for x in inputs("cuda:0")))  # cuda:0 is current
    assert o.device.index == 1 and torch.equal(o.cpu(), want.cpu())
    with pytest.raises(fovea.InvalidArgument, match="k is on cuda:1"):
        q, k, v = inputs("cuda:0")
        ft.attention(q, k.to("cuda:1"), v)


@pytest.mark.skipif(
    not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="needs torch 2.11"
)
@pytest.mark.parametrize("d", [64, 36])
def test_torch_s_sdpa_runs_on_fovea(d):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 96, d, device="cuda", dtype=torch.float16) for _ in range(3))
    for x in (q, k, v):
        x.requires_grad_()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        want = sdpa(q, k, v, is_causal=True)
        dout = torch.randn_like(want)
        grads = torch.autograd.grad(want, (q, k, v), dout)
        ft.activate()
        try:
            o = sdpa(q, k, v, is_causal=True)
            assert "attention_forward" in ft.context("cuda:0").last_kernel
            made = torch.autograd.grad(o, (q, k, v), dout)
            with pytest.raises(fovea.Unsupported, match="dropout_p is 0.5"):
                sdpa(q, k, v, dropout_p=0.5)
        finally:
            torch.nn.attention.restore_flash_attention_impl()
    for a, b in zip((o, *made), (want, *grads)):
        close(a, b, 1e-2)


def test_mixed_devices_have_a_sentence():
    q, k, v = inputs()
    with pytest.raises(fovea.InvalidArgument, match="k is on cpu, wanted cuda:0 as q"):
        ft.attention(q, k.cpu(), v)
