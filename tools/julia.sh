#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs a private Julia for the binding's tests: tools/julia.sh [PREFIX], default .cache/julia.
# Prints progress on stderr and, last on stdout, the path of a `julia` that runs.
#
# A `julia` on PATH is used when there is one.  Debian 12 packages none, but Debian 11's 1.5.3 runs
# on it when its packages are unpacked beside the system's: libc6, libstdc++6 and libgcc-s1 come
# from the system (theirs are newer and compatible), everything else from the prefix.  apt works
# on state of its own, so the system's lists, cache and packages stay as they are.
set -eu

suite=bullseye
root=$(cd "$(dirname "$0")/.." && pwd)
prefix=${1:-$root/.cache/julia}
case $prefix in /*) ;; *) prefix=$PWD/$prefix ;; esac
say() { echo "julia.sh: $*" >&2; }

if [ -x "$prefix/julia" ] && "$prefix/julia" --version > /dev/null 2>&1; then
  say "already installed: $("$prefix/julia" --version)"
  echo "$prefix/julia"
  exit 0
fi
if [ $# = 0 ] && found=$(command -v julia); then
  say "using $found: $("$found" --version)"
  echo "$found"
  exit 0
fi
for tool in apt-get dpkg-deb; do
  command -v $tool > /dev/null || { say "needs $tool (Debian)"; exit 1; }
done

# The first Debian archive that this machine's apt is configured with, deb822 or one-line.
mirror=$(
  { awk 'tolower($1) == "uris:" { for (i = 2; i <= NF; i++) print $i }' /etc/apt/sources.list.d/*.sources || :
    sed -n 's/^deb  *\(\[[^]]*\]  *\)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list || :
  } 2> /dev/null | sed 's:/*$::' | grep '/debian$' | head -n 1) || true
[ -n "$mirror" ] || { say "no Debian archive in /etc/apt"; exit 1; }
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keys ] || { say "needs the package debian-archive-keyring"; exit 1; }

work=$prefix/apt
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$prefix/root"
: > "$work/status"
echo "deb [signed-by=$keys] $mirror $suite main" > "$work/sources.list"
cat > "$work/apt.conf" << CONF
Dir::State "$work";
Dir::State::status "$work/status";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Retries "3";
CONF
export APT_CONFIG="$work/apt.conf"

say "reading the package list of $suite"
apt-get -qq update >&2 || { say "the archive no longer has $suite"; exit 1; }
skip='^(libc6|libcrypt1|libstdc\+\+6|libgcc-s1|gcc-.*-base|tar|dpkg|perl-base|debconf)$'
packages=$(apt-get -s install julia libblas3 liblapack3 | awk '$1 == "Inst" { print $2 }' |
  grep -Ev "$skip")
[ -n "$packages" ] || { say "$suite has no julia"; exit 1; }

say "downloading $(echo "$packages" | wc -l) packages"
# shellcheck disable=SC2086
(cd "$work/debs" && apt-get -q download $packages >&2)
count=0
total=$(echo "$packages" | wc -l)
for deb in "$work"/debs/*.deb; do
  count=$((count + 1))
  say "unpacking $count/$total $(basename "$deb" | cut -d_ -f1)"
  dpkg-deb -x "$deb" "$prefix/root"
done

# Libraries are looked for first in the prefix; Julia's own files by paths relative to its binary.
triplet=$(basename "$(dirname "$(find "$prefix/root/usr/lib" -name 'libgmp.so.10' | head -n 1)")")
cat > "$prefix/julia" << WRAPPER
#!/bin/sh
here=\$(cd "\$(dirname "\$0")" && pwd)
lib=\$here/root/usr/lib/$triplet
export LD_LIBRARY_PATH="\$lib:\$lib/julia:\$lib/blas:\$lib/lapack:\$here/root/lib/$triplet\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export JULIA_DEPOT_PATH="\${JULIA_DEPOT_PATH:-\$here/depot}"
export JULIA_PKG_SERVER="\${JULIA_PKG_SERVER:-}"
exec "\$here/root/usr/bin/julia" "\$@"
WRAPPER
chmod +x "$prefix/julia"
"$prefix/julia" -e 'using Libdl, Test, LinearAlgebra' || { say "the unpacked julia does not run"; exit 1; }
rm -rf "$work"
say "installed: $("$prefix/julia" --version)"
echo "$prefix/julia"
