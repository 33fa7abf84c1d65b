#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/api.py against headers that are wrong in one line: each is refused with its file, its line
and the reason.  Then the ABI gate: appends pass, everything else does not.  Then what people read: the
glossary of core.h is DIMS of tools/api.py, lines and sentences are short."""
import copy
import json
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import api  # noqa: E402
import emit_recipes  # noqa: E402

# header, what is there, what is put there, words of the refusal
WRONG = [
    ("rope.h", "/* SPDX", "// SPDX", "SPDX line first"),
    ("rope.h", "[in] (b, s, h, d) f32", "(b, s, h, d) f32", "wanted `[in|out|inout"),
    ("rope.h", "[in] (b, s, h, d) f32", "[in] (b, s, h, D) f32", "unknown dim `D`"),
    ("rope.h", "[in] (b, s, h, d) f32", "[in] (b, s, h, d, n, e) f32", "6 dims"),
    ("rope.h", "[in] (b, s, h, d) f32", "[in] (b, s, h, d) f33", "is not `as x`"),
    ("rope.h", "[in] (b, s, h, d) f32 f16 bf16", "[in] (b, s, h, d) ", "no dtype"),
    ("rope.h", "[in] (b, s, h, d) f32 f16 bf16", "[in] (b, s, h, d) f32 f16 f32", "a dtype twice"),
    ("attention.h", "(b, s, h, e) as q or f32 */", "(b, s, h, e) as q or */", "is not `as x`"),
    ("attention.h", "(b, s, h, e) as q or f32 */", "(b, s, h, e) as q e4m3 */", "is not `as x`"),
    ("attention.h", "(b, s, h, e) as q or f32 */", "(b, s, h, e) as q or e4m3 or i8 */", "is not `as x`"),
    ("rope.h", "[in] (b, s, h, d) f32", "[in, sums] (b, s, h, d) f32", "only an output sums"),
    ("rope.h", "(b, s, h, d) as x: may be x", "(b, s, h, d) as q: may be x", "names no required tensor"),
    ("rope.h", "(b, s, h, d) as x: may be x", "(b, s, h, d) as x: may be z", "wanted `may be x`"),
    ("rope.h", "  int32_t reserved;         /**< 0 */\n} fovea_rope_forward", "} fovea_rope_forward", "hidden padding at the end"),
    ("rope.h", "  int64_t position_begin;", "  int32_t position_begin;", "hidden padding before original_len"),
    ("rope.h", "  float base;              /**< 0: 10000; with frequency read by yarn alone */", "  float base;", "base has no /**< comment */"),
    ("rope.h", "frequency read by yarn alone */", "frequency read by yarn alone", "comment above has no end"),
    ("rope.h", "  float base; ", "  double base; ", "unknown type double"),
    ("rope.h", "  float base; ", "  float base, root; ", "one field a line"),
    ("rope.h", "  float factor; ", "  float base; ", "base stands twice"),
    ("rope.h", "sizeof(fovea_rope_forward_params) */", "sizeof(rope) */", "the first field is"),
    ("rope.h", "  FOVEA_SCALING_LINEAR = 1,", "  FOVEA_SCALING_LINEAR,", "one value a line"),
    ("rope.h", "  FOVEA_SCALING_LINEAR = 1,", "  FOVEA_SCALING_LINEAR = 0,", "one number twice"),
    ("rope.h", "#include \"core.h\"", "#include \"core.h\"\nint stray;", "outside the dialect"),
    ("rope.h", "FOVEA_API fovea_status fovea_rope_forward(\n", "FOVEA_API fovea_status fovea_rope_forwards(\n", "wanted `fovea_status fovea_rope_forward("),
    ("cache.h", "typedef struct fovea_cache_copy_params {", "#include \"core.h\"\ntypedef struct fovea_cache_copy_params {", "has no /** comment"),
    ("rope.h", "    fovea_context* ctx, const fovea_rope_forward_params* params);", "    fovea_context*, const fovea_rope_forward_params* params);", "cannot read the argument"),
    ("cache.h", "fovea_cache_copy_params", "fovea_cache_move_params", "no struct fovea_cache_copy_params"),
    ("experimental/kl.h", "fovea_x_kl_indexer_forward_workspace(", "fovea_kl_indexer_forward_workspace(", "begin with fovea_x_"),
    ("rope.h", "typedef enum fovea_scaling {", "typedef enum fovea_x_scaling {", "begin with fovea_x_"),
    ("core.h", "  FOVEA_E8M0 = 12", "  FOVEA_E8M1 = 12", "fovea_dtype and DTYPES"),
    ("core.h", "FOVEA_API fovea_status fovea_free(fovea_context* ctx, void* data)", "FOVEA_API fovea_status fovea_free(fovea_context* ctx, fovea_data* data)", "unknown type fovea_data*"),
]


class Dialect(unittest.TestCase):
    def test_headers_are_read(self):
        parsed = api.parse(ROOT / "include/fovea")
        self.assertEqual(len(parsed["ops"]) * 2, sum("op" in f for f in parsed["functions"]))

    def test_wrong_lines_are_refused(self):
        for header, there, put, reason in WRONG:
            with self.subTest(put=put), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder) / "fovea"
                shutil.copytree(ROOT / "include/fovea", folder)
                text = (folder / header).read_text()
                self.assertIn(there, text)
                (folder / header).write_text(text.replace(there, put))
                with self.assertRaises(api.Refused) as refused:
                    api.parse(folder)
                self.assertIn(reason, str(refused.exception))
                self.assertRegex(str(refused.exception), r"\.h:\d+: |^\w+\.h: |^src/ops\.inc: ")


    def test_several_dtypes_stand_behind_as(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "fovea"
            shutil.copytree(ROOT / "include/fovea", folder)
            text = (folder / "attention.h").read_text()
            there, put = "(b, s, h, e) as q or f32 */", "(b, s, h, e) as q or f32 e4m3 e5m2 i8 */"
            self.assertIn(there, text)
            (folder / "attention.h").write_text(text.replace(there, put))
            params = next(s for s in api.parse(folder)["structs"] if s["name"] == "fovea_attention_forward_params")
            field = next(f for f in params["fields"] if f["name"] == "o")
            self.assertEqual((field["dtype_as"], field["dtypes"]), ("q", ["f32", "e4m3", "e5m2", "i8"]))

    def test_a_comment_goes_on_over_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "fovea"
            shutil.copytree(ROOT / "include/fovea", folder)
            text = (folder / "rope.h").read_text()
            (folder / "rope.h").write_text(text.replace("yarn alone */", "yarn\n        alone */"))
            self.assertNotEqual((folder / "rope.h").read_text(), text)
            self.assertEqual(api.parse(folder), api.parse(ROOT / "include/fovea"))


def prose(text):
    """The words of every sentence of comments, with the line of the comment.  Tables and formulas,
    which are indented, and the tags of fields are none."""
    for comment in re.finditer(r"/\*\*(<?) (.*?)\*/", text, re.S):
        words = comment[2]
        if comment[1]:
            words = re.sub(r"^\[.*?\] \([^)]*\)( or paged \([^)]*\))?[^:]*:?", "", words, flags=re.S)
        else:
            words = re.sub(r"\n \*( *|    .*)(?=\n|$)", "\n\n", words)
            words = words.replace("\n *  ", " ")
        for sentence in re.split(r"(?<=[.?!])\s+|\n\n", words):
            words = [w for w in sentence.split() if re.search(r"\w", w)]
            yield text.count("\n", 0, comment.start()) + 1, words


class Manual(unittest.TestCase):
    def headers(self):
        found = sorted((ROOT / "include/fovea").rglob("*.h"))
        self.assertIn(ROOT / "include/fovea/core.h", found)
        for path in found:
            yield path.relative_to(ROOT), path.read_text()

    def test_a_header_says_what_is_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "fovea"
            shutil.copytree(ROOT / "include/fovea", folder)
            rope, whole = folder / "rope.h", (folder / "rope.h").read_text()
            own = " *  Extents of its own:\n *    turns = 3: what turns\n *\n *  In fovea.h:"
            rope.write_text(whole.replace(" *  In fovea.h:", own).replace("(positions, half)", "(positions, turns)"))
            self.assertEqual(api.own_extents(folder)["turns"], (3, "what turns"))
            dims = [f["dims"] for s in api.parse(folder)["structs"] for f in s["fields"] if f["kind"] == "tensor" and "dims" in f]
            self.assertTrue(any("turns" in d for d in dims))
            rope.write_text(whole.replace(" *  In fovea.h:", own.replace("turns", "half")))
            with self.assertRaisesRegex(api.Refused, "rope.h: the extent `half` has its meaning elsewhere"):
                api.parse(folder)
            manual = (ROOT / "include/fovea/fovea.h").read_text()
            rope.write_text(whole)
            self.assertEqual(api.with_manual(manual, folder), manual)
            rope.write_text(whole.replace("In fovea.h:", "In the manual:"))
            with self.assertRaisesRegex(api.Refused, "rope.h: wanted `In fovea.h:`"):
                api.with_manual(manual, folder)

    def test_the_glossary_is_the_list(self):
        core = (ROOT / "include/fovea/core.h").read_text()
        self.assertEqual(api.with_glossary(core), core)
        row = next(line for line in core.split("\n") if line.startswith(" *    key_b "))
        self.assertNotEqual(api.with_glossary(core.replace(row, row + "?")), core.replace(row, row + "?"))
        for broken in (core.replace(api.GLOSSARY, ""), core.replace(api.GLOSSARY, api.GLOSSARY * 2)):
            with self.assertRaises(api.Refused):
                api.with_glossary(broken)

    def test_every_dim_is_used(self):
        fields = [f for s in api.parse(ROOT / "include/fovea")["structs"] for f in s["fields"]]
        used = {d for f in fields for d in f.get("dims", []) + (f.get("paged_dims") or [])}
        self.assertEqual(set(api.DIMS) - used, set())

    def test_lines_fit(self):
        for path, text in self.headers():
            for number, line in enumerate(text.split("\n"), 1):
                self.assertLessEqual(len(line), 100, f"{path}:{number}")

    def test_sentences_are_short(self):
        seen = 0
        for path, text in self.headers():
            for number, words in prose(text):
                seen += len(words) > 5
                self.assertLessEqual(len(words), 25, f"{path}:{number}: {' '.join(words)}")
        self.assertGreater(seen, 200)
        long = "/** " + " ".join(["word"] * 26) + ". */"
        self.assertEqual([len(words) for _, words in prose(long) if words], [26])


class Version(unittest.TestCase):
    def test_a_release_is_stamped_where_the_version_stands(self):
        now = api.parse(ROOT / "include/fovea")["version"]
        places = 0
        for path in api.MANIFESTS:
            before, after = (ROOT / path).read_text(), api.with_version(path, "7.8.9")
            self.assertEqual(after.count("7.8.9"), before.count(now), path)
            self.assertEqual(after.replace("7.8.9", now), before, path)
            places += after.count("7.8.9")
        self.assertEqual(places, 5)  # fovea needs fovea-sys of its own version


# What is there in a row of src/recipes.json, what is put there, words of the refusal.
WRONG_RECIPES = [
    ({"name": "MoA"}, "wanted a name of letters"),
    ({"paper": "a paper"}, "wanted an arXiv number"),
    ({"year": "2024"}, "year is '2024', wanted a int"),
    ({"title": None}, "title is None, wanted a str"),
    ({"author": "somebody"}, "there is no key author"),
    ({"operation": "attention"}, "operation is 'attention', wanted a row of src/ops.inc"),
    ({"backward": "attention"}, "backward is 'attention', wanted a row of src/ops.inc"),
    ({"numbers": {"window": 4}}, "x_select_token has no number window"),
    ({"numbers": {"k": 4}}, "x_select_token has no number k"),
    ({"numbers": {"reserved": 4}}, "x_select_token has no number reserved"),
    ({"numbers": {"count": 4.5}}, "count is 4.5, wanted an integer that int64_t holds"),
    ({"numbers": {"causal": 2**31}}, "wanted an integer that int32_t holds"),
    ({"numbers": {"count": 0}}, "count is 0, which it is anyway"),
    ({"numbers": {"count": "many"}}, "count is 'many', wanted a number: it is no enum"),
    ({"numbers": {"ratio": True}}, "ratio is True, wanted a number"),
    ({"numbers": {"measure": "cosine"}}, "measure is 'cosine', wanted one of dot, relu_weighted"),
    ({"numbers": {"measure": 1}}, "measure is 1, wanted one of dot, relu_weighted"),
    ({"needs": ["count"]}, "no optional input or number count that numbers lacks"),
    ({"needs": ["scale"]}, "no optional input or number scale"),
    ({"needs": ["kept_score"]}, "x_select_token has no optional input or number kept_score"),
    ({"words": "No full stop"}, "wanted sentences of at most 25 words"),
    ({"words": " ".join(["word"] * 26) + "."}, "wanted sentences of at most 25 words"),
]


class Recipes(unittest.TestCase):
    ROW = {"name": "indexer", "title": "An indexer", "paper": "2512.02556", "year": 2025, "operation": "x_select_token",
           "numbers": {"count": 2048, "ratio": 0.5, "measure": "relu_weighted"}, "needs": ["weight"], "words": "It selects."}

    def setUp(self):
        self.abi = api.parse(ROOT / "include/fovea")

    def test_a_row_is_read(self):
        row = emit_recipes.check(self.abi, self.ROW)
        self.assertEqual([(f["name"], value) for f, _, value in row["rows"]], [("count", 2048), ("ratio", 0.5), ("measure", 1)])
        self.assertEqual(emit_recipes.numbers_text(row), "count=2048 ratio=0.5 measure=relu_weighted")

    def test_wrong_rows_are_refused(self):
        for put, reason in WRONG_RECIPES:
            with self.subTest(put=put), self.assertRaises(SystemExit) as refused:
                emit_recipes.check(self.abi, {**self.ROW, **put})
            self.assertIn(reason, str(refused.exception))
            self.assertIn("api.py: src/recipes.json: ", str(refused.exception))

    def test_rows_stand_sorted(self):
        rows = json.loads((ROOT / emit_recipes.SOURCE).read_text())["recipes"]
        for wrong in (rows[::-1], rows + rows[-1:]):
            with tempfile.TemporaryDirectory() as folder, self.assertRaises(SystemExit) as refused:
                path = pathlib.Path(folder) / "recipes.json"
                path.write_text(json.dumps({"recipes": wrong}))
                emit_recipes.recipes(self.abi, path)
            self.assertIn("wanted rows sorted by name, each once", str(refused.exception))


class Gate(unittest.TestCase):
    def setUp(self):
        self.old = api.parse(ROOT / "include/fovea")
        self.new = copy.deepcopy(self.old)
        self.params = next(s for s in self.new["structs"] if s["name"] == "fovea_rope_table_get_params")

    def broken(self):
        return api.gate(self.new, self.old, "0.1.0")

    def test_the_same_passes(self):
        self.assertEqual(self.broken(), [])

    def test_appends_pass(self):
        size = self.params["size"]
        self.params["fields"].append({"name": "added", "type": "int64_t", "count": 1, "offset": size, "size": 8, "kind": "i64"})
        self.params["size"] = size + 8
        self.new["enums"][0]["values"].append({"name": "FOVEA_NEW", "value": 6, "doc": ""})
        self.new["functions"].append({"name": "fovea_new", "returns": "void", "args": []})
        self.assertEqual(self.broken(), [])

    def test_what_is_experimental_may_go(self):
        for key in ("enums", "structs", "ops", "functions"):
            stays = [x for x in self.new[key] if not x.get("experimental")]
            self.assertLess(len(stays), len(self.new[key]))
            self.new[key] = stays
        self.assertEqual(self.broken(), [])

    def test_a_swap_of_two_fields_of_one_type_fails(self):
        fields = self.params["fields"]
        a, b = (next(i for i, f in enumerate(fields) if f["name"] == n) for n in ("low_factor", "high_factor"))
        fields[a], fields[b] = fields[b], fields[a]
        fields[a]["offset"], fields[b]["offset"] = fields[b]["offset"], fields[a]["offset"]
        self.assertTrue(self.broken())

    def test_every_other_change_fails(self):
        def field(change):
            return lambda: change(self.params["fields"][-2])
        changes = {
            "field renamed": field(lambda f: f.update(name="other")),
            "field retyped": field(lambda f: f.update(type="float")),
            "field moved": field(lambda f: f.update(offset=f["offset"] + 4)),
            "field gone": lambda: self.params["fields"].pop(-2),
            "struct gone": lambda: self.new["structs"].remove(self.params),
            "tensor grown": lambda: self.new["structs"][0].update(size=104),
            "enum value changed": lambda: self.new["enums"][0]["values"][1].update(value=9),
            "enum value gone": lambda: self.new["enums"][0]["values"].pop(),
            "function gone": lambda: self.new["functions"].pop(0),
            "return changed": lambda: self.new["functions"][0].update(returns="int64_t"),
            "argument changed": lambda: self.new["functions"][0]["args"].append({}),
            "first size changed": lambda: self.new["ops"][0].update(first_size=8),
        }
        for what, change in changes.items():
            with self.subTest(what):
                self.setUp()
                change()
                self.assertTrue(self.broken())


if __name__ == "__main__":
    unittest.main()
