# SPDX-License-Identifier: Apache-2.0
"""Comments of the headers as Markdown: paragraphs, tables of two columns, and formulas as they stand."""

import re

IDENTIFIER = r"[A-Za-z]\w*_\w*\*?|[A-Za-z]\w*\*(?=[ ,.;)])"
TOKEN = re.compile(
    r"(?P<code>`[^`]+`)"
    r"|(?P<header>\b(?:experimental/)?\w+\.h\b)"
    r"|(?P<paper>\b\d{4}\.\d{5}\b)"
    r"|(?P<kernel>\b[a-z]+_[a-z_]+(?:\.\w+){2,})"
    rf"|(?P<name>(?<![\w.]){IDENTIFIER})"
    r"|(?P<mark>[\\*_<>\[\]|#])"
)


class Prose:
    """Inline text: names as code, operations and headers as links.

    pages: {name: address from the site's root}; here: the address of the page it stands on."""

    def __init__(self, pages, here):
        self.pages, self.up, self.here = pages, "../" * here.count("/"), here

    def link(self, name):
        address = self.pages.get(name.removeprefix("fovea_"))
        return f"{self.up}{address}" if address and address != self.here else None

    def named(self, name):
        address = self.link(name)
        return f"[`{name}`]({address})" if address else f"`{name}`"

    def token(self, match):
        kind, text = match.lastgroup, match[0]
        if kind == "code":
            return self.named(text.strip("`"))
        if kind == "header":
            address = self.link(text)
            return f"[{text}]({address})" if address else text
        if kind == "paper":
            return f"[{text}](https://arxiv.org/abs/{text})"
        if kind == "kernel":
            return f"`{text}`"
        if kind == "name":
            return self.named(text)
        return {"<": "&lt;", ">": "&gt;"}.get(text, "\\" + text)

    def __call__(self, text):
        return TOKEN.sub(self.token, text)

    def cell(self, text):
        """Of a table: a bar would end it."""
        return self(text).replace("\\|", "&#124;")


def columns(lines):
    """Rows of (name, words) where a block is a table of two columns, else None."""
    rows, start = [], None
    for line in lines:
        if not line.strip():
            return None
        found = re.match(r"( +)(\S(?:.*?\S)?)( {2,})(\S.*)$", line)
        indent = len(line) - len(line.lstrip())
        if start is not None and indent == start and rows:
            rows[-1][1] += " " + line.strip()
            continue
        if not found or found.start(4) > 26 or re.search(r"[=<>]", found[2]):
            return None
        if start not in (None, found.start(4)):
            return None
        start = found.start(4)
        rows.append([found[2], found[4]])
    plain = all("  " not in words.strip() for _, words in rows)
    return rows if len(rows) > 1 and plain else None


def blocks(text):
    """(is it indented, lines) of each block; empty lines inside a block of formulas stay."""
    found = []
    for line in text.split("\n"):
        if not line.strip():
            if found and found[-1][0]:
                found[-1][1].append("")
            else:
                found.append((False, []))
            continue
        indented = line.startswith("  ") or (line.startswith(" ") and bool(found) and found[-1][0])
        if not found or found[-1][0] != indented:
            found.append((indented, []))
        found[-1][1].append(line)
    for indented, lines in found:
        while lines and not lines[-1]:
            lines.pop()
        if lines:
            yield indented, lines


def fence(lines, language="text"):
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return f"```{language}\n" + "\n".join(line[indent:] for line in lines) + "\n```\n"


def headed(paragraph):
    """(heading, rest): a paragraph's first sentence where it is a title."""
    found = re.match(
        r"([A-Z][\w ,'-]{3,40}?)(?: \(printed by [^)]*\))?[.:](?:  (.+)|)$", paragraph, re.S
    )
    if found and len(found[1].split()) <= 5:
        return found[1], found[2] or ""
    return None, paragraph


def markdown(text, prose, heading=None):
    """heading: "##" makes headings of titles; without it they are bold."""
    out, last = [], None
    every = list(blocks(text))
    for at, (indented, lines) in enumerate(every):
        if indented and (rows := columns(lines)):
            out.append("| | |\n| --- | --- |")
            out[-1] += "".join(f"\n| {prose.cell(a)} | {prose.cell(b)} |" for a, b in rows) + "\n"
        elif indented:
            language = "c" if lines[0].strip().startswith("#include") else "text"
            out.append(fence(lines, language))
        else:
            title, rest = headed("\n".join(lines))
            if title and not rest and at == len(every) - 1:  # a sentence alone is no title
                title, rest = None, "\n".join(lines)
            if title and title == last and not rest:  # a table under the same title
                continue
            last = title
            rest = prose(rest.replace("\n", " ").replace("  ", " "))
            if title and heading:
                out += [f"{heading} {title}\n"] + ([rest + "\n"] if rest else [])
            elif title:
                out.append(f"**{title}.** {rest}\n" if rest else f"**{title}.**\n")
            else:
                out.append(rest + "\n")
    return "\n".join(out)


def limits(text):
    """(the text without its paragraph of limits, that paragraph)."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.startswith("Limits")), None)
    if start is None:
        return text, ""
    end = start + 1
    while end < len(lines) and lines[end].strip() and not re.match(r"(Source|Bits):", lines[end]):
        end += 1
    kept = "\n".join(lines[:start] + lines[end:]).strip()
    words = "\n".join(lines[start:end])
    return kept, re.sub(
        r"^Limits(?: on (tensor cores[^:]*))?: ", lambda m: f"On {m[1]}: " if m[1] else "", words
    )
