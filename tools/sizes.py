#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The law of sizes, over every line of src:

    a function    at most 120 lines, from the first of its signature to its closing brace
    a macro       the same: it may hold a function
    a template    at most six parameters

Comments and the line of `template <...>` count.  A lambda counts inside its function.  Prints
file:line, name and size for each breach and exits 1.

    tools/sizes.py           the check
    tools/sizes.py --longest the twenty largest functions and templates"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inc"}
MOST = {"lines": 120, "parameters": 6}
# What is larger until its owner mends it: it may shrink, and goes from here when it is small enough.
KNOWN = {
}
TOKEN = re.compile(r"""
    (?P<skip>\s+|//(?:\\\r?\n|[^\n])*|/\*.*?\*/)
  | (?P<text>(?:u8|[uUL])?(?:R"(?P<mark>[^\s()\\]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'))
  | (?P<directive>\#(?:/\*.*?\*/|\\\r?\n|[^\n])*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign>::|->|==|.)
""", re.X | re.S)
CLASSES = ("class", "struct", "union", "enum")
CLOSES = {"(": ")", "[": "]", "{": "}"}
# Words that parentheses follow without making a function.
CALLED = ("alignas", "__align__", "__attribute__", "__launch_bounds__", "decltype", "explicit", "noexcept",
          "requires")
TAILS = ("const", "noexcept", "override", "final", "try")


class Token(str):
    line = lines = 0


def tokens_of(text):
    """Words, signs and whole directives with their first lines; literals as 0; no comments."""
    found, line = [], 1
    for match in TOKEN.finditer(text):
        if not match["skip"]:
            literal = match["text"] or match["number"]
            found.append(Token("0" if literal else match[0]))
            found[-1].line, found[-1].lines = line, match[0].count("\n") + 1
        line += match[0].count("\n")
    return found


def closing(tokens, at):
    """Past the `>` of the `<` at `at`, and how many things commas part between them."""
    deep, angles, commas = 0, 0, 0
    for i in range(at, len(tokens)):
        token = tokens[i]
        if token in CLOSES:
            deep += 1
        elif token in CLOSES.values():
            deep -= 1
        elif deep == 0 and token == "<":
            angles += 1
        elif deep == 0 and token == ">":
            angles -= 1
            if angles == 0:
                return i + 1, 0 if i == at + 1 else commas + 1
        elif deep == 0 and angles == 1 and token == ",":
            commas += 1
        if deep < 0:
            break
    return at + 1, 0


def flat(tokens):
    """A declaration without what stands in <> and template heads, with (), [] and {} for what is in them."""
    found, at, stack = [], 0, []
    while at < len(tokens):
        token = tokens[at]
        if not stack and token == "<" and found and re.match(r"[A-Za-z_]", found[-1]) and found[-1] != "operator":
            end = closing(tokens, at)[0]
            if end > at + 1:
                if found[-1] == "template":
                    found.pop()
                at = end
                continue
        if token in CLOSES:
            if not stack:
                found.append(token + CLOSES[token])
            stack.append(token)
        elif token in CLOSES.values():
            stack and stack.pop()
        elif not stack:
            found.append(token)
        at += 1
    return found


def name_of(head):
    """What the function of a flat head is called; None where it opens none."""
    plain, skip = [], False
    for token in head:
        if not (skip and token == "()"):
            skip = token in CALLED
            if not skip:
                plain.append(token)
    begin = plain[:plain.index(":")] if ":" in plain else plain
    if "namespace" in plain or "()" not in begin:
        return None
    which = begin.index("()")
    if "operator" in begin:
        operator = begin.index("operator")
        which = begin.index("()", operator + 2) if begin[operator + 1] == "()" else begin.index("()", operator)
        return "operator" + "".join(begin[operator + 1:which])
    if "=" in begin[:which] or any(word in begin[which:] for word in CLASSES):
        return None
    first = which - 1
    while first >= 2 and begin[first - 1] == "::":
        first -= 2
    return "".join(begin[max(first, 0):which]) or "?"


def opened(tokens, begin, at):
    """What the `{` at `at` opens where declarations stand that began at `begin`: the name of a function,
    "" for declarations (a namespace, a class), None for an initialiser."""
    head = flat(tokens[begin:at])
    if not head or "namespace" in head or head == ["extern", "0"]:
        return ""
    if head[-1] == "requires" or head[-2:] == ["requires", "()"] and "requires" in head[:-2]:
        return None
    name = name_of(head)
    if name:
        members = ":" in head[head.index("()"):]
        last = head[-1]
        word = last == ">" or re.match(r"\w", last) and last not in TAILS
        return None if members and word else name
    kind = [i for i, token in enumerate(head) if token in CLASSES]
    return "" if kind and "=" not in head[:kind[0]] else None


def is_lambda(tokens, at):
    """Whether the `{` at `at` is a lambda's, by what stands before it: ] or ] (...) and words."""
    i = at - 1
    while i >= 0 and (re.match(r"\w", tokens[i]) or tokens[i] in ("->", "::", "<", ">", "*", "&")):
        i -= 1
    if i >= 0 and tokens[i] == ")":
        deep = 0
        while i >= 0:
            deep += (tokens[i] == ")") - (tokens[i] == "(")
            i -= 1
            if deep == 0:
                break
    return i >= 0 and tokens[i] == "]"


def templates(tokens):
    """(line, name, parameters) of every template head, lambdas' too."""
    for i, token in enumerate(tokens):
        lambda_head = token == "]" and tokens[i + 1:i + 2] == ["<"] and \
            re.match(r"\w+ [\w.]", " ".join(tokens[i + 2:i + 4]))
        if not (lambda_head or token == "template" and tokens[i + 1:i + 2] == ["<"]):
            continue
        end, count = closing(tokens, i + 1)
        rest = []
        while end < len(tokens) and tokens[end] not in (";", "{", "="):
            rest.append(tokens[end])
            end += 1
        rest = flat(rest)
        kind = next((k for k, word in enumerate(rest) if word in CLASSES + ("using", "concept")), None)
        if lambda_head:
            name = "lambda"
        elif kind is not None and "()" not in rest[:kind]:
            words = [word for word in rest[kind + 1:] if re.match(r"\w", word) and word not in CALLED]
            name = words[0] if words else "?"
        else:
            words = [word for word in rest if re.match(r"\w", word)]
            name = name_of(rest) or (words[-1] if words else "?")
        yield token.line, name, count


def functions(tokens):
    """(line, name, lines) of every function that is in no other, and of every macro."""
    scopes = [["declarations", 0]]  # kind; where the declaration began that opened it, its name
    begin, branches = 0, []
    for i, token in enumerate(tokens):
        if token.startswith("#"):
            if word := re.match(r"#\s*define\s+(\w+)", token):
                yield token.line, word[1], token.lines
            # Branches may open the same brace each: those of the first count.
            elif re.match(r"#\s*if", token):
                branches.append([[*scopes], None])
            elif re.match(r"#\s*el", token) and branches:
                start, end = branches[-1]
                branches[-1][1] = end or [*scopes]
                scopes = [*start]
            elif re.match(r"#\s*endif", token) and branches:
                scopes = branches.pop()[1] or scopes
            if begin == i:
                begin = i + 1
            continue
        kind = scopes[-1][0]
        if kind == "function":
            if token == "{":
                scopes.append(["function", begin, None])
            elif token == "}":
                _, start, name = scopes.pop()
                if name:
                    yield tokens[start].line, name, token.line - tokens[start].line + 1
                    begin = i + 1
        elif token in ("(", "["):
            scopes.append(["list", begin, None])
        elif token in (")", "]"):
            if len(scopes) > 1:
                scopes.pop()
        elif token == "{":
            name = opened(tokens, begin, i) if kind == "declarations" else None
            if name is None and is_lambda(tokens, i):
                name = "lambda"
            if name is None:
                scopes.append(["list", begin, None])
            elif name:
                scopes.append(["function", begin, name])
            else:
                scopes.append(["declarations", begin, None])
                begin = i + 1
        elif token == "}":
            if len(scopes) > 1:
                scopes.pop()
            if kind == "declarations":
                begin = i + 1
        elif token == ";" and kind == "declarations":
            begin = i + 1
        elif token == ":" and kind == "declarations" and tokens[i - 1] in ("public", "private", "protected"):
            begin = i + 1


def sizes(path):
    """(line, name, size, unit) of everything in a file."""
    tokens = tokens_of(path.read_text())
    yield from ((*found, "lines") for found in functions(tokens))
    yield from ((*found, "parameters") for found in templates(tokens))


def check(root, known):
    """What breaks the law below root/src, and how many things were measured."""
    broken, count, needed = [], 0, set()
    for file in sorted((root / "src").rglob("*")):
        if file.suffix not in SUFFIXES or not file.is_file():
            continue
        path = file.relative_to(root).as_posix()
        for line, name, size, unit in sizes(file):
            count += 1
            if size <= MOST[unit]:
                continue
            entry = (path, name, unit)
            needed.add(entry)
            if size > known.get(entry, 0):
                broken.append(f"{path}:{line}: {name}: {size} {unit}, at most {known.get(entry, MOST[unit])}")
    for path, name, unit in sorted(known.keys() - needed):
        broken.append(f"tools/sizes.py: KNOWN holds {path} {name} ({unit}), which is small enough: strike it")
    return broken, count


def main():
    if sys.argv[1:] == ["--longest"]:
        for unit in MOST:
            found = [(size, f"{file.relative_to(ROOT)}:{line}: {name}: {size} {unit}")
                     for file in (ROOT / "src").rglob("*") if file.suffix in SUFFIXES
                     for line, name, size, its in sizes(file) if its == unit]
            print("\n".join(text for _, text in sorted(found, key=lambda x: -x[0])[:20]))
        return 0
    broken, count = check(ROOT, KNOWN)
    print("\n".join(broken) if broken else f"sizes.py: {count} functions and templates keep the law")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
