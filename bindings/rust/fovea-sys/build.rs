// SPDX-License-Identifier: Apache-2.0
//! Finds libfovea.  The first of these that is there:
//!
//!   $FOVEA_LIBRARY             a file, libfovea.a or libfovea.so
//!   $FOVEA_LIB_DIR             a folder
//!   pkg-config fovea
//!   this checkout              lib, build/lib, build/*/lib
//!   the system                 $LIBRARY_PATH, /usr/local/lib, /usr/lib and their like
//!
//! libfovea.a is preferred where both lie in one folder: Cargo gives a library no way to set the
//! rpath of the programs that use it.  A shared library is linked through OUT_DIR, which `cargo run`
//! and `cargo test` put on the loader's path.  With `dlopen` nothing is linked; the path that was
//! found is where the program looks after its own $FOVEA_LIBRARY.
//!
//! Dependents see DEP_FOVEA_LIB_DIR in their build scripts, the folder of the library.
use std::path::{Path, PathBuf};
use std::{env, fs, process::Command};

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Static,
    Shared,
}
use Kind::{Shared, Static};

struct Library {
    file: PathBuf,
    kind: Kind,
    flags: Vec<String>, // what the static library stands on
}

fn main() {
    for name in ["FOVEA_LIBRARY", "FOVEA_LIB_DIR", "LIBRARY_PATH", "DOCS_RS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_ALLOW_CROSS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    if rustc_minor() >= 77 {
        println!("cargo:rustc-cfg=fovea_offset_of");
    }
    if rustc_minor() >= 80 {
        println!("cargo:rustc-check-cfg=cfg(fovea_offset_of, fovea_found)");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    if feature("DLOPEN") {
        if let Ok(library) = find(&[Shared]) {
            println!("cargo:rustc-cfg=fovea_found");
            println!("cargo:rustc-env=FOVEA_FOUND={}", library.file.display());
        }
        return;
    }
    let wanted: &[Kind] = if feature("STATIC") { &[Static] } else { &[Static, Shared] };
    match find(wanted) {
        Ok(library) => link(&library),
        Err(text) => {
            eprintln!("{text}");
            std::process::exit(1);
        }
    }
}

fn feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}

/// Symbolic links to the library in OUT_DIR, and what Cargo is to link.
fn link(library: &Library) {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    for name in ["libfovea.a", Shared.name(), loaded_name()] {
        let _ = fs::remove_file(out.join(name)); // of an earlier run
    }
    let (names, how) = match library.kind {
        Static => (vec!["libfovea.a"], "static"),
        Shared => (vec![Shared.name(), loaded_name()], "dylib"),
    };
    for name in names {
        if let Err(why) = symlink(&library.file, &out.join(name)) {
            panic!("{}: {why}", out.join(name).display());
        }
    }
    println!("cargo:rerun-if-changed={}", library.file.display());
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:lib_dir={}", library.file.parent().unwrap().display());
    println!("cargo:rustc-link-lib={how}=fovea");
    if library.kind == Shared {
        return;
    }
    for flag in &library.flags {
        if let Some(path) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={path}");
        } else if let Some(name) = flag.strip_prefix("-l").filter(|name| *name != "fovea") {
            println!("cargo:rustc-link-lib={name}");
        }
    }
}

#[cfg(unix)]
fn symlink(from: &Path, to: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

#[cfg(not(unix))]
fn symlink(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::copy(from, to).map(|_| ())
}

/// The library, or the sentence that says what was tried and what helps.
fn find(wanted: &[Kind]) -> Result<Library, String> {
    if let Some(file) = variable("FOVEA_LIBRARY")? {
        return named(&file, wanted);
    }
    if let Some(dir) = variable("FOVEA_LIB_DIR")? {
        return inside(&dir, wanted).ok_or_else(|| {
            format!(
                "FOVEA_LIB_DIR is {}, which has no {}\n{}",
                dir.display(),
                names(wanted),
                help()
            )
        });
    }
    let mut tried =
        vec!["FOVEA_LIBRARY (a file) and FOVEA_LIB_DIR (a folder): not set".to_string()];
    let native = env::var_os("HOST") == env::var_os("TARGET");
    if native || env::var_os("PKG_CONFIG_ALLOW_CROSS").is_some() {
        match pkg_config(wanted) {
            Ok(library) => return Ok(library),
            Err(why) => tried.push(format!("pkg-config fovea: {why}")),
        }
    }
    let mut folders = checkout();
    if native {
        folders.extend(system());
    }
    for dir in folders {
        if let Some(library) = inside(&dir, wanted) {
            return Ok(library);
        }
        tried.push(dir.display().to_string());
    }
    let tried = tried.join("\n    ");
    Err(format!("{} was not found.  Tried:\n    {tried}\n{}", names(wanted), help()))
}

/// A variable that is set and not empty.  Cargo runs this elsewhere than it was called.
fn variable(name: &str) -> Result<Option<PathBuf>, String> {
    let path = env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match path {
        Some(path) if path.is_relative() => {
            Err(format!("{name} is {}, wanted an absolute path\n{}", path.display(), help()))
        }
        path => Ok(path),
    }
}

fn names(wanted: &[Kind]) -> String {
    wanted.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(" or ")
}

fn help() -> String {
    let tree = root().map_or("a checkout of fovea".to_string(), |root| root.display().to_string());
    format!(
        "Build it, in {tree}:
    cmake --preset release -DFOVEA_CUDA=OFF -DFOVEA_TESTS=OFF -DFOVEA_BENCH=OFF
    cmake --build --preset release
or name it: FOVEA_LIBRARY=/path/to/libfovea.so cargo build
or open it when the program runs: the feature `dlopen`"
    )
}

/// $FOVEA_LIBRARY, or the kind that is wanted from the same folder.
fn named(file: &Path, wanted: &[Kind]) -> Result<Library, String> {
    let at = format!("FOVEA_LIBRARY is {}", file.display());
    if !file.is_file() {
        let what = if file.is_dir() { "a folder, wanted a file" } else { "no such file" };
        return Err(format!("{at}: {what}\n{}", help()));
    }
    let file = file.canonicalize().map_err(|why| format!("{at}: {why}"))?;
    let kind = if file.extension().map_or(false, |end| end == "a") { Static } else { Shared };
    let dir = file.parent().unwrap();
    if wanted.contains(&kind) {
        let flags = private_libraries(dir);
        return Ok(Library { file, kind, flags });
    }
    inside(dir, wanted)
        .ok_or_else(|| format!("{at}, wanted {}, which is not beside it", names(wanted)))
}

/// The first kind that a folder has.
fn inside(dir: &Path, wanted: &[Kind]) -> Option<Library> {
    let dir = dir.canonicalize().ok()?;
    let kind = *wanted.iter().find(|kind| dir.join(kind.name()).is_file())?;
    Some(Library { file: dir.join(kind.name()), kind, flags: private_libraries(&dir) })
}

fn pkg_config(wanted: &[Kind]) -> Result<Library, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let mut command = Command::new(&program);
    command.args(["--static", "--libs", "fovea"]).env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1");
    let output = command.output().map_err(|why| format!("{}: {why}", program.to_string_lossy()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(said.lines().next().unwrap_or("no reason given").to_string());
    }
    let flags = words(&String::from_utf8_lossy(&output.stdout));
    let dirs = || flags.iter().filter_map(|flag| flag.strip_prefix("-L")).map(Path::new);
    match dirs().find_map(|dir| inside(dir, wanted)) {
        Some(library) => Ok(Library { flags, ..library }),
        None => Err(format!("{} has no {}", flags.join(" "), names(wanted))),
    }
}

/// The checkout that this crate lies in, if it does.
fn root() -> Option<PathBuf> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("../../..");
    root.join("include/fovea/core.h").is_file().then(|| root.canonicalize().ok()).flatten()
}

/// Where builds of the checkout lie.
fn checkout() -> Vec<PathBuf> {
    let root = match root() {
        Some(root) => root,
        None => return Vec::new(),
    };
    let entries = fs::read_dir(root.join("build")).into_iter().flatten().flatten();
    let mut builds: Vec<_> = entries.map(|entry| entry.path().join("lib")).collect();
    builds.retain(|dir| dir.is_dir());
    builds.sort();
    let mut dirs = vec![root.join("lib"), root.join("build/lib")];
    dirs.extend(builds);
    dirs
}

fn system() -> Vec<PathBuf> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let path = env::var_os("LIBRARY_PATH").unwrap_or_default();
    let mut dirs: Vec<_> = env::split_paths(&path).filter(|dir| dir.is_absolute()).collect();
    for prefix in ["/usr/local", "/usr"] {
        dirs.push(format!("{prefix}/lib").into());
        dirs.push(format!("{prefix}/lib64").into());
        dirs.push(format!("{prefix}/lib/{arch}-linux-gnu").into());
    }
    dirs.into_iter().filter(|dir| dir.is_dir()).collect()
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Static => "libfovea.a",
            Shared if macos() => "libfovea.dylib",
            Shared => "libfovea.so",
        }
    }
}

/// The name that a program asks the loader for.
fn loaded_name() -> &'static str {
    if macos() {
        "libfovea.0.dylib"
    } else {
        "libfovea.so.0"
    }
}

fn macos() -> bool {
    env::var_os("CARGO_CFG_TARGET_OS").map_or(false, |os| os == "macos")
}

/// The 63 of "rustc 1.63.0".
fn rustc_minor() -> u32 {
    let output = Command::new(env::var_os("RUSTC").unwrap()).arg("--version").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or(0)
}

/// Libs.private of the fovea.pc that lies beside the library, in an install or a build tree.
fn private_libraries(dir: &Path) -> Vec<String> {
    let places = [dir.join("pkgconfig/fovea.pc"), dir.join("fovea.pc")];
    let text = places.iter().find_map(|place| fs::read_to_string(place).ok()).unwrap_or_default();
    match text.lines().find_map(|line| line.strip_prefix("Libs.private:")) {
        Some(flags) => words(flags),
        None => words("-lstdc++ -lm -lpthread -ldl -lrt"),
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_string).collect()
}
