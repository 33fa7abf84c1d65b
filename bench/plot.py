#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/results/<device>.tsv -> <device>-<family>.png, and README.md's figures.

    bench/plot.py               draws a picture a family and device, and writes the README's table
    bench/plot.py --readme      writes the README's table alone; needs no matplotlib
    bench/plot.py --check       fails where pictures or table are not those of the newest rows

A picture shows, on a log axis, the peer's time over fovea's: a row a shape, a dot a length."""

import argparse
import hashlib
import math
import pathlib
import re
import struct
import sys

import headlines
import labels
import table

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results"
WIDTH, HEIGHT, DPI = 1200, 1300, 100
LINE = 24  # pixels of a row, fewer where a picture would be too high
INK, BAD, FAINT, BAND, BEHIND = "#222222", "#b3541e", "#b8b8b8", "#f2f2f0", "#fbe4d5"
TICKS = [n / 100 for n in (10, 20, 30, 50, 70, 80, 90, 95, 105, 110, 120, 130, 150)]
TICKS += [2, 3, 5, 7, 10, 20, 30, 50, 100, 200, 300]


def pictures():
    """{path of a picture: its rows}, of every device and family."""
    found = {}
    for path in sorted(RESULTS.glob("*.tsv")):
        for row in table.newest(table.read(path)):
            target = path.with_name(f"{path.stem}-{labels.words(row).family}.png")
            found.setdefault(target, []).append(row)
    return found


def digest(rows):
    """What a picture is told by: it carries this of the rows that it shows."""
    return hashlib.sha256(repr([list(row.values()) for row in rows]).encode()).hexdigest()


def natural(text):
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def sections(rows):
    """{section: {label: [(words, row)], shortest first}}, by operation, peer and shape."""
    found, operations, peers = {}, list(labels.OPERATIONS.values()), []
    for row in rows:
        words = labels.words(row)
        operations += [words.operation]
        peers += [words.peer]
        order = operations.index(words.operation), peers.index(words.peer)
        rest = found.setdefault(words.section, (order, {}))[1]
        rest.setdefault(words.label, []).append((words, row))
    ordered = {}
    for section, (_, rest) in sorted(found.items(), key=lambda item: item[1][0]):
        for cells in rest.values():
            cells.sort(key=lambda cell: cell[0].keys)
        ordered[section] = {label: rest[label] for label in sorted(rest, key=natural)}
    return ordered


def ticks(low, high):
    """Round numbers between the ends of a log axis, not too close to each other."""
    chosen = [1]
    for tick in sorted(TICKS, key=lambda tick: abs(math.log(tick))):
        gap = min(abs(math.log(tick / other)) for other in chosen)
        if low <= tick <= high and gap > 0.07 * math.log(high / low):
            chosen.append(tick)
    return sorted(chosen)


def axis(axes, ratios, count, tinted):
    low, high = min(0.94, 0.93 * min(ratios)), max(1.06, 1.07 * max(ratios))
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(count - 0.4, -0.5)
    marks = ticks(low, high)
    axes.set_xticks(marks, [f"{mark:g}" for mark in marks], fontsize=9)
    axes.xaxis.minorticks_off()
    axes.set_yticks([])
    if tinted:
        axes.axvspan(low, 1, color=BEHIND, zorder=0.7, linewidth=0, alpha=0.6)
    axes.grid(axis="x", color=FAINT, linewidth=0.5, zorder=1)
    axes.axvline(1, color=INK, linewidth=1.2, zorder=2)
    axes.tick_params(length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


class Picture:
    """Labels at the left, dots in the middle, at the right a column of ratios for each length."""

    LEFT, RIGHT, TOP, BOTTOM, COLUMN = 320, 80, 88, 50, 52

    def __init__(self, rows):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        self.plt, self.rows, self.sections = plt, rows, sections(rows)
        self.family = labels.words(rows[0]).family
        lengths = {words.length: words.keys for words in map(labels.words, rows)}
        self.lengths = sorted(lengths, key=lengths.get)
        shades = plt.get_cmap("viridis")
        last = max(1, len(self.lengths) - 1)
        self.colours = {n: shades(0.92 - 0.92 * i / last) for i, n in enumerate(self.lengths)}
        count = sum(1 + len(rest) for rest in self.sections.values())
        line = min(LINE, (HEIGHT - self.TOP - self.BOTTOM) / count)
        self.height = round(self.TOP + self.BOTTOM + line * count)
        self.figure = plt.figure(figsize=(WIDTH / DPI, self.height / DPI), dpi=DPI)
        self.columns = WIDTH - self.RIGHT - self.COLUMN * len(self.lengths)
        box = (self.LEFT, self.BOTTOM, self.columns - 30 - self.LEFT, line * count)
        sizes = (WIDTH, self.height) * 2
        self.axes = self.figure.add_axes([at / of for at, of in zip(box, sizes)])
        axis(self.axes, [float(row["ratio"]) for row in rows], count, self.family != "own")

    def text(self, x, y, text, **style):
        """x in pixels, y in rows."""
        transform = self.axes.get_yaxis_transform()
        box = self.axes.get_position()
        at = (x / WIDTH - box.x0) / box.width
        style = {"fontsize": 9, "va": "center", "color": INK} | style
        self.axes.text(at, y, text, transform=transform, clip_on=False, **style)

    def row(self, y, label, cells):
        self.text(24, y, label)
        ratios = [float(row["ratio"]) for _, row in cells]
        colours = [self.colours[words.length] for words, _ in cells]
        last = max(1, len(cells) - 1)
        spread = 0.34 if len(cells) > 1 else 0  # dots that lie close are told apart
        ys = [y + spread * (i / last - 0.5) for i in range(len(cells))]
        self.axes.plot(ratios, ys, color=FAINT, linewidth=2, zorder=3)
        self.axes.scatter(ratios, ys, c=colours, s=36, zorder=4, edgecolor="white", linewidth=0.6)
        for (words, _), ratio in zip(cells, ratios):
            x = self.columns + self.COLUMN * (self.lengths.index(words.length) + 0.5)
            behind = ratio < 0.995 and self.family != "own"
            style = {"color": BAD, "weight": "bold"} if behind else {}
            digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
            self.text(x, y, f"{ratio:.{digits}f}", ha="center", **style)
        self.text(WIDTH - 12, y, labels.rate(cells[-1][1]), ha="right", fontsize=8)

    def heads(self):
        def at(x, y, text, **style):
            self.figure.text(x / WIDTH, 1 - y / self.height, text, va="center", color=INK, **style)

        title = f"{self.rows[0]['device']}: {labels.TITLES[self.family]}"
        at(12, 20, title, fontsize=14, weight="bold")
        at(12, 44, labels.FAMILIES[self.family], fontsize=9.5)
        for i, length in enumerate(self.lengths):
            x = self.columns + self.COLUMN * (i + 0.5)
            at(x, 74, length, ha="center", fontsize=9.5, weight="bold")
            self.figure.text(
                x / WIDTH, 1 - 60 / self.height, "●", color=self.colours[length],
                ha="center", va="center", fontsize=12,
            )  # fmt: skip
        at(self.columns - 14, 74, "keys:", ha="center", fontsize=9)
        at(WIDTH - 12, 67, "rate at the\nlongest", ha="right", fontsize=8)
        self.below()

    def below(self):
        words = "time of the peer / time of fovea, log axis: right of 1 fovea is faster"
        if self.family == "own":
            words = "time of the other / time with the feature, log axis: at 1 it costs nothing"
        box, style = self.axes.get_position(), {"va": "center", "color": INK}
        middle, dates = (box.x0 + box.x1) / 2, sorted(row["date"][:10] for row in self.rows)
        self.figure.text(middle, 14 / self.height, words, ha="center", fontsize=9.5, **style)
        date = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        self.figure.text(12 / WIDTH, 14 / self.height, f"measured {date}", fontsize=8, **style)

    def save(self, path):
        self.heads()
        y = 0
        for section, rest in self.sections.items():
            self.axes.axhspan(y - 0.5, y + 0.5, color="white", zorder=2.5, linewidth=0)
            self.text(12, y, section, weight="bold", zorder=5)
            y += 1
            for i, (label, cells) in enumerate(rest.items()):
                if i % 2 == 0:
                    self.axes.axhspan(y - 0.5, y + 0.5, color=BAND, zorder=0.5, linewidth=0)
                self.row(y, label, cells)
                y += 1
        self.figure.savefig(path, dpi=DPI, metadata={"Rows": digest(self.rows)})
        self.plt.close(self.figure)


def facts(path):
    """Width, height and the digest of a PNG file that we drew."""
    data, at, said = path.read_bytes(), 8, ""
    width, height = struct.unpack(">II", data[16:24])
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"tEXt" and data[at + 8 :].startswith(b"Rows\0"):
            said = data[at + 13 : at + 8 + size].decode()
        at += 12 + size
    return width, height, said


def faults():
    """Sentences: what is not of the newest rows."""
    wanted = pictures()
    for path in sorted({*wanted, *RESULTS.glob("*.png")}):
        name = path.relative_to(HERE.parent)
        if path not in wanted:
            yield f"{name} is of no rows: delete it"
        elif not path.exists():
            yield f"{name} is missing: run bench/plot.py"
        else:
            width, height, said = facts(path)
            if said != digest(wanted[path]):
                yield f"{name} is not of the newest rows: run bench/plot.py"
            if width > WIDTH or height > HEIGHT:
                yield f"{name} is {width} x {height}, wanted at most {WIDTH} x {HEIGHT}"
            if f"(results/{path.name})" not in (HERE / "README.md").read_text():
                yield f"bench/README.md does not show results/{path.name}"
    if headlines.README.read_text() != headlines.written():
        yield "README.md's table is not of the newest rows: run bench/plot.py --readme"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--readme", action="store_true", help="the README's table alone")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    args = parser.parse_args()
    if args.check:
        found = list(faults())
        print("\n".join(found) or "pictures and table are of the newest rows")
        sys.exit(1 if found else 0)
    if not args.readme:
        wanted = pictures()
        for path in set(RESULTS.glob("*.png")) - set(wanted):
            path.unlink()
        for path, rows in wanted.items():
            Picture(rows).save(path)
            print(path.relative_to(HERE.parent))
    headlines.README.write_text(headlines.written())


if __name__ == "__main__":
    main()
