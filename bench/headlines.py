# SPDX-License-Identifier: Apache-2.0
"""The README's table: a dozen rows of bench/results, and where a peer is faster."""

import pathlib

import labels
import table

HERE = pathlib.Path(__file__).resolve().parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- bench/plot.py writes from here -->", "<!-- to here -->"
SLOWER = 0.97  # ratios under it are said
GPU, CPU = "nvidia-h200", "amd-epyc-2-threads"
ROWS = {  # {(device, operation): {case: what it is called}}
    (GPU, "attention_forward"): {
        "prefill_d128_causal_n16k": "prefill, causal, 16k tokens",
        "prefill_d128_full_n16k": "prefill, full, 16k tokens",
    },
    (GPU, "attention_backward"): {
        "prefill_d128_causal_n16k": "prefill's gradient, causal, 16k tokens",
        "prefill_d128_full_n16k": "prefill's gradient, full, 16k tokens",
    },
    (GPU, "attention_forward", "decode"): {
        "decode_b64_n8k": "decode, 64 sequences of 8k keys",
        "decode_b16_n32k_page16": "decode, 16 of 32k keys in pages of 16",
    },
    (GPU, "quant_forward"): {"prefill_d128_causal_n16k_e4m3": "FP8 prefill, causal, 16k tokens"},
    (GPU, "kl_forward"): {"d128_causal_n16k_of_compiled": "KL divergence, causal, 16k tokens"},
    (GPU, "kl_backward"): {"d128_causal_n16k_of_compiled": "its gradient"},
    (GPU, "conv_attention_forward"): {
        "conv_forward_6x11_d128_causal_n4k": "convolution, 6 x 11, 4k tokens"
    },
    (GPU, "conv_attention_backward"): {"conv_backward_6x11_d128_causal_n4k": "its gradient"},
    (GPU, "trace_forward"): {"trace_t128k_h32_d128_keep32_bf16": "trace, 128k tokens, keep 32"},
    (CPU, "attention_forward"): {
        "prefill_d128_causal_n2k_b1_h8_f32": "prefill, causal, 2k tokens, f32",
        "decode_b4_n4k_f32": "decode, 4 sequences of 4k keys, f32",
    },
}


def measured():
    """{device: its newest rows}"""
    return {
        path.stem: table.newest(table.read(path))
        for path in sorted((HERE / "results").glob("*.tsv"))
    }


def line(row, called):
    ms = float(row["ms"])
    time = f"{1000 * ms:.0f} µs" if ms < 1 else f"{ms:.2f} ms" if ms < 10 else f"{ms:.1f} ms"
    ratio, peer = float(row["ratio"]), labels.words(row).peer
    times = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
    return f"| {row['device']} | {called} | {time} | {labels.rate(row)} | {peer} | {times} |"


def slower(rows):
    """A sentence: at what a peer of the same work is faster."""
    found = {}
    for row in rows:
        if not labels.apart(row):
            where = "host" if ".host." in row["kernel"] else "GPU"
            what = f"`{row['op']}`" if row["op"].startswith("x_kl") else labels.words(row).what
            found.setdefault((what, where), []).append(float(row["ratio"]))
    parts = []
    for (what, where), ratios in found.items():
        behind = sorted(ratio for ratio in ratios if ratio < SLOWER)
        if behind:
            ends = " to ".join(f"{ratio:.2f}" for ratio in dict.fromkeys((behind[0], behind[-1])))
            parts.append(f"{what} on the {where} ({len(behind)} of {len(ratios)} rows, {ends})")
    return f"A peer is more than 3 % faster at {'; '.join(parts)}." if parts else ""


def block():
    devices = measured()
    rows = {
        (slug, row["op"], row["case"]): row
        for slug, found in devices.items()
        for row in reversed(found)  # the first peer of a case counts
    }
    every = [row for found in devices.values() for row in found]
    dates = sorted(row["date"][:10] for row in every)
    return "\n".join(
        [
            "| on | what | fovea | rate | beside | times as fast |",
            "| --- | --- | --- | --- | --- | --- |",
            *(
                line(rows[*key[:2], case], called)
                for key, cases in ROWS.items()
                for case, called in cases.items()
            ),
            "",
            f"bf16 and D128 unless said; medians, {dates[0]} to {dates[-1]}. {slower(every)}",
        ]
    )


def written():
    """The README with the table of today."""
    text = README.read_text()
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{block()}\n{END}{rest.split(END)[1]}"
