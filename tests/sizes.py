#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/sizes.py against trees of one file: what is too large is found with its name and size, what
only looks so is not."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import sizes  # noqa: E402

BODY = "  work();\n"
SEVEN = "int A, int B, int C, int D, int E, int F, int G"

# The text around 119 lines, and what is found: its line, name, size.
LONG = [
    ("void f() {\n", "}\n", (1, "f", 121)),
    ("\n// f\nint f(int a,\n      int b = {}) {\n", "}\n", (3, "f", 122)),
    ("template <class T>\nvoid f() {\n", "}\n", (1, "f", 122)),
    ("template <>\nvoid f<g(1)>() {\n", "}\n", (1, "f", 122)),
    ("namespace a {\nstatic const int x = 1;\nauto f() -> int {\n", "}\n}\n", (3, "f", 121)),
    ("namespace {\nvoid ns::K::f() const noexcept {\n", "}\n}\n", (2, "ns::K::f", 121)),
    ("struct K : A<(1)> {\n public:\n  void f() {\n", "  }\n};\n", (3, "f", 121)),
    ("struct K {\n  int x{2};\n  K() : x{1}, y(2) {\n", "  }\n};\n", (3, "K", 121)),
    ("struct alignas(8) K {\n  bool operator()(int x) {\n", "  }\n};\n", (2, "operator()", 121)),
    ("K& K::operator=(const K& k) {\n", "}\n", (1, "operator=", 121)),
    ("__global__ void __launch_bounds__(128, 1)\n    f(const int x) {\n", "}\n", (1, "f", 122)),
    ("extern \"C\" {\nint f(void) {\n", "}\n}\n", (2, "f", 121)),
    ("const auto f = [](int x) {\n", "};\n", (1, "lambda", 121)),
    ("Kernel k = {\"a\", [](int x) -> int* {\n", "}};\n", (1, "lambda", 121)),
    ("void f() {\n  const auto g = [&] {\n", "  };\n}\n", (1, "f", 123)),
    ("void f() {\n#if A\n  if (a) {\n#else\n  if (b) {\n#endif\n", "  }\n}\n", (1, "f", 127)),
    ("#if A\nvoid f(int x) {\n#else\nvoid f() {\n#endif\n", "}\n", (2, "f", 124)),
    ("void f() {\n  g(\"}\", '}', R\"x(})\"})x\", 1'000);  // }\n  /* } */\n", "}\n", (1, "f", 123)),
    ("#define F(x) \\\n", "", (1, "F", 120 + 1)),
]
# 7 parameters, and what has them.
WIDE = [
    (f"template <{SEVEN}>\nstruct K {{}};", "K"),
    (f"template <{SEVEN}>\n__device__ void f(int x) {{}}", "f"),
    (f"template <{SEVEN}>\nvoid f(K<A> x);", "f"),
    (f"template <{SEVEN}>\nusing K = int;", "K"),
    (f"template <{SEVEN}>\nconstexpr int k = 1;", "k"),
    (f"template <{SEVEN}>\nrequires(A > 1)\nint K<A>::f() {{}}", "K::f"),
    ("template <int A, int B, int C, int D, int E = (1 > 2), class F = X<int, 2>, class... G>\nstruct K;", "K"),
    (f"struct K {{\n  template <{SEVEN}>\n  void f();\n}};", "f"),
    (f"void f() {{\n  g([]<{SEVEN}>() {{}});\n}}", "lambda"),
    (f"template <class T>\ntemplate <{SEVEN}>\nvoid T::f() {{}}", "T::f"),
]
SMALL = [
    "void f() {\n" + BODY * 118 + "}\n",
    "int table[] = {\n" + "  {1, 2},\n" * 200 + "};\n",
    "const K k{\n" + "  f(1),\n" * 200 + "};\n",
    "enum class E {\n" + "  A,\n" * 200 + "};\n",
    "namespace a {\nclass K : public B<f(1)> {\n" + "  int f() { return 1; }\n" * 200 + "};\n}\n",
    "MACRO(1)\nstruct K {\n" + "  int f() { return 1; }\n" * 200 + "};\n",
    "template <int A, int B, int C, int D, int E, int F>\nstruct K {};\n",
    "template <int A, template <class, class> class B, class C = X<1, 2, 3, 4>, class D = F(1, 2, 3)>\nstruct K {};\n",
    "template struct K<1, 2, 3, 4, 5, 6, 7, 8>;\n",
    "int x = a[1] < b, c, d, e, f, g, h, i;\n",
    f"// template <{SEVEN}>\n",
]


class Sizes(unittest.TestCase):
    def broken(self, text, known=(), name="ops/a/a.cuh"):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "src" / name
            file.parent.mkdir(parents=True)
            file.write_text(text)
            return sizes.check(pathlib.Path(folder), dict(known))[0]

    def test_long_functions_are_found(self):
        for before, after, (line, name, size) in LONG:
            with self.subTest(before):
                body = (BODY if not before.startswith("#define") else "  work() \\\n") * 119
                self.assertEqual(self.broken(before + body + after + "\n"),
                                 [f"src/ops/a/a.cuh:{line}: {name}: {size} lines, at most 120"])

    def test_wide_templates_are_found(self):
        for text, name in WIDE:
            with self.subTest(text):
                line = text[:text.index("template <int" if "template <int" in text else "[]<")].count("\n") + 1
                self.assertEqual(self.broken(text), [f"src/ops/a/a.cuh:{line}: {name}: 7 parameters, at most 6"])

    def test_what_is_small_passes(self):
        for text in SMALL:
            with self.subTest(text[:40]):
                self.assertEqual(self.broken(text), [])

    def test_every_kind_of_file_is_read(self):
        for suffix in ("h", "cpp", "cu", "cuh", "inc"):
            self.assertEqual(len(self.broken("void f() {\n" + BODY * 119 + "}\n", name=f"core/a.{suffix}")), 1)

    def test_the_list_only_shrinks(self):
        entry = ("src/ops/a/a.cuh", "f", "lines")
        long = "void f() {\n" + BODY * 130 + "}\n"
        self.assertEqual(self.broken(long, {entry: 132}), [])
        self.assertEqual(self.broken(long, {entry: 140}), [])
        self.assertIn("132 lines, at most 131", self.broken(long, {entry: 131})[0])
        self.assertIn("strike it", self.broken("void f() {}\n", {entry: 132})[0])

    def test_the_exit_status(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tools").mkdir()
            shutil.copy(ROOT / "tools/sizes.py", root / "tools")
            shutil.copytree(ROOT / "src", root / "src")
            command = [sys.executable, root / "tools/sizes.py"]
            self.assertEqual(subprocess.run(command, capture_output=True).returncode, 0)
            for text in ("void f() {\n" + BODY * 119 + "}\n", f"template <{SEVEN}>\nstruct K;\n"):
                (root / "src/core/large.h").write_text(text)
                done = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual(done.returncode, 1)
                self.assertRegex(done.stdout, r"\Asrc/core/large\.h:1: \w: \d+ \w+, at most \d+\n\Z")


if __name__ == "__main__":
    unittest.main()
